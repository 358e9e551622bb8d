"""The request log of an online store, counted by minute: read once, then only new records.

Lists are counted as they are read, so memory grows with the minutes of the log and not with its
lists. Hours are read from the newest back, so that a page shows the last ones at once. Lists of the
last minute may arrive later than others after them (`SETTLED_MS`), so these are read once more.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import reduce
from operator import or_
from pathlib import Path
from typing import NamedTuple

import orjson
import polars as pl

from pipelines.dashboard.context import Context, Stamp, file_stamp
from pipelines.dashboard.workspaces.files import names_in
from pipelines.experiments.collected import EVENTS as CLICKS
from pipelines.experiments.collected import LISTS as ARMS
from pipelines.inputs.online_events import SETTLED_MS
from pipelines.inputs.opened_store import opened
from serving.metrics import DEGRADED_CODES, STAGES
from serving.online.opening import SQLITE
from serving.online.store import OnlineStore, RequestRecord, StoreError

EVENTS_FILE = "events.db"
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
LISTS_AT_ONCE, EVENTS_AT_ONCE = 20_000, 20_000
MAX_ROWS = 2_000_000
"""Lists of experiments, and events, that are kept, the newest; both name single lists."""
MAX_PARTS = 50
"""Parts of an hour before they are added up."""
PATIENCE_SECONDS = 0.2
"""Wait of a page for records that are not read yet."""
LEAST_MS, RATIO = 0.001, 1.05
"""Bounds of the buckets of milliseconds: `LEAST_MS` times powers of `RATIO`."""
_FILE = re.compile(r"requests-(\d{4}-\d\d-\d\d)\.db")
FAILED = ("late_source", "failed_source", "late_stage", "failed_stage", "failed_store")
"""Codes of late or broken parts; every other code names something unknown or missing."""
CODES = (*DEGRADED_CODES, "other")
COUNTS = ("lists", "timed", "late or failed part", "fallback", "no user", *CODES)
_KEYS = {"minute_ms": pl.Int64(), "surface": pl.Categorical()}
LISTS = pl.Schema(
    {
        **_KEYS,
        "bundle": pl.Categorical(),
        "first_ms": pl.Int64(),
        "last_ms": pl.Int64(),
        **dict.fromkeys(COUNTS, pl.Int64()),
    }
)
"""Lists by minute, surface and bundle."""
SOURCES = pl.Schema({**_KEYS, "source": pl.Categorical(), "items": pl.Int64()})
"""Shown items by minute, surface and source."""
TIMES = pl.Schema({**_KEYS, "stage": pl.Enum(STAGES), "bucket": pl.Int16(), "lists": pl.UInt32()})
"""Lists by minute, surface, stage and bucket of the stage's milliseconds."""
CLICKED = pl.Schema({**CLICKS, "event_type": pl.String()})
_DOCUMENT = pl.Schema(
    {
        "unix_ms": pl.Int64(),
        "request_id": pl.String(),
        "bundle": pl.String(),
        "surface": pl.String(),
        "user_id": pl.String(),
        "degraded": pl.List(pl.String()),
        "fallback": pl.String(),
        "items": pl.List(pl.Struct({"source": pl.String()})),
        "timings_ms": pl.Struct({stage: pl.Float64() for stage in STAGES}),
        "experiment": pl.Struct({"name": pl.String(), "arm": pl.String()}),
    }
)


class Counted(NamedTuple):
    """Counts of some lists."""

    lists: pl.DataFrame
    sources: pl.DataFrame
    times: pl.DataFrame
    arms: pl.DataFrame
    """Lists of experiments, as `pipelines.experiments` reads them; users by hashes of their ids."""
    num_unreadable: int = 0


EMPTY = Counted(
    pl.DataFrame(schema=LISTS),
    pl.DataFrame(schema=SOURCES),
    pl.DataFrame(schema=TIMES),
    pl.DataFrame(schema=ARMS),
)


