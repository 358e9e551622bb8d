"""Users' histories: events sorted by user and moment, written as one sequence per user.

Their order is the event time, then the sequence index, then the place in the input.

Axes: E events of a part, U user rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.lib.format import write_array_header_1_0

from features.counts import first_of_duplicates, latest_of_users
from features.events import MICROS
from features.ingest import ORDER
from features.point_in_time import Feature
from features.records import Records, Rows, compressed, stable_order, take


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
