"""Histories of each range of users into the files of sequences, and the kept events.

Axes: E kept events, D days from the first on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from features.events import MICROS
from features.histories import Core, NpyFile, sequence_part
from features.parallel import in_order
from features.point_in_time import FEATURES, Feature
from features.preparation.ids import CodesOfAll, Ids, TextColumns
from features.preparation.prepare import Prepared
from features.preparation.ranges import OrderedEvents, RowFiles, UserRange
from features.records import Rows


@dataclass
class Ingested:
    """Prepared partitions, in order, and what became of their rows."""

    parts: list[Prepared]
    texts: TextColumns
    codes: list[CodesOfAll]
    """Changes of codes, one per partition."""
    min_time: int
    """Earliest time in microseconds; 0 without times."""

    @property
    def has_time(self) -> bool:
        return "time" in self.parts[0].fields


@dataclass
class DenseRows:
    """Dense row of each rank, 0 if it was dropped, and the ids by row."""

    of_rank: NDArray[np.uint32]
    """Also of ids without events that an earlier vocabulary had."""
    ids: pl.Series

    @classmethod
    def of(cls, ids: Ids, kept: NDArray[np.bool_]) -> DenseRows:
        """Number kept ids from 1; an earlier vocabulary's ids keep their rows regardless."""
        stays = kept.copy()
        stays[: ids.num_previous] = True
        rows = np.cumsum(stays).astype(np.uint32)
        rows[~stays] = 0
        return cls(rows, ids.ids.filter(stays))


class KeptEvents:
    """The ordered events that the k-core left, with dense rows."""

    def __init__(
        self, ordered: OrderedEvents, core: Core, users: DenseRows, items: DenseRows, scratch: Path
    ) -> None:
        self.ordered = ordered
        self.core = core
        self.users = users
        self.items = items
        counts = np.zeros(len(users.ids) + 1, np.int64)
        counts[users.of_rank[core.users]] = core.user_counts[core.users]
        self.offsets: Rows = np.concatenate([[0], np.cumsum(counts)])
        self.rows = RowFiles(users=scratch / "user_rows.npy", items=scratch / "item_rows.npy")
        np.save(self.rows.users, np.where(core.users, users.of_rank, 0))
        np.save(self.rows.items, np.where(core.items, items.of_rank, 0))

    def places(self) -> list[int]:
        """Return where the kept events of each range of users begin."""
        kept = np.where(self.core.users, self.core.user_counts, 0)
        before = np.concatenate([[0], np.cumsum(kept)])
        return [int(before[one.first_user]) for one in self.ordered.ranges]


EVENT_TYPES = "event_types"
"""File of the rows of the events' types, and key of the types by row, from 1."""

TARGETS, NEGATIVE = "targets", "negative"
MICROS_PER_DAY = 86_400 * MICROS


@dataclass(frozen=True, kw_only=True)
class SequenceFiles:
    """The output files."""

    directory: Path
    features: tuple[str, ...]
    """Names of features of the moment."""
    num_events: int
    has_time: bool
    type_rows: Rows
    """Row of each code of a type; empty where all events are of one type."""
    flags: Mapping[str, NDArray[np.bool_]]
    """Marks of the codes of types: of those that may be held out, and of negative ones."""

    def files(self) -> dict[str, NpyFile]:
        """Describe the files by name."""
        types = {"item_rows": "<i8"}
        for feature in self.chosen():
            # A byte an event for a feature of few categories: most of it would be zeros.
            types[f"context/{feature.name}"] = "|u1" if feature.cardinality <= 256 else "<i8"
        if self.has_time:
            types["times"] = "<i8"
        if len(self.type_rows):
            types[EVENT_TYPES] = "|u1" if self.type_rows.max() < 256 else "<i8"
        types |= dict.fromkeys(self.flags, "|b1")
        return {
            name: NpyFile(self.directory / f"{name}.npy", self.num_events, dtype)
            for name, dtype in types.items()
        }

    def chosen(self) -> tuple[Feature, ...]:
        return tuple(FEATURES[name] for name in self.features)


@dataclass(frozen=True, kw_only=True)
class WrittenSequences:
    """Days and times of a range."""

    day_counts: Rows
    """Kept events of each day from ``first_day`` to the last that has one; without times one."""
    span: tuple[int, int] | None
    """Earliest and latest time in microseconds."""
    type_counts: Counter[int]
    """Kept events of each code of a type."""


def write_sequences(
    placed: tuple[UserRange, int], rows: RowFiles, files: SequenceFiles, first_day: int
) -> WrittenSequences:
    """Write a range's histories from a place on; days are since 1970."""
    given, place = placed
    records = rows.dense(given.read())
    part = sequence_part(records, files.chosen())
    for name, file in files.files().items():
        if name == "item_rows":
            file.write(place, part.item_rows)
        elif name == EVENT_TYPES:
            file.write(place, files.type_rows[part.types])
        elif name in files.flags:
            file.write(place, files.flags[name][part.types].astype(np.int64))
        elif part.seconds is not None and name == "times":
            file.write(place, part.seconds)
        else:
            file.write(place, part.context[Path(name).name])
    codes, numbers = np.unique(records["type"], return_counts=True)
    counts = Counter(dict(zip(codes.tolist(), numbers.tolist(), strict=True)))
    if not files.has_time or not len(records):
        return WrittenSequences(day_counts=np.array([len(records)]), span=None, type_counts=counts)
    days = records["time"] // MICROS_PER_DAY - first_day
    span = int(records["time"].min()), int(records["time"].max())
    return WrittenSequences(day_counts=np.bincount(days), span=span, type_counts=counts)


def write_all_sequences(
    ranges: Sequence[UserRange],
    places: Sequence[int],
    rows: RowFiles,
    files: SequenceFiles,
    first_day: int,
) -> list[WrittenSequences]:
    """Write all histories; places are those of the first kept event of each range."""
    for file in files.files().values():
        file.create()
    task = partial(write_sequences, rows=rows, files=files, first_day=first_day)
    return list(in_order(task, zip(ranges, places, strict=True)))
