"""Peers of RecBole 1.2.1: SASRec and GRU4Rec, each of a query's latest events.

The library prepares the data, trains and scores; the last event of each user is not held back.

Axes: Q queries, N item rows.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from pathlib import Path
from typing import Any

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
        trainer = get_trainer(config["MODEL_TYPE"], model_name)(config, model)
        for epoch in range(config["epochs"]):
            trainer._train_epoch(train_data, epoch)
    tokens = dataset.field2id_token["item_id"][1:]
    return scorer(model, np.array([int(token) for token in tokens]), config, known.num_item_rows)


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


def scorer(model: Any, item_rows: Any, config: Any, num_item_rows: int) -> Scored:
    """Score the latest known items of each history.

    Args:
        model: The trained model.
        item_rows: Our rows of its items 1, 2, ...
        config: RecBole's, with the sequence's length.
        num_item_rows: N.
    """
    import torch
    from recbole.data.interaction import Interaction

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
