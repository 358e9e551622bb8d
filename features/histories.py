"""Users' histories: events sorted by user and moment, written as one sequence per user.

    given      event time, then sequence index, then place in the input
    shuffled   event time (sequence index where there are no times), then a seeded hash

Where the files' order within one time is not the users' own (times of day resolution), results
that differ between the two orders rest on that order alone.

Axes: E events of a part, U user rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.lib.format import write_array_header_1_0

from features.counts import first_of_duplicates, latest_of_users, starts_of_runs
from features.encoding import hashed
from features.events import MICROS
from features.ingest import ORDER
from features.point_in_time import Feature
from features.records import Records, Rows, compressed, stable_order, take
from features.schema import TieOrder


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


def shuffled_order(records: Records, seed: int) -> Rows:
    """Permute sorted events such that those of one user and time are in a seeded order, [E].

    The order depends on the user's and the item's row and the seed, not on the input's order.
    """
    fields = order_fields(records)[:1]
    starts = starts_of_runs(records["user"], *(records[name] for name in fields))
    tied = ~starts
    tied[:-1] |= ~starts[1:]
    places = np.flatnonzero(tied)
    order = np.arange(len(records))
    if len(places):
        some = take(records, places)
        mixed = hashed(hashed(some["user"], seed) ^ some["item"], seed)
        order[places] = places[np.lexsort((some["item"], mixed, np.cumsum(starts)[places]))]
    return order


class HistoryPart(NamedTuple):
    """A part of the sequences of every tie order, ready to be written."""

    item_rows: dict[TieOrder, Rows]
    types: dict[TieOrder, Rows]
    """Codes of the events' types."""
    seconds: Rows | None
    context: dict[str, Rows]
    num_events: int


def sequence_part(
    records: Records, tie_orders: tuple[TieOrder, ...], features: tuple[Feature, ...], seed: int
) -> HistoryPart:
    """Build sequences of whole users' events.

    Times and features of the moment do not depend on the order of ties, so they are made once.

    Args:
        records: Sorted events with dense rows, [E].
    """
    items = records["item"].astype(np.int64)
    item_rows, types = dict[TieOrder, Rows](), dict[TieOrder, Rows]()
    for order in tie_orders:
        places = slice(None) if order == "given" else shuffled_order(records, seed)
        item_rows[order], types[order] = items[places], records["type"][places]
    has_time = "time" in (records.dtype.names or ())
    seconds = records["time"] // MICROS if has_time else None
    moments = records[ORDER] if seconds is None else seconds
    frame = pl.DataFrame({"user_row": records["user"].astype(np.int64), "event_time": moments})
    context = frame.lazy().select(f.expression.alias(f.name) for f in features).collect()
    values = {name: context[name].to_numpy() for name in context.columns}
    return HistoryPart(item_rows, types, seconds, values, len(records))