def count_records(records: Sequence[RequestRecord]) -> Counted:
    """Count lists; records that cannot be read are counted and left out."""
    documents, num_unreadable = _parsed([record.document for record in records])
    minute = (pl.col("unix_ms") // MINUTE_MS * MINUTE_MS).alias("minute_ms")
    kinds = [pl.col(name).fill_null("unknown") for name in ("surface", "bundle")]
    degraded = pl.col("degraded")
    has = {code: degraded.list.contains(code).fill_null(False) for code in DEGRADED_CODES}
    has["other"] = degraded.list.set_difference(list(DEGRADED_CODES)).list.len().fill_null(0) > 0
    flags = {
        "lists": pl.col("unix_ms").is_not_null(),
        "timed": pl.col("timings_ms").struct.field("total").is_not_null(),
        "late or failed part": reduce(or_, (has[code] for code in FAILED)),
        "fallback": pl.col("fallback").is_not_null(),
        "no user": pl.col("user_id").is_null(),
        **has,
    }
    lists = documents.group_by(minute, *kinds).agg(
        pl.col("unix_ms").min().alias("first_ms"),
        pl.col("unix_ms").max().alias("last_ms"),
        *(flag.cast(pl.Int64).sum().alias(name) for name, flag in flags.items()),
    )
    sources = (
        documents.select(
            minute,
            kinds[0],
            pl.col("items").list.eval(pl.element().struct.field("source")).alias("source"),
        )
        .explode("source")
        .drop_nulls("source")
        .group_by("minute_ms", "surface", "source")
        .agg(pl.len().alias("items"))
    )
    bucket = (pl.col("ms").clip(LEAST_MS) / LEAST_MS).log(RATIO).floor().alias("bucket")
    times = (
        documents.select(minute, kinds[0], pl.col("timings_ms").struct.unnest())
        .unpivot(index=["minute_ms", "surface"], variable_name="stage", value_name="ms")
        .drop_nulls("ms")
        .group_by("minute_ms", "surface", "stage", bucket)
        .agg(pl.len().alias("lists"))
    )
    arms = documents.filter(pl.col("experiment").is_not_null()).select(
        "request_id",
        pl.when(pl.col("user_id").is_not_null())
        .then(pl.col("user_id").hash().cast(pl.String))
        .alias("user_id"),
        pl.col("experiment").struct.field("name").alias("experiment"),
        pl.col("experiment").struct.field("arm").alias("arm"),
        pl.col("unix_ms").alias("served_ms"),
    )
    return Counted(
        lists.select(*LISTS).cast(LISTS),
        sources.select(*SOURCES).cast(SOURCES),
        times.select(*TIMES).cast(TIMES),
        arms.drop_nulls(["experiment", "arm"]),
        num_unreadable,
    )


def joined(parts: Sequence[Counted], *, adds_up: bool = False) -> Counted:
    """Join counts; several rows of one minute are added up if wanted."""
    lists = pl.concat([part.lists for part in (EMPTY, *parts)])
    sources = pl.concat([part.sources for part in (EMPTY, *parts)])
    times = pl.concat([part.times for part in (EMPTY, *parts)])
    arms = pl.concat([part.arms for part in (EMPTY, *parts)])
    if adds_up:
        lists = lists.group_by("minute_ms", "surface", "bundle").agg(
            pl.col("first_ms").min(), pl.col("last_ms").max(), pl.col(*COUNTS).sum()
        )
        sources = sources.group_by("minute_ms", "surface", "source").agg(pl.col("items").sum())
        times = times.group_by("minute_ms", "surface", "stage", "bucket").agg(pl.col("lists").sum())
    if arms.height > MAX_ROWS:
        arms = arms.sort("served_ms").tail(MAX_ROWS)
    return Counted(lists, sources, times, arms, sum(part.num_unreadable for part in parts))


def quantiles(times: pl.DataFrame, by: Sequence[str], wanted: Mapping[str, float]) -> pl.DataFrame:
    """Estimate quantiles of milliseconds within 5%, and count the lists."""
    groups = list(by)
    summed = times.group_by(*groups, "bucket").agg(pl.col("lists").sum().cast(pl.Float64))
    upto = pl.col("lists").cum_sum()
    found = []
    for name, q in wanted.items():
        rank = q * pl.col("lists").sum()
        inside = ((rank - (upto - pl.col("lists"))) / pl.col("lists")).clip(0, 1)
        value = LEAST_MS * (pl.lit(RATIO) ** (pl.col("bucket") + inside))
        found.append(value.filter(upto >= rank - 1e-9).first().alias(name))
    return (
        summed.sort(*groups, "bucket")
        .group_by(groups, maintain_order=True)
        .agg(*found, pl.col("lists").sum().cast(pl.Int64).alias("lists"))
    )


def _parsed(documents: Sequence[bytes]) -> tuple[pl.DataFrame, int]:
    """Parse JSON in one go; if a document spoils it, one by one."""
    try:
        return _read(documents), 0
    except (pl.exceptions.PolarsError, ValueError):
        whole = [document for document in documents if _is_whole(document)]
        return _read(whole), len(documents) - len(whole)


def _read(documents: Sequence[bytes]) -> pl.DataFrame:
    if not documents:
        return pl.DataFrame(schema=_DOCUMENT)
    return pl.read_ndjson(b"\n".join(documents), schema=_DOCUMENT).drop_nulls("unix_ms")


def _is_whole(document: bytes) -> bool:
    try:
        orjson.loads(document)
        return _read([document]).height == 1
    except (pl.exceptions.PolarsError, ValueError):
        return False


@dataclass(frozen=True, kw_only=True)
class Logged:
    """The part of a log that is read."""

    counted: Counted = EMPTY
    events: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=CLICKED))
    number: int = 0
    is_reading: bool = False
    """True while older lists are being read."""
    fault: str = ""
    """Why the rest cannot be read, in words."""
    as_of_ms: int = 0

    @property
    def num_lists(self) -> int:
        return int(self.counted.lists["lists"].sum())

    @property
    def span(self) -> tuple[int, int] | None:
        """Times of the oldest and newest list; None without any."""
        lists = self.counted.lists
        if lists.is_empty():
            return None
        first, last = lists.select(pl.col("first_ms").min(), pl.col("last_ms").max()).row(0)
        return int(first), int(last)


