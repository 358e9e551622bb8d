"""Peers of RecBole 1.2.1: SASRec and GRU4Rec, each of a query's latest events.

The library prepares the data, trains and scores; the last event of each user is not held back.

Axes: Q queries, N item rows.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.benchmarks.peers.folder import Known, Queries
from tests.benchmarks.peers.ranking import Scored, Scores

SEED = 0
NAME = "known"


def sasrec(known: Known, **settings: Any) -> Scored:
    """Fit SASRec with the softmax over all items."""
    return fitted("SASRec", known, settings)


def gru4rec(known: Known, **settings: Any) -> Scored:
    """Fit GRU4Rec with the softmax over all items."""
    return fitted("GRU4Rec", known, settings)


def fitted(model_name: str, known: Known, settings: dict[str, Any]) -> Scored:
    """Train a sequential model for its epochs and score histories with it."""
    return scorer(trained(model_name, known, settings), known.num_item_rows)


class Trained(NamedTuple):
    """What RecBole made."""

    model: Any
    item_rows: Any
    """Our rows of its items 1, 2, ..."""
    config: Any
    num_samples: int
    """Of a pass: one a prefix of a user's events."""


def trained(
    model_name: str,
    known: Known,
    settings: dict[str, Any],
    prepared: Callable[[], None] = lambda: None,
) -> Trained:
    """Train a sequential model for its epochs.

    Args:
        prepared: Called between the preparation of the data and the training.
    """
    name_as_numpy_1_did()
    from recbole.config import Config
    from recbole.data import create_dataset, data_preparation
    from recbole.utils import get_model, get_trainer, init_seed

    with tempfile.TemporaryDirectory() as work:
        write_atomic_file(known, Path(work) / NAME)
        arguments, sys.argv = sys.argv, sys.argv[:1]  # RecBole reads the command line
        try:
            config = Config(model=model_name, dataset=NAME, config_dict=config_of(work, settings))
        finally:
            sys.argv = arguments
        logging.disable(logging.CRITICAL)
        init_seed(SEED, False)
        dataset = create_dataset(config)
        train_data, _, _ = data_preparation(config, dataset)
        model = get_model(model_name)(config, train_data.dataset)
        model = model.to(config["device"])
        trainer = get_trainer(config["MODEL_TYPE"], model_name)(config, model)
        prepared()
        for epoch in range(config["epochs"]):
            trainer._train_epoch(train_data, epoch)
    tokens = dataset.field2id_token["item_id"][1:]
    rows = np.array([int(token) for token in tokens])
    return Trained(model, rows, config, len(train_data.dataset))


def name_as_numpy_1_did() -> None:
    """Give NumPy 2 the names that RecBole reads, where it is installed without NumPy 1."""
    for name, kind in {
        "float_": np.float64,
        "complex_": np.complex128,
        "unicode_": np.str_,
    }.items():
        if not hasattr(np, name):
            setattr(np, name, kind)


def write_atomic_file(known: Known, folder: Path) -> None:
    """Write the events as RecBole reads them; ties of time keep their order."""
    folder.mkdir()
    lines = ["user_id:token\titem_id:token\ttimestamp:float"]
    places = range(len(known.item_rows))
    events = zip(known.user_rows, known.item_rows, places, strict=True)
    lines += [f"{user}\t{item}\t{place}" for user, item, place in events]
    (folder / f"{NAME}.inter").write_text("\n".join(lines) + "\n")


def config_of(work: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Describe the data, how long is trained, and that nothing is printed."""
    return {
        "data_path": work,
        "checkpoint_dir": work,
        "load_col": {"inter": ["user_id", "item_id", "timestamp"]},
        "train_neg_sample_args": None,
        "eval_args": {
            # A validation user would lose the event that the others train on.
            "split": {"RS": [1.0, 0.0, 0.0]},
            "order": "TO",
            "mode": "full",
            "group_by": None,
        },
        "use_gpu": False,
        "show_progress": False,
        "worker": 0,
        "seed": SEED,
        "reproducibility": False,
        **settings,
    }


def scorer(trained: Trained, num_item_rows: int) -> Scored:
    """Score the latest known items of each history."""
    import torch
    from recbole.data.interaction import Interaction

    model, item_rows, config, _ = trained
    numbers = np.zeros(num_item_rows, np.int64)
    numbers[item_rows] = np.arange(1, len(item_rows) + 1)
    length = config["MAX_ITEM_LIST_LENGTH"]
    model.eval()

    def score(queries: Queries, block: slice) -> Scores:
        scores = np.full((block.stop - block.start, num_item_rows), -np.inf, np.float32)
        inputs = torch.zeros(len(scores), length, dtype=torch.int64)
        lengths = torch.zeros(len(scores), dtype=torch.int64)
        for row, query in enumerate(range(block.start, block.stop)):
            begin, end = queries.history_offsets[query : query + 2]
            known = numbers[queries.history_rows[begin:end]]
            known = known[known > 0][-length:]
            inputs[row, : len(known)] = torch.from_numpy(known)
            lengths[row] = len(known)
        usable = lengths > 0
        if usable.any():
            sequences = {"item_id_list": inputs[usable], "item_length": lengths[usable]}
            with torch.no_grad():
                found = model.full_sort_predict(Interaction(sequences))
            found = found.view(int(usable.sum()), -1)[:, 1:].numpy()
            scores[np.ix_(usable.numpy(), item_rows)] = found
        return scores

    return Scored(score)
