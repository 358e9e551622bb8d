"""Users by id, and what each did before a query."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from pipelines.dashboard.query import NotFoundError
from recsys.data.dataset import Sequences

OFFERED = 20


class PastEvent(NamedTuple):
    """One event of a history."""

    item_row: int
    time: str
    """Such as 1997-11-04 20:13; "" where there are no times."""


def user_row(features: Path, user_id: str) -> int:
    """Find a user by id.

    Raises:
        NotFoundError: There is none.
    """
    found = _users(features).filter(pl.col("id") == user_id).select("row").collect()
    if found.is_empty():
        raise NotFoundError(f"no user {user_id!r} in this run; search for one by a part of the id")
    return int(found.item())


def user_ids(features: Path, rows: Sequence[int]) -> dict[int, str]:
    """Name users by their rows."""
    frame = _users(features).filter(pl.col("row").is_in(list(rows))).select("row", "id")
    return dict(frame.collect().iter_rows())


def users_like(features: Path, text: str, at_most: int = OFFERED) -> list[str]:
    """Find ids that begin with a text, then those that have it in them."""
    found = _users(features).filter(pl.col("id").str.contains(text, literal=True))
    begins = pl.col("id").str.starts_with(text)
    frame = found.select("id", begins.alias("begins")).sort(
        "begins", pl.col("id").str.len_chars(), "id", descending=[True, False, False]
    )
    return list(frame.head(at_most).collect()["id"])


def users_matching(features: Path, text: str) -> pl.Series:
    """List the rows of users whose id has a text in it."""
    found = _users(features).filter(pl.col("id").str.contains(text, literal=True))
    return found.select("row").collect()["row"]


def _users(features: Path) -> pl.LazyFrame:
    return pl.scan_parquet(features / "vocabularies" / "users.parquet")


def history(sequences: Sequences, row: int, num_before: int) -> list[PastEvent]:
    """Read what a user did before a query, newest first.

    Args:
        sequences: Of the run, memory-mapped.
        row: Of the user.
        num_before: Events that come before the query.
    """
    begin = int(sequences.offsets[row])
    part = slice(begin, begin + num_before)
    items = np.asarray(sequences.item_rows[part])[::-1]
    if sequences.times is None:
        return [PastEvent(int(item), "") for item in items]
    times = np.asarray(sequences.times[part])[::-1]
    return [
        PastEvent(int(item), f"{datetime.fromtimestamp(int(time), UTC):%Y-%m-%d %H:%M}")
        for item, time in zip(items, times, strict=True)
    ]