@dataclass
class _Hour:
    """Lists of an hour: those that are settled, and the latest, which are read once more."""

    settled: list[Counted] = field(default_factory=list)
    latest: Counted = EMPTY
    last_id: str = ""
    """Last of the settled ones."""

    def is_empty(self) -> bool:
        """Return whether it has no list."""
        return not self.settled and self.latest.lists.is_empty()


@dataclass
class _Day:
    """The file of a day."""

    stamp: Stamp = ()
    """State of the file when it was read to its end."""
    hours: dict[int, _Hour] = field(default_factory=dict)
    """By their begin; those that are read, with lists or without."""


class LogReader:
    """Reads the folder of one store; safe for several threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._days: dict[str, _Day] = {}
        self._events = pl.DataFrame(schema=CLICKED)
        self._place = 0
        self._events_stamp: Stamp | None = None
        self._shown = Logged()
        self._is_whole = False
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def now(self, patience_seconds: float = PATIENCE_SECONDS) -> Logged:
        """Return the counts read so far, and read the rest in the background."""
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
        # A reader makes a log of SQLite, which is empty.
        return tuple(one for one in file_stamp((path, Path(f"{path}-wal"))) if one[2])

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
        for gone in self._days.keys() - self._stamps().keys():
            del self._days[gone]
        self._show(faults)
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
            # Hours before the latest one are settled once they are read.
            if hour_ms not in day.hours or hour_ms + HOUR_MS > latest_ms:
                hour = day.hours.get(hour_ms, _Hour())
                self._read_hour(store, hour, hour_ms)
                day.hours[hour_ms] = hour

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
                hour.settled.append(count_records(done))
                hour.last_id = done[-1].request_id
            hour.latest = count_records(waiting)
            if len(hour.settled) > MAX_PARTS:
                hour.settled = [joined(hour.settled, adds_up=True)]
            self._show()
        if hour.settled:
            hour.settled = [joined(hour.settled, adds_up=True)]

    def _read_events(self, store: OnlineStore) -> None:
        stamp, parts = self._stamp(EVENTS_FILE), [self._events]
        while events := store.events_after(self._place, EVENTS_AT_ONCE):
            self._place = events[-1][0]
            rows = [
                (event.request_id, event.received_ms, event.event_type)
                for _, event in events
                if event.request_id is not None
            ]
            parts.append(pl.DataFrame(rows, schema=CLICKED, orient="row"))
        self._events = pl.concat(parts).tail(MAX_ROWS)
        self._events_stamp = stamp

    def _show(self, faults: Sequence[str] = ()) -> None:
        hours = [hour for day in self._days.values() for hour in day.hours.values()]
        self._shown = Logged(
            counted=joined([part for hour in hours for part in (*hour.settled, hour.latest)]),
            events=self._events,
            number=self._shown.number + 1,
            fault="; ".join(faults),
            as_of_ms=int(1_000 * datetime.now(UTC).timestamp()),
        )


def request_log(context: Context, folder: Path) -> LogReader:
    """Return the log of a folder, the same one each time."""
    return context.cache.get(("request log", str(folder)), (), lambda: LogReader(folder))
