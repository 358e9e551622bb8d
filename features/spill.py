"""Events on their way from files to sequences: integer codes in bucket files on disk.

Raw files are read once, in batches. Ids become integer codes (one dictionary for all files), and
every event lands in the bucket of its user, so each bucket holds all events of its users and fits
into memory, however long the files are. Peak memory is one bucket plus the dictionaries.

Axes: E events of a bucket, U user codes, I item codes.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

EVENT_DTYPE = np.dtype(
    [
        ("user", np.uint32),
        ("item", np.uint32),
        ("type", np.uint32),
        ("time", np.int64),
        ("sequence", np.int64),
        ("row", np.int64),
    ]
)
"""One event: codes, micros since 1970 (0 without time), sequence index, global row number."""

Events = NDArray[Any]


class Codes:
    """Ids to codes in the order of their first appearance, for one build."""

    def __init__(self, name: str) -> None:
        self.dtype = pl.Categorical(pl.Categories(f"{name}-{uuid.uuid4()}"))
        # Polars forgets the codes as soon as no series of the type is left.
        self._alive = pl.Series([], dtype=pl.String).cast(self.dtype)

    def of(self, column: str) -> pl.Expr:
        """Code each id of a text column, uint32."""
        return pl.col(column).cast(self.dtype).to_physical()

    def ids(self, codes: NDArray[np.uint32]) -> pl.Series:
        """Give back the texts of codes."""
        return pl.Series("id", codes, dtype=pl.UInt32).cat.to(self.dtype).cast(pl.String)


@dataclass
class Spill:
    """Bucket files of events; a user's bucket is its code modulo the number of buckets."""

    directory: Path
    num_buckets: int
    num_users: int = 0
    num_items: int = 0

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)

    def path(self, bucket: int) -> Path:
        return self.directory / f"bucket-{bucket:05d}.events"

    def append(self, events: Events) -> None:
        """Add events of any users."""
        if not len(events):
            return
        self.num_users = max(self.num_users, int(events["user"].max()) + 1)
        self.num_items = max(self.num_items, int(events["item"].max()) + 1)
        if self.num_buckets == 1:
            self._append(0, events)
            return
        bucket = events["user"] % self.num_buckets
        order = np.argsort(bucket.astype(np.uint16), kind="stable")
        ends = np.cumsum(np.bincount(bucket, minlength=self.num_buckets))
        sorted_events = events[order]
        for number, end in enumerate(ends):
            start = ends[number - 1] if number else 0
            self._append(number, sorted_events[start:end])

    def _append(self, bucket: int, events: Events) -> None:
        with self.path(bucket).open("ab") as file:
            events.tofile(file)

    def replace(self, bucket: int, events: Events) -> None:
        events.tofile(self.path(bucket))

    def buckets(self) -> Iterator[tuple[int, Events]]:
        """Read the buckets one after the other."""
        for bucket in range(self.num_buckets):
            if self.path(bucket).exists():
                yield bucket, np.fromfile(self.path(bucket), EVENT_DTYPE)


def sorted_by_user(events: Events) -> Events:
    """Order events by user, time, sequence index and row."""
    keys = pl.DataFrame(
        {name: events[name] for name in ("user", "time", "sequence", "row")}
    ).with_row_index("place")
    order = keys.sort("user", "time", "sequence", "row")["place"].to_numpy()
    ordered: Events = events[order]
    return ordered


def without_duplicates(events: Events) -> Events:
    """Keep the first of events that agree on user, item, time, sequence index and type.

    Takes and returns events ordered by ``sorted_by_user``.
    """
    key = ("user", "time", "sequence", "item", "type")
    order = np.lexsort(tuple(events[name] for name in reversed(key)))
    ordered = events[order]
    same = np.zeros(len(events), np.bool_)
    if len(events) > 1:
        same[1:] = np.logical_and.reduce([ordered[name][1:] == ordered[name][:-1] for name in key])
    kept = np.ones(len(events), np.bool_)
    kept[order[same]] = False
    return events[kept]


def run_starts(users: NDArray[Any]) -> NDArray[np.int64]:
    """Give for each event the index of the first one of the same user; users are contiguous."""
    first = np.ones(len(users), np.bool_)
    first[1:] = users[1:] != users[:-1]
    starts = np.flatnonzero(first)
    return np.repeat(starts, np.diff(np.append(starts, len(users))))


def latest(events: Events, limit: int) -> Events:
    """Keep each user's latest ``limit`` events."""
    starts = run_starts(events["user"])
    lengths = np.bincount(events["user"], minlength=1)[events["user"]]
    kept: Events = events[np.arange(len(events)) - starts >= lengths - limit]
    return kept


@dataclass(frozen=True)
class Core:
    """What is left of users and items after the k-core."""

    users: NDArray[np.bool_]
    """[U]"""
    items: NDArray[np.bool_]
    """[I]"""
    user_counts: NDArray[np.int64]
    """Events of each user code that are left, [U]."""
    num_rounds: int


def k_core(spill: Spill, min_user_events: int, min_item_events: int) -> Core:
    """Drop users and items with too few events until all that are left have enough."""
    users = np.ones(spill.num_users, np.bool_)
    items = np.ones(spill.num_items, np.bool_)
    num_rounds, settled = 0, False
    while not settled:
        num_rounds += 1
        user_counts = np.zeros(spill.num_users, np.int64)
        item_counts = np.zeros(spill.num_items, np.int64)
        for _, events in spill.buckets():
            kept = events[users[events["user"]] & items[events["item"]]]
            user_counts += np.bincount(kept["user"], minlength=spill.num_users)
            item_counts += np.bincount(kept["item"], minlength=spill.num_items)
        enough_users = user_counts >= max(1, min_user_events)
        enough_items = item_counts >= max(1, min_item_events)
        settled = np.array_equal(enough_users, users) and np.array_equal(enough_items, items)
        users, items = enough_users, enough_items
    return Core(users, items, user_counts, num_rounds)
