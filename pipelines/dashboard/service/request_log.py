"""The request log of an online store, counted by minute: read once, then only new records.

Lists are counted as they are read, so memory grows with the minutes of the log and not with its
lists. Days are read from the newest back, so that a page shows the last ones first. Lists of the
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
from pipelines.inputs.online_events import SETTLED_MS
from pipelines.inputs.opened_store import opened
from serving.metrics import DEGRADED_CODES, STAGES
from serving.online.opening import SQLITE
from serving.online.store import OnlineStore, RequestRecord, StoreError

MINUTE_MS, DAY_MS = 60_000, 86_400_000
AT_ONCE = 20_000
PATIENCE_SECONDS = 0.2
"""Wait of a page for records that are not read yet."""
LEAST_MS, RATIO = 0.001, 1.05
"""Bounds of the buckets of milliseconds: `LEAST_MS` times powers of `RATIO`."""
_FILE = re.compile(r"requests-(\d{4}-\d\d-\d\d)\.db")
FAILED = ("late_source", "failed_source", "late_stage", "failed_stage", "failed_store")
"""Codes of late or broken parts; every other code names something unknown or missing."""
LATE = "late or failed part"
COUNTS = pl.Schema(
    {
        "minute_ms": pl.Int64(),
        "surface": pl.Categorical(),
        "kind": pl.Enum(("bundle", "code", "source", "arm", "stage")),
        "name": pl.Categorical(),
        "bucket": pl.Int16(),
        "count": pl.UInt32(),
    }
)
"""Lists by minute, surface, and: their bundle; a code of theirs; the arm of an experiment; a stage
and the bucket of its milliseconds. Of sources, the shown items."""
KEYS = tuple(name for name in COUNTS if name != "count")
_DOCUMENT = pl.Schema(
    {
        "unix_ms": pl.Int64(),
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

    counts: pl.DataFrame
    """`COUNTS`."""
    num_unreadable: int = 0


EMPTY = Counted(pl.DataFrame(schema=COUNTS))


def count_records(records: Sequence[RequestRecord]) -> Counted:
    """Count lists; records that cannot be read are counted and left out."""
    documents, num_unreadable = _parsed([record.document for record in records])
    minute = (pl.col("unix_ms") // MINUTE_MS * MINUTE_MS).alias("minute_ms")
    keys = (minute, pl.col("surface").fill_null("unknown"))
    index = ["minute_ms", "surface"]
    degraded, arm = pl.col("degraded"), pl.col("experiment").struct
    flags = {code: degraded.list.contains(code).fill_null(False) for code in DEGRADED_CODES}
    flags |= {
        "other": degraded.list.set_difference(list(DEGRADED_CODES)).list.len().fill_null(0) > 0,
        LATE: reduce(or_, (flags[code] for code in FAILED)),
        "fallback": pl.col("fallback").is_not_null(),
        "no user": pl.col("user_id").is_null(),
    }
    sources = pl.col("items").list.eval(pl.element().struct.field("source"))
    bucket = (pl.col("ms").clip(LEAST_MS) / LEAST_MS).log(RATIO).floor().cast(pl.Int16)
    frames = {
        "bundle": documents.select(*keys, pl.col("bundle").fill_null("unknown").alias("name")),
        "code": documents.select(*keys, *(flag.alias(name) for name, flag in flags.items()))
        .unpivot(index=index, variable_name="name", value_name="has")
        .filter("has")
        .drop("has"),
        "source": documents.select(*keys, sources.alias("name")).explode("name"),
        "arm": documents.select(*keys, (arm.field("name") + ": " + arm.field("arm")).alias("name")),
        "stage": documents.select(*keys, pl.col("timings_ms").struct.unnest())
        .unpivot(index=index, variable_name="name", value_name="ms")
        .drop_nulls("ms")
        .select(*index, "name", bucket.alias("bucket")),
    }
    named = [
        frame.drop_nulls("name").with_columns(pl.lit(kind).alias("kind"))
        for kind, frame in frames.items()
    ]
    counts = (
        pl.concat(named, how="diagonal")
        .with_columns(pl.col("bucket").fill_null(0))
        .group_by(KEYS)
        .agg(pl.len().alias("count"))
    )
    return Counted(counts.select(*COUNTS).cast(COUNTS), num_unreadable)


def add_up(parts: Sequence[Counted]) -> Counted:
    """Add up counts."""
    rows = pl.concat([part.counts for part in (EMPTY, *parts)])
    rows = rows.group_by(KEYS).agg(pl.col("count").sum())
    return Counted(rows.select(*COUNTS), sum(part.num_unreadable for part in parts))


def quantiles(times: pl.DataFrame, by: Sequence[str], wanted: Mapping[str, float]) -> pl.DataFrame:
    """Estimate quantiles of milliseconds within 5%, and count the lists."""
    groups = list(by)
    summed = times.group_by(*groups, "bucket").agg(pl.col("count").sum().cast(pl.Float64))
    upto = pl.col("count").cum_sum()
    found = []
    for name, q in wanted.items():
        rank = q * pl.col("count").sum()
        inside = ((rank - (upto - pl.col("count"))) / pl.col("count")).clip(0, 1)
        value = LEAST_MS * (pl.lit(RATIO) ** (pl.col("bucket") + inside))
        found.append(value.filter(upto >= rank - 1e-9).first().alias(name))
    return (
        summed.sort(*groups, "bucket")
        .group_by(groups, maintain_order=True)
        .agg(*found, pl.col("count").sum().cast(pl.Int64).alias("lists"))
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

    counts: pl.DataFrame = field(default_factory=lambda: EMPTY.counts)
    num_unreadable: int = 0
    number: int = 0
    is_reading: bool = False
    """True while older lists are being read."""
    fault: str = ""
    """Why the rest cannot be read, in words."""

    @property
    def num_lists(self) -> int:
        return int(self.counts.filter(pl.col("kind") == "bundle")["count"].sum())

    @property
    def span(self) -> tuple[int, int] | None:
        """Minutes of the oldest and newest list; None without any."""
        minutes = self.counts["minute_ms"]
        first, last = minutes.min(), minutes.max()
        return (first, last) if isinstance(first, int) and isinstance(last, int) else None


@dataclass
class _Day:
    """Lists of a day: those that are settled, and the latest, which are read once more."""

    stamp: Stamp = ()
    """State of the file when it was read to its end."""
    settled: Counted = EMPTY
    latest: Counted = EMPTY
    last_id: str = ""
    """Last of the settled ones."""


class LogReader:
    """Reads the folder of one store; safe for several threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._days: dict[str, _Day] = {}
        self._shown = Logged()
        self._is_whole = False
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def now(self, patience_seconds: float = PATIENCE_SECONDS) -> Logged:
        """Return the counts read so far, and read the rest in the background."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                known = {name: day.stamp for name, day in self._days.items()}
                if self._is_whole and known == self._stamps():
                    return self._shown
                self._thread = threading.Thread(target=self._read, daemon=True, name="request log")
                self._thread.start()
            thread = self._thread
        thread.join(patience_seconds)
        return self._shown if self._is_whole else replace(self._shown, is_reading=True)

    def _stamps(self) -> dict[str, Stamp]:
        """Return the present state of each day's file."""
        found = {}
        for name in names_in(self._folder):
            if (day := _FILE.fullmatch(name)) is not None:
                stamps = file_stamp(self._folder / one for one in (name, f"{name}-wal"))
                # A reader makes a log of SQLite, which is empty.
                found[day[1]] = tuple(one for one in stamps if one[2])
        return found

    def _read(self) -> None:
        faults: list[str] = []
        try:
            with opened(f"{SQLITE}{self._folder}") as store:
                for name, stamp in sorted(self._stamps().items(), reverse=True):
                    day = self._days.setdefault(name, _Day())
                    if day.stamp == stamp:
                        continue
                    # A file that cannot be read is tried once more when it has changed.
                    day.stamp = stamp
                    try:
                        self._read_day(store, name, day)
                    except StoreError as error:
                        faults.append(str(error))
        except Exception as error:
            faults.append(str(error))
        for gone in self._days.keys() - self._stamps().keys():
            del self._days[gone]
        self._show(faults)
        self._is_whole = True

    def _read_day(self, store: OnlineStore, name: str, day: _Day) -> None:
        begin_ms = int(1_000 * datetime.fromisoformat(name).replace(tzinfo=UTC).timestamp())
        waiting: list[RequestRecord] = []
        last_id = day.last_id
        while records := store.requests_between(begin_ms, begin_ms + DAY_MS, AT_ONCE, last_id):
            last_id = records[-1].request_id
            settled_ms = records[-1].time_ms - SETTLED_MS
            waiting += records
            done = [record for record in waiting if record.time_ms < settled_ms]
            if done:
                waiting = waiting[len(done) :]
                day.settled = add_up([day.settled, count_records(done)])
                day.last_id = done[-1].request_id
            day.latest = count_records(waiting)
            self._show()

    def _show(self, faults: Sequence[str] = ()) -> None:
        parts = [part for day in self._days.values() for part in (day.settled, day.latest)]
        self._shown = Logged(
            counts=pl.concat([part.counts for part in (EMPTY, *parts)]),
            num_unreadable=sum(part.num_unreadable for part in parts),
            number=self._shown.number + 1,
            fault="; ".join(faults),
        )


def request_log(context: Context, folder: Path) -> LogReader:
    """Return the log of a folder, the same one each time."""
    return context.cache.get(("request log", str(folder)), (), lambda: LogReader(folder))
