"""Watch the days of a workspace: measure new and corrected days, judge and describe them.

<workspace>/monitoring/
  days.parquet      every signal of every day, with its band and alarms
  days/             counts of each day of the reference window
  state.json        digests of days, bins of columns
  monitor.json      the latest day in words: signals, freshness, whether to retrain
  monitor.html      the page
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from pipelines.config.operation import HISTORY_DAYS
from pipelines.config.run import RunConfig
from pipelines.engine.artifacts import to_json
from pipelines.engine.errors import WorkspaceBusyError
from pipelines.monitoring.days import (
    EventDays,
    ServedDay,
    event_days,
    export_folder,
    known_tables,
    served_days,
)
from pipelines.monitoring.document import describe_day, judge_inputs
from pipelines.monitoring.judged import SignalRecord
from pipelines.monitoring.signals import Measurement, measure
from pipelines.monitoring.sketch import COUNTS, KnownTables, Sketch, build_sketch, build_tables
from recsys.data.durable import locked, write_durably

FOLDER = "monitoring"
DOCUMENT, PAGE, STATE = "monitor.json", "monitor.html", "state.json"
DAYS, SKETCHES = "days.parquet", "days"
LOCK = ".monitoring.lock"
MAX_MISSING_DAYS = 31
"""Days without events that are watched after the last day with events."""
SPARE_SKETCHES = 14


@dataclass(kw_only=True)
class State:
    """State kept next to the record."""

    days: dict[str, list[Any]] = field(default_factory=dict)
    """Digest of each day's files, and what it served."""
    edges: dict[str, list[float]] = field(default_factory=dict)
    """Bins of numeric columns, which stay as they were first cut."""

    @classmethod
    def load(cls, path: Path) -> State:
        """Read it; empty if there is none, ValueError if it is damaged."""
        if not path.exists():
            return cls()
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            # An earlier version kept other fields: all days are measured again, in its bins.
            return cls(**{one.name: found.get(one.name, {}) for one in fields(cls)})
        except (ValueError, AttributeError) as error:
            raise ValueError(
                f"{path} cannot be read ({error}); delete {path.parent}: the next recsys monitor "
                "measures all days again"
            ) from error


class Monitored(NamedTuple):
    """Result of one call of the command."""

    document: dict[str, Any]
    page: Path

    @property
    def alarm(self) -> bool:
        return bool(self.document["alarm"])


def monitor(config: RunConfig, as_of: datetime | None = None) -> Monitored:
    """Watch every whole day up to a moment, by default now."""
    as_of = as_of or datetime.now(UTC)
    folder = config.workspace / FOLDER
    days = event_days(config.workspace)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / LOCK, wait=False) as held:
        if not held:
            raise WorkspaceBusyError(f"another recsys monitor watches {config.workspace}")
        return Watcher(config, folder, days, as_of).run()


