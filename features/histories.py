"""Users' histories: events sorted by user and moment, written as one sequence per user.

Duplicates, events beyond a user's limit and those outside the k-core are dropped.

Their order is the event time, then the sequence index, then the place in the input.

Axes: E events of a part, U user rows, I item codes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.lib.format import write_array_header_1_0
from numpy.typing import NDArray

from features.events import MICROS
from features.ingest import ORDER
from features.point_in_time import Feature
from features.records import Records, Rows, compressed, stable_order, take

Mask = NDArray[np.bool_]


def starts_of_runs(*columns: NDArray[Any]) -> Mask:
    """Mark the first of each run of equal neighbours, [E]."""
    first = np.ones(len(columns[0]), np.bool_)
    first[1:] = columns[0][1:] != columns[0][:-1]
    for column in columns[1:]:
        first[1:] |= column[1:] != column[:-1]
    return first


def first_of_duplicates(records: Records, order_fields: Sequence[str]) -> Mask:
    """Mark all but repetitions of the same user, item, time, sequence index and type, [E]."""
    kept = np.ones(len(records), np.bool_)
    starts = starts_of_runs(*(records[name] for name in ("user", *order_fields)))
    # Only events at one and the same moment can repeat each other: mostly few.
    tied = ~starts
    tied[:-1] |= ~starts[1:]
    places = np.flatnonzero(tied)
    if not len(places):
        return kept
    group = np.cumsum(starts)[places]
    some = take(records, places)
    order = stable_order([group, some["item"], some["type"]])
    some, group = take(some, order), group[order]
    first = starts_of_runs(group, some["item"], some["type"])
    kept[places[order[~first]]] = False
    return kept


def latest_of_users(users: NDArray[np.uint32], limit: int) -> Mask:
    """Mark each user's last ``limit`` events, [E]; users are contiguous."""
    starts = np.flatnonzero(starts_of_runs(users))
    lengths = np.diff(np.append(starts, len(users)))
    if not len(lengths) or lengths.max() <= limit:
        return np.ones(len(users), np.bool_)
    ends = np.repeat(starts + lengths, lengths)
    kept: Mask = np.arange(len(users)) >= ends - limit
    return kept


class Core(NamedTuple):
    """Users and items of the core, and their events."""

    users: Mask
    """[U]"""
    items: Mask
    """[I]"""
    user_counts: Rows
    """[U]"""


def k_core(
    count: Callable[[Mask, Mask], tuple[Rows, Rows]],
    user_counts: Rows,
    item_counts: Rows,
    min_user_events: int,
    min_item_events: int,
) -> Core:
    """Drop users and items with too few events until all that are left have enough.

    Args:
        count: Counts the events of each user [U] and item [I] that two masks keep.
        user_counts: Events of each user before any is dropped, [U].
        item_counts: Events of each item, [I].
    """
    min_user_events, min_item_events = max(1, min_user_events), max(1, min_item_events)
    while True:
        users, items = user_counts >= min_user_events, item_counts >= min_item_events
        if users[user_counts > 0].all() and items[item_counts > 0].all():
            return Core(users, items, user_counts)
        user_counts, item_counts = count(users, items)


@dataclass(frozen=True)
class NpyFile:
    """A one-dimensional .npy of known length, written in parts in any order."""

    path: Path
    length: int
    dtype: str = "<i8"

    def create(self) -> None:
        """Write the header and make room."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        header = {
            "descr": np.dtype(self.dtype).str, "fortran_order": False, "shape": (self.length,)
        }  # fmt: skip
        with self.path.open("wb") as file:
            write_array_header_1_0(file, header)
            file.truncate(file.tell() + self.length * np.dtype(self.dtype).itemsize)

    def write(self, place: int, values: Rows) -> None:
        """Put values at [place, place + E)."""
        dtype = np.dtype(self.dtype)
        with self.path.open("r+b") as file:
            file.seek((place - self.length) * dtype.itemsize, 2)
            file.write(np.ascontiguousarray(values, dtype).data)


class Ordered(NamedTuple):
    """Sorted events of some users, and how many were dropped."""

    records: Records
    num_duplicates: int
    num_over_cap: int


def order_fields(records: Records) -> list[str]:
    """List the fields that order a user's events."""
    return [name for name in ("time", ORDER) if name in (records.dtype.names or ())]


def in_given_order(records: Records, max_user_events: int | None) -> Ordered:
    """Sort events by user and moment, drop repetitions, cap the longest histories.

    Args:
        records: All events of some users, in the order of the input, [E].
    """
    fields = order_fields(records)
    order = stable_order([np.ascontiguousarray(records[name]) for name in ("user", *fields)])
    ordered = take(records, order)
    first = first_of_duplicates(ordered, fields)
    num_duplicates = len(ordered) - int(np.count_nonzero(first))
    if num_duplicates:
        ordered = compressed(ordered, first)
    num_over_cap = 0
    if max_user_events is not None:
        latest = latest_of_users(ordered["user"], max_user_events)
        num_over_cap = len(ordered) - int(np.count_nonzero(latest))
        if num_over_cap:
            ordered = compressed(ordered, latest)
    return Ordered(ordered, num_duplicates, num_over_cap)


class HistoryPart(NamedTuple):
    """A part of the sequences, ready to be written."""

    item_rows: Rows
    types: Rows
    """Codes of the events' types."""
    seconds: Rows | None
    context: dict[str, Rows]
    num_events: int


def sequence_part(records: Records, features: tuple[Feature, ...]) -> HistoryPart:
    """Build sequences of whole users' events.

    Args:
        records: Sorted events with dense rows, [E].
    """
    has_time = "time" in (records.dtype.names or ())
    seconds = records["time"] // MICROS if has_time else None
    moments = records[ORDER] if seconds is None else seconds
    frame = pl.DataFrame({"user_row": records["user"].astype(np.int64), "event_time": moments})
    context = frame.lazy().select(f.expression.alias(f.name) for f in features).collect()
    values = {name: context[name].to_numpy() for name in context.columns}
    items = records["item"].astype(np.int64)
    return HistoryPart(items, records["type"], seconds, values, len(records))
