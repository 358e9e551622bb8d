"""Spilled events to every user's sequence, written front to back without holding them all.

Users are cut into ranges of neighbouring rows with about equally many events. Each range is
gathered from the buckets, laid out in its final order, and appended to the output files, so peak
memory is one range.

Axes: E events, R events of a range, U user rows.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.lib.format import write_array_header_1_0
from numpy.typing import NDArray

from features.point_in_time import FEATURES, Feature
from features.schema import TieOrder
from features.spill import Spill
from features.splits import Ends

Rows = NDArray[np.int64]
MICROS = 1_000_000

ROW_DTYPE = np.dtype([("user", np.int64), ("item", np.int64), ("time", np.int64)])


@dataclass(frozen=True)
class RowMaps:
    """Codes to dense rows, 0 for what the k-core dropped."""

    user_rows: Rows
    item_rows: Rows
    offsets: Rows
    """First event of each user row, [U + 1]; row 0 has none."""


class NpyAppender:
    """Writes a one-dimensional .npy piece by piece; its length is known from the start."""

    def __init__(self, path: Path, length: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("wb")
        header = {"descr": "<i8", "fortran_order": False, "shape": (length,)}
        write_array_header_1_0(self._file, header)

    def append(self, values: Rows) -> None:
        np.ascontiguousarray(values, np.int64).tofile(self._file)

    def close(self) -> None:
        self._file.close()


def gathered_ranges(
    spill: Spill, maps: RowMaps, directory: Path, events_per_range: int
) -> Iterator[tuple[int, int, NDArray[Any]]]:
    """Yield each range of user rows with its events in sequence order.

    Yields:
        First row, end row, and the events with dense rows, ordered by user and then as
        ``spill`` ordered them.
    """
    directory.mkdir(parents=True, exist_ok=True)
    total = int(maps.offsets[-1])
    num_ranges = max(1, -(-total // events_per_range))
    cuts = np.searchsorted(maps.offsets, np.linspace(0, total, num_ranges + 1)[1:-1])
    bounds = np.unique(np.concatenate([[0], cuts, [len(maps.offsets) - 1]]))
    for _, events in spill.buckets():
        rows = np.empty(len(events), ROW_DTYPE)
        rows["user"] = maps.user_rows[events["user"]]
        rows["item"] = maps.item_rows[events["item"]]
        rows["time"] = events["time"]
        rows = rows[(rows["user"] > 0) & (rows["item"] > 0)]
        if len(bounds) == 2:
            _append(directory / "0", rows)
            continue
        numbers = np.searchsorted(bounds, rows["user"], side="right") - 1
        order = np.argsort(numbers.astype(np.uint16), kind="stable")
        ends = np.cumsum(np.bincount(numbers, minlength=len(bounds) - 1))
        for number, part in enumerate(np.split(rows[order], ends[:-1])):
            _append(directory / str(number), part)
    for number in range(len(bounds) - 1):
        path = directory / str(number)
        events = np.fromfile(path, ROW_DTYPE) if path.exists() else np.empty(0, ROW_DTYPE)
        path.unlink(missing_ok=True)
        first, end = int(bounds[number]), int(bounds[number + 1])
        yield first, end, _in_row_order(events, maps.offsets[first : end + 1])
    shutil.rmtree(directory, ignore_errors=True)


def _append(path: Path, events: NDArray[Any]) -> None:
    with path.open("ab") as file:
        events.tofile(file)


def _in_row_order(events: NDArray[Any], offsets: Rows) -> NDArray[Any]:
    """Move each user's events, contiguous already, to where the user's row begins."""
    if not len(events):
        return events
    users = events["user"]
    first = np.ones(len(users), np.bool_)
    first[1:] = users[1:] != users[:-1]
    starts = np.flatnonzero(first)
    lengths = np.diff(np.append(starts, len(users)))
    # Users of one range: their places follow from the order of their rows.
    by_row = np.argsort(users[starts], kind="stable")
    target = np.empty(len(starts), np.int64)
    target[by_row] = np.cumsum(lengths[by_row]) - lengths[by_row]
    assert target.max() + lengths[target.argmax()] == offsets[-1] - offsets[0]
    ordered = np.empty_like(events)
    ordered[np.arange(len(users)) + np.repeat(target - starts, lengths)] = events
    return ordered


def _hashed(values: Rows, seed: int) -> NDArray[np.uint64]:
    """Mix integers into uniformly spread ones (splitmix64)."""
    with np.errstate(over="ignore"):
        mixed = values.astype(np.uint64) + np.uint64(seed + 1) * np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        return mixed ^ (mixed >> np.uint64(31))


def shuffled_ties(events: NDArray[Any], seed: int) -> NDArray[Any]:
    """Put a user's events of one and the same time into a seeded random order."""
    tie = _hashed(events["user"], seed) ^ _hashed(events["item"], seed + 1)
    keys = pl.DataFrame({"user": events["user"], "time": events["time"], "tie": tie})
    order = keys.with_row_index("place").sort("user", "time", "tie", "place")["place"].to_numpy()
    ordered: NDArray[Any] = events[order]
    return ordered


def context_columns(users: Rows, seconds: Rows, features: Sequence[Feature]) -> pl.DataFrame:
    """Compute features of events ordered by user and time."""
    frame = pl.DataFrame({"user_row": users, "event_time": seconds})
    return (
        frame.lazy()
        .select(feature.expression.alias(feature.name) for feature in features)
        .collect()
    )


@dataclass
class SequenceWriter:
    """Output files of one tie order."""

    directory: Path
    order: TieOrder
    has_times: bool
    features: tuple[Feature, ...]
    seed: int
    num_events: int

    def __post_init__(self) -> None:
        self._files = {"item_rows": self._file("item_rows")}
        if self.has_times:
            self._files["times"] = self._file("times")
        for feature in self.features:
            self._files[feature.name] = self._file(f"context/{feature.name}")

    def _file(self, name: str) -> NpyAppender:
        return NpyAppender(self.directory / f"{name}.npy", self.num_events)

    def append(self, events: NDArray[Any]) -> None:
        if self.order == "shuffled":
            events = shuffled_ties(events, self.seed)
        seconds = events["time"] // MICROS
        self._files["item_rows"].append(events["item"])
        if self.has_times:
            self._files["times"].append(seconds)
        moments = seconds if self.has_times else np.arange(len(events))
        context = context_columns(events["user"], moments, self.features)
        for name in context.columns:
            self._files[name].append(context[name].to_numpy())

    def close(self, offsets: Rows, ends: Ends) -> None:
        """Finish the files and add where users begin and their splits end (counts per row)."""
        for file in self._files.values():
            file.close()
        np.save(self.directory / "offsets.npy", offsets)
        np.save(self.directory / "train_end.npy", offsets[:-1] + ends.train)
        np.save(self.directory / "validation_end.npy", offsets[:-1] + ends.validation)


def usable_features(names: Sequence[str], *, has_times: bool) -> tuple[Feature, ...]:
    """Pick context features by name, those that need a time only where there is one.

    Raises:
        ValueError: If there is no feature of a name.
    """
    for name in names:
        if name not in FEATURES:
            raise ValueError(
                f"no context feature {name!r}; there are {', '.join(sorted(FEATURES))}"
            )
    chosen: Mapping[str, Feature] = {name: FEATURES[name] for name in names}
    return tuple(f for f in chosen.values() if has_times or not f.needs_time)
