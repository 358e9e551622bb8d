"""ALS and BPR of implicit and SASRec of RecTools on a stranger's events, at their usual settings.

Runs with another Python than the project's, where these are installed (implicit 0.7.3,
rectools[torch] 0.19.0):

    PYTHON -m tests.benchmarks.strangers.outside_peers EVENTS.json OUT.json

EVENTS.json holds ``history`` and ``targets`` as ``peers.measure`` takes them. ALS and BPR choose
their factors and SASRec its passes, more where users are few; all else is the library's default but
SASRec's width, 128, and its length: what 95 in 100 histories need, at most 100.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.strangers.measures import K
from tests.benchmarks.strangers.peers import Fit, History, Lists, Matrix, measure

FACTORS = (32.0, 128.0)
PASSES = {2_000: (10.0, 30.0), 1_000_000_000: (4.0, 10.0)}
"""By the number of users up to which they hold."""


class Factors:
    """A matrix factorisation of implicit."""

    def __init__(self, kind: str, matrix: Matrix, factors: int) -> None:
        from implicit.als import AlternatingLeastSquares
        from implicit.bpr import BayesianPersonalizedRanking

        model = AlternatingLeastSquares if kind == "ALS" else BayesianPersonalizedRanking
        self.matrix = matrix
        self.model = model(factors=factors, random_state=0, num_threads=1)
        self.model.fit(matrix.taken, show_progress=False)

    def lists(self, users: Sequence[str], *, leave_out: bool) -> Lists:
        rows = np.array([self.matrix.rows[user] for user in users])
        found, scores = self.model.recommend(
            rows, self.matrix.taken[rows], N=K, filter_already_liked_items=leave_out
        )
        return {
            user: self.matrix.names[some[score > -1e30]].tolist()
            for user, some, score in zip(users, found, scores, strict=True)
        }


class Sequences:
    """RecTools' SASRec, trained on from pass to pass."""

    def __init__(self, history: History) -> None:
        import pandas as pd
        import torch
        from rectools import Columns
        from rectools.dataset import Dataset
        from rectools.models import SASRecModel

        torch.manual_seed(0)
        places = np.concatenate([np.arange(len(taken)) for taken in history.values()])
        table = pd.DataFrame(
            {
                Columns.User: np.repeat(list(history), [len(taken) for taken in history.values()]),
                Columns.Item: [item for taken in history.values() for item in taken],
                Columns.Weight: 1.0,
                Columns.Datetime: pd.Timestamp("2020-01-01") + pd.to_timedelta(places, unit="min"),
            }
        )
        self.dataset = Dataset.construct(table)
        longest = np.percentile([len(taken) for taken in history.values()], 95)
        self.model = SASRecModel(
            n_factors=128,
            session_max_len=int(min(100, 10 * np.ceil(longest / 10))),
            get_trainer_func=quiet_trainer,
            recommend_torch_device="cpu",
        )
        self.passes = 0

    def train_to(self, passes: int) -> None:
        self.model.fit_partial(
            self.dataset, min_epochs=passes - self.passes, max_epochs=passes - self.passes
        )
        self.passes = passes

    def lists(self, users: Sequence[str], *, leave_out: bool) -> Lists:
        from rectools import Columns

        found = self.model.recommend(
            list(users), self.dataset, k=K, filter_viewed=leave_out, on_unsupported_targets="ignore"
        )
        found = found.sort_values([Columns.User, Columns.Rank])
        return {user: part.tolist() for user, part in found.groupby(Columns.User)[Columns.Item]}


def quiet_trainer(**settings: Any) -> Any:
    from pytorch_lightning import Trainer

    return Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        **settings,
    )


def peer(name: str) -> Fit:
    """Give the function that fits a peer; SASRec goes on where it stands, others start anew."""
    matrices: dict[int, Matrix] = {}
    trained: dict[int, Sequences] = {}

    def fit(history: History, setting: float) -> Factors | Sequences:
        begin = time.monotonic()
        fitted: Factors | Sequences
        if name == "SASRec":
            fitted = trained.setdefault(id(history), Sequences(history))
            fitted.train_to(int(setting))
        else:
            matrix = matrices.setdefault(id(history), Matrix(history))
            fitted = Factors(name, matrix, int(setting))
        print(f"{name} {setting:g}: {time.monotonic() - begin:.0f} s", flush=True)
        return fitted

    return fit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("events", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--peers", nargs="*", default=["ALS", "BPR", "SASRec"])
    parser.add_argument("--passes", nargs="*", type=float, help="of SASRec, to choose from")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    document = json.loads(options.events.read_text())
    history, targets = document["history"], document["targets"]
    found = {}
    for name in options.peers:
        usual = next(some for most, some in PASSES.items() if len(history) < most)
        settings = (options.passes or usual) if name == "SASRec" else FACTORS
        found[name] = measure(peer(name), settings, history, targets)
        options.out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
