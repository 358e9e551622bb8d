"""Peers of RecTools 0.19: SASRec, BERT4Rec and HSTU, each with the query's history as the session.

The library fits and recommends. A query is a user of its own there, with the query's history and
its moment as context, so users who are new in the step are served as well.

Axes: Q queries, k list length.
"""

from __future__ import annotations

import logging
import warnings
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tests.benchmarks.peers.folder import KEPT, Known, Queries, Rows

SEED = 0


class Transformer:
    """A fitted model of RecTools."""

    def __init__(self, kind: str, known: Known, *, epochs: int, **settings: Any) -> None:
        """Fit SASRecModel, BERT4RecModel or HSTUModel with the library's other settings."""
        from pytorch_lightning import seed_everything
        from rectools import models

        for name in ("pytorch_lightning", "lightning_fabric", "lightning"):
            logging.getLogger(name).setLevel(logging.ERROR)
        warnings.simplefilter("ignore")
        seed_everything(SEED)
        self.model = getattr(models, kind)(
            **settings,
            get_trainer_func=quiet_trainer,
            get_trainer_func_kwargs={"max_epochs": epochs, "min_epochs": epochs},
        )
        self.model.fit(dataset_of(known.user_rows, known.item_rows, known.times))

    def lists(self, queries: Queries) -> Rows:
        """Recommend to the queries whose history has an item that the model knows."""
        from rectools import Columns

        item_rows = self.model.data_preparator.get_known_item_ids()
        usable = np.isin(queries.history_rows, item_rows)
        numbers = np.unique(queries.history_queries[usable])
        found = np.zeros((len(queries), KEPT), np.int64)
        if not len(numbers):
            return found
        inside = usable & np.isin(queries.history_queries, numbers)
        table = self.model.recommend(
            numbers,
            dataset_of(
                queries.history_queries[inside],
                queries.history_rows[inside],
                queries.history_times[inside],
            ),
            k=KEPT,
            filter_viewed=True,
            context=self.context(numbers, queries.moments[numbers]),
        )
        rows, places = table[Columns.User].to_numpy(), table[Columns.Rank].to_numpy() - 1
        found[rows, places] = table[Columns.Item].to_numpy()
        return found

    def context(self, numbers: Rows, moments: Rows) -> pd.DataFrame | None:
        """Say when each query is, for a model that attends to time."""
        from rectools import Columns

        if not getattr(self.model, "relative_time_attention", False):
            return None
        return pd.DataFrame(
            {Columns.User: numbers, Columns.Weight: 1.0, Columns.Datetime: datetimes(moments)}
        )


def sasrec(known: Known, **settings: Any) -> Transformer:
    """Fit SASRec with the softmax over all items."""
    return Transformer("SASRecModel", known, **settings)


def bert4rec(known: Known, **settings: Any) -> Transformer:
    """Fit BERT4Rec with the softmax over all items."""
    return Transformer("BERT4RecModel", known, **settings)


def hstu(known: Known, **settings: Any) -> Transformer:
    """Fit HSTU with attention to places and times."""
    return Transformer("HSTUModel", known, **settings)


def dataset_of(users: Rows, item_rows: Rows, times: Rows) -> Any:
    """Make RecTools' dataset of events."""
    from rectools import Columns
    from rectools.dataset import Dataset

    return Dataset.construct(
        pd.DataFrame(
            {
                Columns.User: users,
                Columns.Item: item_rows,
                Columns.Weight: 1.0,
                Columns.Datetime: datetimes(times),
            }
        )
    )


def datetimes(seconds: Rows) -> NDArray[np.datetime64]:
    """Write unix seconds as nanoseconds, which RecTools counts on."""
    return seconds.astype("datetime64[s]").astype("datetime64[ns]")


def quiet_trainer(**settings: Any) -> Any:
    """A trainer on the CPU that prints and keeps nothing."""
    from pytorch_lightning import Trainer

    return Trainer(
        accelerator="auto",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        **settings,
    )
