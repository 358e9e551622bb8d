"""The request log of an online store, counted by day: read once, then only new records.

Lists are counted as they are read, so memory grows with the days of the log and not with its
lists. Days are read from the newest back, so that a page shows the last ones first. Lists of the
last minute may arrive later than others after them (`SETTLED_MS`), so these are read once more.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import orjson
import polars as pl

from pipelines.dashboard.context import Context
from pipelines.dashboard.workspaces.files import Stamp, file_stamp, names_in
from pipelines.inputs.online_events import SETTLED_MS
from pipelines.inputs.opened_store import opened
from serving.online.opening import SQLITE
from serving.online.store import OnlineStore, RequestRecord, StoreError

DAY_MS = 86_400_000
AT_ONCE = 20_000
PATIENCE_SECONDS = 0.2
"""Wait of a page for records that are not read yet."""
LEAST_MS, RATIO = 0.001, 1.05
"""Bounds of the buckets of milliseconds: `LEAST_MS` times powers of `RATIO`."""
FAILED = ("late_source", "failed_source", "late_stage", "failed_stage", "failed_store")
"""Codes of late or broken parts; every other code names something unknown or missing."""
COUNTS = pl.Schema(
    {"kind": pl.String(), "name": pl.String(), "bucket": pl.Int16(), "count": pl.Int64()}
)
"""Lists by kind and name: their ``bundle``; a ``code`` of theirs; those that are ``late`` or
``fallback``; the bucket of their ``time``. Of kind ``source``, the shown items."""
KEYS = ("kind", "name", "bucket")
_DOCUMENT = pl.Schema(
    {
        "unix_ms": pl.Int64(),
        "bundle": pl.String(),
        "degraded": pl.List(pl.String()),
        "fallback": pl.String(),
        "items": pl.List(pl.Struct({"source": pl.String()})),
        "timings_ms": pl.Struct({"total": pl.Float64()}),
    }
)
EMPTY = pl.DataFrame(schema=COUNTS)


def count_records(records: Sequence[RequestRecord]) -> tuple[pl.DataFrame, int]:
    """Count lists as `COUNTS`, and the records that cannot be read."""
    documents, num_unreadable = _parse([record.document for record in records])
    total_ms = pl.col("timings_ms").struct.field("total")
    bucket = (total_ms.clip(LEAST_MS) / LEAST_MS).log(RATIO).floor()
    failed = pl.col("degraded").list.set_intersection(list(FAILED)).list.len() > 0
    names = {
        "bundle": pl.col("bundle").fill_null("unknown"),
        "code": pl.col("degraded").list.unique().explode(),
        "late": pl.when(failed).then(pl.lit("")),
        "fallback": pl.when(pl.col("fallback").is_not_null()).then(pl.lit("")),
        "source": pl.col("items").explode().struct.field("source"),
        "time": pl.when(total_ms.is_not_null()).then(pl.lit("")),
    }
    none = pl.lit(0, pl.Int16)
    frames = [
        documents.select(
            pl.lit(kind).alias("kind"),
            name.alias("name"),
            (bucket if kind == "time" else none).cast(pl.Int16).alias("bucket"),
            pl.lit(1, pl.Int64).alias("count"),
        ).drop_nulls("name")
        for kind, name in names.items()
    ]
    return add_up(frames), num_unreadable


def add_up(parts: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Add up counts."""
    rows = pl.concat([EMPTY, *parts])
    rows = rows.group_by(KEYS).agg(pl.col("count").sum())
    return rows.select(*COUNTS)


def quantiles(counts: pl.DataFrame, wanted: Mapping[str, float]) -> dict[str, float]:
    """Estimate quantiles of milliseconds within 5%; none without a time."""
    times = counts.filter(pl.col("kind") == "time").sort("bucket")
    if times.is_empty():
        return {}
    upto = times["count"].cum_sum().to_numpy()
    found = {}
    for name, q in wanted.items():
        place = int(np.searchsorted(upto, q * upto[-1]))
        inside = 1 - (upto[place] - q * upto[-1]) / times["count"][place]
        found[name] = float(LEAST_MS * RATIO ** (times["bucket"][place] + inside))
    return found


def _parse(documents: Sequence[bytes]) -> tuple[pl.DataFrame, int]:
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

    days: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    """`COUNTS` by day, the newest first."""
    num_unreadable: int = 0
    is_reading: bool = False
    """True while older lists are being read."""
    fault: str = ""
    """Why the rest cannot be read, in words."""

    @property
    def num_lists(self) -> int:
        return sum(named(counts, "bundle").total() for counts in self.days.values())


@dataclass
class _Day:
    """Lists of a day: those that are settled, and the latest, which are read once more."""

    stamp: Stamp = ()
    """State of the file when it was read to its end."""
    settled: tuple[pl.DataFrame, int] = (EMPTY, 0)
    latest: tuple[pl.DataFrame, int] = (EMPTY, 0)
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
            if name.startswith("requests-") and name.endswith(".db"):
                stamps = file_stamp(self._folder / one for one in (name, f"{name}-wal"))
                # A reader makes a log of SQLite, which is empty.
                day = name.removeprefix("requests-").removesuffix(".db")
                found[day] = tuple(one for one in stamps if one[2])
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
                counts, num_unreadable = count_records(done)
                day.settled = add_up([day.settled[0], counts]), day.settled[1] + num_unreadable
                day.last_id = done[-1].request_id
            day.latest = count_records(waiting)
            self._show()

    def _show(self, faults: Sequence[str] = ()) -> None:
        days = sorted(self._days.items(), reverse=True)
        self._shown = Logged(
            days={name: add_up([day.settled[0], day.latest[0]]) for name, day in days},
            num_unreadable=sum(day.settled[1] + day.latest[1] for _, day in days),
            fault="; ".join(faults),
        )


def request_log(context: Context, folder: Path) -> LogReader:
    """Return the log of a folder, the same one each time."""
    return context.cache.get(("request log", str(folder)), (), lambda: LogReader(folder))


def named(counts: pl.DataFrame, kind: str) -> Counter[str]:
    """Sum the counts of a kind by name."""
    found = counts.filter(pl.col("kind") == kind).group_by("name").agg(pl.col("count").sum())
    return Counter(dict(found.iter_rows()))
