"""Event files to a flat file of integer records, in one pass and one batch at a time.

Bad rows go to the quarantine; events that the configuration does not count are dropped and
counted; impressions go to a file of their own. The records are in the order of the input.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from features.encoding import MISSING, Codes, Dictionary
from features.events import REASONS, check_types, had_value, reason_code, typed_columns
from features.forget_list import NOBODY
from features.people import FORGOTTEN, ForgottenUsers
from features.reading.scan import batches, naming, renamed, scan_file
from features.records import RecordFile, Records, Rows, compressed
from features.report import Quarantine
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
    USER_ID,
    VALUE,
    FilterConfig,
    SourceConfig,
)

DEFAULT_TYPE = "event"
"""Type of all events where the files have no such column."""
SHOWN_TYPE = "shown, no part of histories"
RECORDS, SHOWN = "records", "shown"
"""Files of a partition; impressions are a folder of tables."""
SHOWN_COLUMNS = (USER_ID, ITEM_ID, EVENT_TIME, REQUEST_ID)
UNKNOWN_ITEM = "item_id of an online event is in neither the catalogue nor the event files"
NO_SEQUENCE = np.iinfo(np.int64).min
"""Sentinel for a missing sequence index."""
ORDER = "sequence"
"""Field of the records with the ``sequence_index``."""
NO_SLOT = -1


class Field(NamedTuple):
    """How records hold an optional column of the events."""

    column: str
    dtype: str
    missing: float
    """Sentinel for a missing value (for text columns: its dictionary code)."""


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


TEXT_FIELDS = {
    "user": USER_ID,
    "item": ITEM_ID,
    "type": EVENT_TYPE,
    "domain": DOMAIN,
    "session": SESSION_ID,
    "request": REQUEST_ID,
}
"""Column of each field that records hold as codes."""


def record_dtype(optional: Collection[str]) -> np.dtype[Any]:
    """Build the type of a record: codes of user, item, type and the optional fields of the data."""
    fields: list[tuple[str, str]] = [("user", "<u4"), ("item", "<u4"), ("type", "<u4")]
    known = [(name, one.dtype) for name, one in OPTIONAL_FIELDS.items() if name in optional]
    return np.dtype(fields + known)


@dataclass(frozen=True)
class EventFile:
    """One opened event file."""

    path: Path
    frame: pl.LazyFrame
    schema: pl.Schema
    """Types of its event columns."""

    @classmethod
    def open(cls, path: Path, source: SourceConfig) -> EventFile:
        """Scan a file."""
        frame = renamed(scan_file(path, source), path, source, (USER_ID, ITEM_ID))
        schema = frame.collect_schema()
        known = pl.Schema({n: t for n, t in schema.items() if n in EVENT_COLUMNS})
        check_types(path, known)
        return cls(path, frame, known)

    def batches(
        self, source: SourceConfig, filters: FilterConfig, now: datetime
    ) -> Iterator[tuple[int, pl.DataFrame, pl.DataFrame]]:
        """Read batches with their first row, as they are and with typed columns and ``reason``."""
        columns = typed_columns(self.schema, source)
        reason = reason_code(self.schema, now)
        notes = had_value(self.schema)
        for first_row, batch in batches(self.frame, self.path):
            with naming(self.path, first_row):
                typed = batch.lazy().select(*columns, *notes).with_columns(reason).collect()
            yield first_row, batch, typed


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


class EventReader:
    """Turns batches into records; the state of one pass over the files of a partition."""

    def __init__(
        self, folder: Path, filters: FilterConfig, fields: Collection[str], now: datetime
    ) -> None:
        dtype = record_dtype(fields)
        self.filters, self.now = filters, now
        self.records = RecordFile(folder / RECORDS, dtype)
        self.shown = folder / SHOWN
        self.quarantine = Quarantine(folder / "quarantine")
        self.texts = {name: Dictionary(column) for name, column in TEXT_FIELDS.items()}
        self.user_counts: Rows = np.zeros(0, np.int64)
        self.dropped = Counter[str]()
        self.rows_in = self.num_bad = 0
        self.min_time: int | None = None
        self.online = False
        """True if a server collected the events."""
        self.known_items: pl.Series | None = None
        """Online events on other items are rejected; None accepts all."""
        self.forgotten = ForgottenUsers(NOBODY)

    def read(self, path: Path, source: SourceConfig) -> None:
        """Read a file."""
        file = EventFile.open(path, source)
        with ThreadPoolExecutor(1) as pool:
            for first_row, batch, typed in file.batches(source, self.filters, self.now):
                # The two dictionaries take most of the time, and do not touch each other.
                coded = pool.submit(self.texts["item"].encode, typed[ITEM_ID])
                users, items = self.texts["user"].encode(typed[USER_ID]), coded.result()
                good = self._usable(path, first_row, batch, typed, users, items)
                self._append(typed, users, items, good)

    def _usable(
        self,
        path: Path,
        first_row: int,
        batch: pl.DataFrame,
        typed: pl.DataFrame,
        users: Codes,
        items: Codes,
    ) -> NDArray[np.bool_]:
        """Mark the rows that can be used, and put the others into the quarantine, [E]."""
        user_texts, item_texts = self.texts["user"], self.texts["item"]
        bad_user, bad_item = user_texts.reason_codes(users), item_texts.reason_codes(items)
        bad_event = typed["reason"].to_numpy()
        good: NDArray[np.bool_] = (bad_user | bad_item | bad_event) == 0
        self.rows_in += batch.height
        bad = ~good
        if self.forgotten:
            # Not even the quarantine has their rows.
            times = typed[EVENT_TIME] if EVENT_TIME in typed.columns else None
            gone = self.forgotten.events(user_texts, users, times)
            self.dropped[FORGOTTEN] += int(np.count_nonzero(gone))
            good, bad = good & ~gone, bad & ~gone

        def set_aside(rows: NDArray[np.intp], reasons: list[str]) -> None:
            self.quarantine.add(path, pl.Series(rows + first_row), pl.Series(reasons), batch[rows])

        rows = np.flatnonzero(bad)
        if len(rows):
            self.num_bad += len(rows)
            reasons = [
                user_texts.reason(bad_user[row])
                if bad_user[row]
                else item_texts.reason(bad_item[row])
                if bad_item[row]
                else REASONS[bad_event[row] - 1]
                for row in rows
            ]
            set_aside(rows, reasons)
        if self.online and self.known_items is not None:
            # Clients may send anything: this is counted, and stops no run as bad files do.
            known = typed[ITEM_ID].fill_null("").is_in(self.known_items.implode()).to_numpy()
            unknown = np.flatnonzero(good & ~known)
            set_aside(unknown, [UNKNOWN_ITEM] * len(unknown))
            good[unknown] = False
        return good

    def _append(
        self, typed: pl.DataFrame, users: Codes, items: Codes, good: NDArray[np.bool_]
    ) -> None:
        records = np.empty(typed.height, self.records.dtype)
        records["user"], records["item"] = users, items
        if EVENT_TYPE in typed.columns:
            records["type"] = self.texts["type"].encode(typed[EVENT_TYPE])
        else:
            records["type"] = self.texts["type"].encode(pl.Series([DEFAULT_TYPE]))[0]
        fields = records.dtype.names or ()
        for name, (column, _, missing) in OPTIONAL_FIELDS.items():
            if name not in fields:
                continue
            if column not in typed.columns:
                records[name] = missing
            elif name in self.texts:
                records[name] = self.texts[name].encode(typed[column])
            else:
                records[name] = typed[column].fill_null(missing).to_numpy()
        if self.filters.shown_types:
            shown = good & self._of_types(records, self.filters.shown_types)
            self._keep_shown(typed.filter(pl.Series(shown)))
            good &= ~shown
        good &= self._counted(records, good)
        kept = compressed(records, good)
        self.records.append(kept)
        counts = np.bincount(kept["user"], minlength=len(self.user_counts))
        counts[: len(self.user_counts)] += self.user_counts
        self.user_counts = counts
        if "time" in fields and len(kept):
            earliest = int(kept["time"].min())
            self.min_time = earliest if self.min_time is None else min(self.min_time, earliest)

    def _keep_shown(self, shown: pl.DataFrame) -> None:
        """Write the impressions of a batch to a table; they need times to be of any use."""
        if shown.height and EVENT_TIME in shown.columns:
            columns = [name for name in SHOWN_COLUMNS if name in shown.columns]
            self.shown.mkdir(exist_ok=True)
            path = self.shown / f"part-{self.dropped[SHOWN_TYPE]:012d}.parquet"
            shown.select(columns).write_parquet(path, compression="lz4")
        self.dropped[SHOWN_TYPE] += shown.height

    def _of_types(self, records: Records, wanted: tuple[str, ...]) -> NDArray[np.bool_]:
        names = self.texts["type"].texts().to_list()
        # A missing type is a bad row; it only must not index beyond the end.
        places = np.minimum(records["type"], len(names) - 1)
        of_types: NDArray[np.bool_] = np.isin(np.array(names), wanted)[places]
        return of_types

    def _counted(self, records: Records, good: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Mark the events that the filters let through, and count those that they do not, [E]."""
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
