"""RecTools' SASRec, an epoch at a time.

    python rectools_sasrec.py HISTORIES.npz DIM BLOCKS HEADS LENGTH

Its defaults otherwise: full softmax, Adam 1e-3, 128 sequences a batch, dropout 0.2; like ours it
trains every position at once. Only the latest events of a long history are trained on.
"""

from __future__ import annotations

import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from protocol import Histories, K, Rows, serve
from pytorch_lightning import Callback, Trainer
from rectools import Columns
from rectools.dataset import Dataset
from rectools.models import SASRecModel


class Stopwatch(Callback):
    """Seconds of the epochs, without what is set up around them."""

    seconds = 0.0
    _begin = 0.0

    def on_train_epoch_start(self, *_: Any) -> None:
        Stopwatch._begin = time.process_time()

    def on_train_epoch_end(self, *_: Any) -> None:
        Stopwatch.seconds = time.process_time() - Stopwatch._begin


def make_trainer(**settings: Any) -> Trainer:
    return Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        callbacks=[Stopwatch()],
        **settings,
    )


def main() -> None:
    warnings.simplefilter("ignore")
    histories = Histories.load(Path(sys.argv[1]))
    dim, blocks, heads, length = map(int, sys.argv[2:6])
    torch.manual_seed(0)
    seen = [items[:-1] for items in histories.users()]
    users = np.repeat(np.arange(len(seen)), [len(items) for items in seen])
    places = np.concatenate([np.arange(len(items)) for items in seen])
    table = pd.DataFrame(
        {
            Columns.User: users,
            Columns.Item: np.concatenate(seen),
            Columns.Weight: 1.0,
            Columns.Datetime: pd.Timestamp("2020-01-01") + pd.to_timedelta(places, unit="min"),
        }
    )
    dataset = Dataset.construct(table)
    model = SASRecModel(
        n_blocks=blocks,
        n_heads=heads,
        n_factors=dim,
        session_max_len=length,
        get_trainer_func=make_trainer,
        recommend_torch_device="cpu",
    )

    def train_epoch() -> float:
        model.fit_partial(dataset, min_epochs=1, max_epochs=1)
        return Stopwatch.seconds

    def lists() -> Rows:
        found = model.recommend(np.arange(len(seen)), dataset, k=K, filter_viewed=True)
        chosen = np.zeros((len(seen), K), np.int64)
        place = found[Columns.Rank].to_numpy() - 1
        chosen[found[Columns.User].to_numpy(), place] = found[Columns.Item].to_numpy()
        return chosen

    serve(train_epoch, lists, histories.held_out())


if __name__ == "__main__":
    main()
