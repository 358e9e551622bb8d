"""Event files to a flat file of integer records, in one pass and one batch at a time.

Bad rows go to the quarantine; events that the configuration does not count are dropped and
counted; impressions go to a file of their own. The records stand in the order of the input.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from features.encoding import MISSING, Dictionary
from features.events import REASONS, check_types, had_value, reason_code, typed_columns
from features.forget_list import ForgetList
from features.people.forgotten import FORGOTTEN, ForgottenUsers
from features.quarantine import Quarantine
from features.records import RecordFile, Rows, compressed
from features.scan import batches, naming, renamed, scan_file
from features.schema import (
    DOMAIN,
    EVENT_COLUMNS,
    EVENT_TIME,
    EVENT_TYPE,
    ITEM_ID,
    PROPENSITY,
    REQUEST_ID,
    SEQUENCE_INDEX,
    SESSION_ID,
    SLOT,
    TEXT_COLUMNS,
    USER_ID,
    VALUE,
    FilterConfig,
    SourceConfig,
)

DEFAULT_TYPE = "event"
"""Type of all events where the files have no such column."""
SHOWN = "shown, no part of histories"
UNKNOWN_ITEM = "item_id of an online event is in neither the catalogue nor the event files"


NO_SEQUENCE = np.iinfo(np.int64).min
ORDER = "sequence"
"""Field of the records that holds ``sequence_index``."""
"""Stands for a missing sequence index where there is an event time."""
NO_SLOT = -1


class Field(NamedTuple):
    """How records hold an optional column of the events."""

    column: str
    dtype: str
    missing: float
    """Stands for a missing value; of a text, its code."""


OPTIONAL_FIELDS = {
    "time": Field(EVENT_TIME, "<i8", 0),
    ORDER: Field(SEQUENCE_INDEX, "<i8", NO_SEQUENCE),
    "value": Field(VALUE, "<f8", np.nan),
    "domain": Field(DOMAIN, "<u4", int(MISSING)),
    "session": Field(SESSION_ID, "<u4", int(MISSING)),
    "request": Field(REQUEST_ID, "<u4", int(MISSING)),
    "slot": Field(SLOT, "<i4", NO_SLOT),
    "propensity": Field(PROPENSITY, "<f8", np.nan),
}


def record_dtype(optional: Collection[str]) -> np.dtype[Any]:
    """Lay out an event: codes of user, item, type and those of OPTIONAL_FIELDS the data has."""
    fields: list[tuple[str, str]] = [("user", "<u4"), ("item", "<u4"), ("type", "<u4")]
    known = [(name, one.dtype) for name, one in OPTIONAL_FIELDS.items() if name in optional]
    return np.dtype(fields + known)


@dataclass
class Dictionaries:
    """Codes of every text column of the events."""

    users: Dictionary
    items: Dictionary
    types: Dictionary
    domains: Dictionary
    sessions: Dictionary
    requests: Dictionary

    @classmethod
    def empty(cls) -> Dictionaries:
        return cls(*(Dictionary(name) for name in TEXT_COLUMNS))

    def optional(self) -> dict[str, Dictionary]:
        """Return the dictionaries of the optional fields of records."""
        return {"domain": self.domains, "session": self.sessions, "request": self.requests}


@dataclass(frozen=True)
class EventFile:
    """One opened event file."""

    path: Path
    frame: pl.LazyFrame
    schema: pl.Schema
    """Of the columns of events that it has."""

    @classmethod
    def open(cls, path: Path, source: SourceConfig) -> EventFile:
        """Scan a file."""
        frame = renamed(scan_file(path, source), path, source, (USER_ID, ITEM_ID))
        schema = frame.collect_schema()
        known = pl.Schema({n: t for n, t in schema.items() if n in EVENT_COLUMNS})
        check_types(path, known)
        return cls(path, frame, known)


def open_events(source: SourceConfig) -> list[EventFile]:
    """Open every file of a source."""
    files = [EventFile.open(path, source) for path in source.paths]
    first = files[0]
    for file in files[1:]:
        for name in (EVENT_TIME, EVENT_TYPE):
            if (name in file.schema) != (name in first.schema):
                with_it, without = (file, first) if name in file.schema else (first, file)
                raise ValueError(
                    f"{without.path} has no column {name} but {with_it.path} has one; "
                    "give all event files the same columns"
                )
    return files


@dataclass
class EventReader:
    """Turns batches into records; the state of one pass over the files of a partition."""

    filters: FilterConfig
    quarantine: Quarantine
    records: RecordFile
    shown: RecordFile
    now: datetime
    texts: Dictionaries = field(default_factory=Dictionaries.empty)
    user_counts: Rows = field(default_factory=lambda: np.zeros(0, np.int64))
    dropped: Counter[str] = field(default_factory=Counter)
    rows_in: int = 0
    num_bad: int = 0
    min_time: int | None = None
    online: bool = False
    """Whether what is read was collected online."""
    known_items: pl.Series | None = None
    """Items of which online events may be; None lets all pass."""
    forgotten: ForgottenUsers = field(default_factory=lambda: ForgottenUsers(ForgetList()))
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))

    def read(self, file: EventFile, source: SourceConfig) -> None:
        columns = typed_columns(file.schema, source)
        reason = reason_code(file.schema, self.now)
        notes = had_value(file.schema)
        for first_row, batch in batches(file.frame, file.path):
            with naming(file.path, first_row):
                typed = batch.lazy().select(*columns, *notes).with_columns(reason).collect()
            self._take(file, first_row, batch, typed)

    def _take(
        self, file: EventFile, first_row: int, batch: pl.DataFrame, typed: pl.DataFrame
    ) -> None:
        # The two dictionaries take most of the time of reading, and do not touch each other.
        items_coded = self.pool.submit(self.texts.items.encode, typed[ITEM_ID])
        users, items = self.texts.users.encode(typed[USER_ID]), items_coded.result()
        bad_user = self.texts.users.reason_codes(users)
        bad_item = self.texts.items.reason_codes(items)
        bad_event = typed["reason"].to_numpy()
        good = (bad_user | bad_item | bad_event) == 0
        self.rows_in += batch.height
        bad = ~good
        if self.forgotten:
            # Not even the quarantine has their rows.
            times = typed[EVENT_TIME] if EVENT_TIME in typed.columns else None
            gone = self.forgotten.events(self.texts.users, users, times)
            self.dropped[FORGOTTEN] += int(np.count_nonzero(gone))
            good, bad = good & ~gone, bad & ~gone
        num_bad = int(np.count_nonzero(bad))
        if num_bad:
            self.num_bad += num_bad
            rows = np.flatnonzero(bad)
            reasons = [
                self.texts.users.reason(bad_user[row])
                if bad_user[row]
                else self.texts.items.reason(bad_item[row])
                if bad_item[row]
                else REASONS[bad_event[row] - 1]
                for row in rows
            ]
            raw = batch[rows]
            self.quarantine.add(file.path, pl.Series(rows + first_row), pl.Series(reasons), raw)
        if self.online and self.known_items is not None:
            # Clients may send anything: this is counted, and stops no run as bad files do.
            known = typed[ITEM_ID].fill_null("").is_in(self.known_items.implode()).to_numpy()
            unknown = np.flatnonzero(good & ~known)
            reasons = [UNKNOWN_ITEM] * len(unknown)
            raw = batch[unknown]
            self.quarantine.add(file.path, pl.Series(unknown + first_row), pl.Series(reasons), raw)
            good[unknown] = False
        self._append(typed, users, items, good)

    def _append(
        self,
        typed: pl.DataFrame,
        users: NDArray[np.uint32],
        items: NDArray[np.uint32],
        good: NDArray[np.bool_],
    ) -> None:
        records = np.empty(typed.height, self.records.dtype)
        records["user"], records["item"] = users, items
        if EVENT_TYPE in typed.columns:
            records["type"] = self.texts.types.encode(typed[EVENT_TYPE])
        else:
            records["type"] = self.texts.types.encode(pl.Series([DEFAULT_TYPE]))[0]
        fields, texts = self.records.dtype.names or (), self.texts.optional()
        for name, (column, _, missing) in OPTIONAL_FIELDS.items():
            if name not in fields:
                continue
            if column not in typed.columns:
                records[name] = missing
            elif name in texts:
                records[name] = texts[name].encode(typed[column])
            else:
                records[name] = typed[column].fill_null(missing).to_numpy()
        if self.filters.shown_types:
            shown = good & self._of_types(records, self.filters.shown_types)
            self.shown.append(compressed(records, shown))
            self.dropped[SHOWN] += int(np.count_nonzero(shown))
            good &= ~shown
        good &= self._counted(records, good)
        kept = compressed(records, good)
        self.records.append(kept)
        self._count(kept["user"])
        if "time" in fields and len(kept):
            earliest = int(kept["time"].min())
            self.min_time = earliest if self.min_time is None else min(self.min_time, earliest)

    def _of_types(self, records: NDArray[np.void], wanted: tuple[str, ...]) -> NDArray[np.bool_]:
        names = self.texts.types.texts().to_list()
        # A missing type is a bad row; it only must not index beyond the end.
        places = np.minimum(records["type"], len(names) - 1)
        of_types: NDArray[np.bool_] = np.isin(np.array(names), wanted)[places]
        return of_types

    def _counted(self, records: NDArray[np.void], good: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Mark the events that the filters let through, and note how many it does not."""
        counted = np.ones(len(records), np.bool_)
        types = self.filters.online_types if self.online else self.filters.event_types
        if types or self.online:
            counted = self._of_types(records, types)
            self.dropped["event_type not selected"] += int(np.count_nonzero(good & ~counted))
        if self.filters.min_value is not None and not self.online:
            if "value" not in (self.records.dtype.names or ()):
                raise ValueError(
                    f"min_value = {self.filters.min_value} needs a column value, which no event "
                    "file has; map one to it or leave min_value out"
                )
            enough = records["value"] >= self.filters.min_value
            self.dropped["value below min_value"] += int(np.count_nonzero(good & counted & ~enough))
            counted &= enough
        return counted

    def _count(self, users: NDArray[np.uint32]) -> None:
        found = np.bincount(users, minlength=len(self.user_counts))
        found[: len(self.user_counts)] += self.user_counts
        self.user_counts = found
