"""The per-user tables of stage evaluate: each model's rank of each held-out item, and its lists."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
import torch

from recsys.data.batch import Jagged

RANK = "rank_"


def models_in(columns: Sequence[str]) -> tuple[str, ...]:
    """List the models of a per-user table by its columns."""
    return tuple(name.removeprefix(RANK) for name in columns if name.startswith(RANK))


def read_targets(table: Path) -> tuple[np.ndarray, Jagged]:
    """Read the users of a per-user table, [U], and the held-out items of each."""
    frame = pl.read_parquet(table, columns=["user_row", "item_row"])
    users, counts = np.unique(frame["user_row"].to_numpy(), return_counts=True)
    offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(counts)]))
    return users, Jagged(torch.from_numpy(frame["item_row"].to_numpy().copy()), offsets)