class Watcher:
    """One call: which days changed, what they measure, what that means."""

    def __init__(self, config: RunConfig, folder: Path, days: EventDays, as_of: datetime) -> None:
        self.config, self.folder, self.days, self.as_of = config, folder, days, as_of
        self.state = State.load(folder / STATE)
        self.record = SignalRecord.load(folder / DAYS)
        self.served = served_days(export_folder(config))
        self._sketches: dict[date, Sketch] = {}

    def run(self) -> Monitored:
        """Bring everything up to the last whole day."""
        known = [day for day in self.days.digests if day < self.as_of.date()]
        if not known:
            raise ValueError(
                f"no day with events is over by {self.as_of:%Y-%m-%d %H:%M} UTC; the first is "
                f"{next(iter(self.days.digests))}"
            )
        last = min(
            self.as_of.date() - timedelta(days=1), known[-1] + timedelta(days=MAX_MISSING_DAYS)
        )
        fresh = self.watch(known, last)
        served = [day for day in self.served if day <= last]
        inputs = judge_inputs(self.config, self.as_of, known, served)
        document = describe_day(self.record, inputs, self.as_of)
        return self.write({**document, "measured_days": fresh})

    def watch(self, known: Sequence[date], last: date) -> int:
        """Measure and judge new and corrected days; return the number of measured days."""
        first = self.first_day(known, last)
        known = [day for day in known if day >= first]
        changed = self.changed_days(known, first, last)
        begin = min([len(self.record.days), *((day - first).days for day in changed)])
        del self.record.days[begin:]
        for place in range(begin, (last - first).days + 1):
            measured = self.measured(first + timedelta(days=place), known)
            self.record.judge(place, measured, self.config.monitoring)
        return len(self.record.days) - begin

    def first_day(self, known: Sequence[date], last: date) -> date:
        """Return the first day of the record, which stays; older days do not count."""
        if self.record.first is None or self.record.first > last:
            oldest = last - timedelta(days=HISTORY_DAYS)
            self.record = SignalRecord(first=max(known[0], oldest))
        assert self.record.first is not None
        return self.record.first

    def changed_days(self, known: Sequence[date], first: date, last: date) -> set[date]:
        """List the days whose files or served lists are new, changed or gone."""
        now: dict[str, list[Any]] = {
            str(day): [self.days.digests.get(day), list(self.served.get(day, ()))]
            for day in {*known, *self.served}
            if first <= day <= last
        }
        before, self.state.days = self.state.days, now
        names = {name for name in {*before, *now} if before.get(name) != now.get(name)}
        changed = {day for day in map(date.fromisoformat, names) if first <= day <= last}
        for day in sorted(changed & self.days.digests.keys()):
            self.fresh_sketch(day)
        return changed

    def measured(self, day: date, known: Sequence[date]) -> dict[str, Measurement]:
        """Measure a day against the days with events in its reference window."""
        config = self.config.monitoring
        reach = timedelta(days=config.reference_days)
        reference = [self.sketch(one) for one in known if day - reach <= one < day]
        none = Sketch(pl.DataFrame(schema=COUNTS))
        sketch = self.sketch(day) if day in self.days.digests else none
        served = self.served.get(day)
        if served is None and self.served and day > min(self.served):
            served = ServedDay(0, 0, None, None)
        return measure(sketch, reference, served, config)

    def sketch(self, day: date) -> Sketch:
        """Read a day's sketch, or make it."""
        if day not in self._sketches:
            kept = Sketch.load(self.folder / SKETCHES, day)
            return self.fresh_sketch(day) if kept is None else self.held(day, kept)
        return self._sketches[day]

    def held(self, day: date, sketch: Sketch) -> Sketch:
        """Hold a day in memory as long as it is among those of a reference window."""
        self._sketches[day] = sketch
        while len(self._sketches) > self.config.monitoring.reference_days + 2:
            del self._sketches[next(iter(self._sketches))]
        return sketch

    def fresh_sketch(self, day: date) -> Sketch:
        """Count a day as its files are now."""
        sketch = build_sketch(self.days.read(day), self.tables)
        sketch.save(self.folder / SKETCHES, day)
        return self.held(day, sketch)

    @cached_property
    def tables(self) -> KnownTables:
        """Build the tables of items and users, in the bins that the state keeps."""
        items, users = known_tables(self.config.workspace)
        tables, self.state.edges = build_tables(items, users, self.state.edges)
        return tables

    def write(self, document: dict[str, Any]) -> Monitored:
        """Keep everything, what others read last."""
        from pipelines.monitoring.page import monitoring_page
        from pipelines.pages.file import write_page

        reach = self.config.monitoring.reference_days + SPARE_SKETCHES
        newest = self.record.date_of(len(self.record.days) - 1)
        for path in (self.folder / SKETCHES).glob("*.parquet"):
            if (newest - date.fromisoformat(path.name[:10])).days > reach:
                path.unlink()
        self.record.save(self.folder / DAYS)
        write_durably(self.folder / STATE, to_json(vars(self.state)))
        write_page(monitoring_page(document, self.record.table()), self.folder / PAGE)
        write_durably(self.folder / DOCUMENT, to_json(document))
        return Monitored(document=document, page=self.folder / PAGE)


def parse_moment(text: str) -> datetime:
    """Read a day or time, in UTC if it has no zone; ValueError if it is neither."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"--as-of must be a day or time such as 2026-11-22 or 2026-11-22T06:00, got {text!r}"
        ) from None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
