"""The request log of an online store: read once in the background, then only what is new.

Hours are read from the newest back, so that a page shows the last ones at once. Lists of the last
minute may arrive later than others behind them (`SETTLED_MS`), so these are read once more. Of a
long log the newest `MAX_LISTS` are kept in memory.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

import polars as pl

from pipelines.dashboard.cache import Stamp, stamp_of
from pipelines.dashboard.context import Context
from pipelines.dashboard.service.columns import EMPTY, Columns, columns_of, counts_of, joined
from pipelines.dashboard.workspaces.files import names_in
from pipelines.experiments.collected import EVENTS as CLICKS
from pipelines.inputs.online_events import SETTLED_MS
from pipelines.inputs.opened_store import opened
from serving.online.opening import SQLITE
from serving.online.store import OnlineStore, RequestRecord, StoreError

EVENTS_FILE = "events.db"
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
LISTS_AT_ONCE, EVENTS_AT_ONCE = 20_000, 20_000
MAX_LISTS = 2_000_000
"""Least number of lists that are kept, in at most an hour more; a million takes about 100 MB."""
MAX_PARTS = 50
"""Of an hour, before they are put together."""
PATIENCE_SECONDS = 0.2
"""How long a page waits for what is not read yet."""
_FILE = re.compile(r"requests-(\d{4}-\d\d-\d\d)\.db")
CLICKED = pl.Schema({**CLICKS, "event_type": pl.String()})
"""Events that name a list."""


@dataclass(frozen=True, kw_only=True)
class Logged:
    """What is read of a log so far."""

    columns: Columns = EMPTY
    events: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=CLICKED))
    number: int = 0
    """Grows with each change."""
    is_reading: bool = False
    """Whether older lists are missing, because they are being read."""
    is_cut: bool = False
    """Whether older lists are left out, because there are too many."""
    since_ms: int | None = None
    """Time of the oldest that is read; while more are being read, some before it are missing."""
    fault: str = ""
    """Why the rest cannot be read, in words."""
    as_of_ms: int = 0

    @cached_property
    def counts(self) -> pl.DataFrame:
        """Lists by minute, see `counts_of`."""
        return counts_of(self.columns.lists)


@dataclass
class _Hour:
    """Lists of an hour: those that are settled, and the latest, which are read once more."""

    settled: list[Columns] = field(default_factory=list)
    latest: Columns = EMPTY
    last_id: str = ""
    """Of the settled ones."""

    def is_empty(self) -> bool:
        """Whether no list of it was found, or none is kept."""
        return not self.settled and self.latest.lists.is_empty()

    def num_lists(self) -> int:
        """Count the lists that are kept."""
        return sum(part.lists.height for part in (*self.settled, self.latest))


@dataclass
class _Day:
    """The file of a day."""

    stamp: Stamp = ()
    """Of what was read to its end."""
    hours: dict[int, _Hour] = field(default_factory=dict)
    """By their begin; those that are read, with lists or without."""


class RequestLog:
    """Reads the folder of one store; safe for several threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._days: dict[str, _Day] = {}
        self._events: list[pl.DataFrame] = []
        self._place = 0
        self._events_stamp: Stamp | None = None
        self._shown = Logged()
        self._is_whole = False
        self._is_cut = False
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def now(self, patience_seconds: float = PATIENCE_SECONDS) -> Logged:
        """Return what is read, and read on in the background where there is more."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                if not self._has_changed():
                    return self._shown
                self._thread = threading.Thread(target=self._read, daemon=True, name="request log")
                self._thread.start()
            thread = self._thread
        thread.join(patience_seconds)
        return self._shown if self._is_whole else replace(self._shown, is_reading=True)

    def _stamps(self) -> dict[str, Stamp]:
        found = {}
        for name in names_in(self._folder):
            if (day := _FILE.fullmatch(name)) is not None:
                found[day[1]] = self._stamp(name)
        return found

    def _stamp(self, name: str) -> Stamp:
        path = self._folder / name
        # Whoever reads makes a log of SQLite, which is empty.
        return tuple(one for one in stamp_of((path, Path(f"{path}-wal"))) if one[2])

    def _has_changed(self) -> bool:
        known = {day: one.stamp for day, one in self._days.items()}
        return known != self._stamps() or self._events_stamp != self._stamp(EVENTS_FILE)

    def _read(self) -> None:
        faults: list[str] = []
        try:
            with opened(f"{SQLITE}{self._folder}") as store:
                for name, stamp in sorted(self._stamps().items(), reverse=True):
                    try:
                        self._read_day(store, name, stamp)
                    except StoreError as error:
                        faults.append(str(error))
                self._read_events(store)
        except Exception as error:
            faults.append(str(error))
        self._show(is_done=True, faults=faults)
        self._is_whole = True

    def _read_day(self, store: OnlineStore, name: str, stamp: Stamp) -> None:
        day = self._days.setdefault(name, _Day())
        if day.stamp == stamp:
            return
        # A file that cannot be read is tried once more when it has changed.
        day.stamp = stamp
        begin_ms = int(datetime.fromisoformat(name).replace(tzinfo=UTC).timestamp() * 1_000)
        known = [begin for begin, hour in day.hours.items() if not hour.is_empty()]
        latest_ms = max(known, default=begin_ms) - SETTLED_MS
        for hour_ms in range(begin_ms + DAY_MS - HOUR_MS, begin_ms - 1, -HOUR_MS):
            # What was read of earlier hours is settled.
            if hour_ms < self._begin_ms():
                day.hours.setdefault(hour_ms, _Hour())
            elif hour_ms not in day.hours or hour_ms + HOUR_MS > latest_ms:
                hour = day.hours.get(hour_ms, _Hour())
                self._read_hour(store, hour, hour_ms)
                day.hours[hour_ms] = hour
                self._drop_oldest()

    def _read_hour(self, store: OnlineStore, hour: _Hour, hour_ms: int) -> None:
        waiting: list[RequestRecord] = []
        last_id = hour.last_id
        while records := store.requests_between(hour_ms, hour_ms + HOUR_MS, LISTS_AT_ONCE, last_id):
            last_id = records[-1].request_id
            settled_ms = records[-1].time_ms - SETTLED_MS
            waiting += records
            done = [record for record in waiting if record.time_ms < settled_ms]
            if done:
                waiting = waiting[len(done) :]
                hour.settled.append(columns_of(done))
                hour.last_id = done[-1].request_id
            hour.latest = columns_of(waiting)
            self._show()
        if len(hour.settled) > MAX_PARTS:
            hour.settled = [joined(hour.settled)]

    def _hours(self) -> list[tuple[int, _Hour]]:
        """List the hours that have lists, by their begin."""
        hours = [one for day in self._days.values() for one in day.hours.items()]
        return sorted((one for one in hours if not one[1].is_empty()), key=lambda one: one[0])

    def _begin_ms(self) -> int:
        """Begin of the oldest hour that is kept, if older ones are left out; else 0."""
        hours = self._hours() if self._is_cut else []
        return hours[0][0] if hours else 0

    def _drop_oldest(self) -> None:
        """Drop the oldest parts that `MAX_LISTS` can do without."""
        hours = [hour for _, hour in self._hours()]
        extra = sum(hour.num_lists() for hour in hours) - MAX_LISTS
        for hour in hours:
            while hour.settled and extra >= (number := hour.settled[0].lists.height):
                del hour.settled[0]
                extra -= number
                self._is_cut = True
            if hour.settled or extra < (number := hour.latest.lists.height):
                return
            hour.latest = EMPTY
            extra -= number

    def _read_events(self, store: OnlineStore) -> None:
        stamp = self._stamp(EVENTS_FILE)
        since_ms = self._begin_ms()
        while events := store.events_after(self._place, EVENTS_AT_ONCE):
            self._place = events[-1][0]
            rows = [
                (event.request_id, event.received_ms, event.event_type)
                for _, event in events
                if event.request_id is not None and event.received_ms >= since_ms
            ]
            self._events.append(pl.DataFrame(rows, schema=CLICKED, orient="row"))
        if since_ms:
            kept = pl.concat([pl.DataFrame(schema=CLICKED), *self._events])
            self._events = [kept.filter(pl.col("received_ms") >= since_ms)]
        self._events_stamp = stamp

    def _show(self, *, is_done: bool = False, faults: Sequence[str] = ()) -> None:
        gone = self._days.keys() - self._stamps().keys() if is_done else ()
        for day in gone:
            del self._days[day]
        hours = [hour for day in self._days.values() for hour in day.hours.values()]
        columns = joined([part for hour in hours for part in (*hour.settled, hour.latest)])
        times = columns.lists["time_ms"]
        if is_done:
            lists = columns.lists.sort("time_ms")
            columns = columns._replace(lists=lists, sources=columns.sources.rechunk())
        shown = Logged(
            columns=columns,
            events=pl.concat([pl.DataFrame(schema=CLICKED), *self._events]),
            number=self._shown.number + 1,
            is_cut=self._is_cut,
            since_ms=None if times.is_empty() else int(times.min()),  # type: ignore[arg-type]
            fault="; ".join(faults),
            as_of_ms=int(1_000 * datetime.now(UTC).timestamp()),
        )
        if is_done:
            # Here, where nobody waits for it.
            _ = shown.counts
        self._shown = shown


def request_log(context: Context, folder: Path) -> RequestLog:
    """Return the log of a folder, the same one each time."""
    return context.cache.get(("request log", str(folder)), (), lambda: RequestLog(folder))
