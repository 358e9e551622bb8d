"""Watch the days of a workspace: measure new and corrected days, judge and describe them.

<workspace>/monitoring/
  days.parquet      every signal of every day, with its band and alarms
  days/             counts and a sample of each day of the reference window
  state.json        digests of days, bins of features, when inputs changed
  monitor.json      the latest day in words: signals, freshness, whether to retrain
  monitor.html      the page
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from pipelines.config.operation import HISTORY_DAYS
from pipelines.config.run import RunConfig
from pipelines.engine.artifacts import to_json
from pipelines.engine.errors import WorkspaceBusyError
from pipelines.engine.workspace import bundles_dir
from pipelines.monitoring.days import (
    EventDays,
    ServedDay,
    event_days,
    export_folder,
    full_run_until,
    known_tables,
    served_days,
)
from pipelines.monitoring.document import describe_day, judge_inputs, seen_times
from pipelines.monitoring.judged import SignalRecord
from pipelines.monitoring.signals import Measurement, measure, measure_agreement
from pipelines.monitoring.sketch import KnownTables, Sketch, build_sketch, build_tables
from pipelines.monitoring.vectors import ServedVectors, vectors_of_bundle
from recsys.data.durable import locked, write_durably
from serving.bundle.manifest import CURRENT

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

    sources: dict[str, str] = field(default_factory=dict)
    """Digest of each day's files."""
    sketches: dict[str, str] = field(default_factory=dict)
    """Digest of what each day counted."""
    served: dict[str, list[int | None]] = field(default_factory=dict)
    edges: dict[str, list[float]] = field(default_factory=dict)
    """Bins of numeric columns, which stay as they were first cut."""
    times: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> State:
        """Read it; empty if there is none, ValueError if it is damaged."""
        if not path.exists():
            return cls()
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
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
        times = seen_times(self.config, self.state.times, self.as_of)
        self.state.times = {
            name: [moment.isoformat() for moment in seen] for name, seen in times.items()
        }
        served = [day for day in self.served if day <= last]
        inputs = judge_inputs(self.config, self.as_of, known, served, times)
        document = describe_day(self.record, inputs, self.as_of, full_run_until(self.config))
        return self.write({**document, "measured_days": fresh})

    def watch(self, known: Sequence[date], last: date) -> int:
        """Measure and judge new and corrected days; return the number of measured days."""
        first = self.first_day(known, last)
        known = [day for day in known if day >= first]
        changed = self.changed_days(known, first, last)
        if not changed and len(self.record.days) == (last - first).days + 1:
            return 0
        reach = self.config.monitoring.reference_days
        before = SignalRecord(first=first, days=self.record.days)
        begin = min(((day - first).days for day in changed), default=len(before.days))
        self.record.days = before.days[:begin]
        count = 0
        for place in range(begin, (last - first).days + 1):
            day, kept = first + timedelta(days=place), place < len(before.days)
            measured = before.measured(place) if kept else {}
            if not kept or any(0 <= (day - one).days <= reach for one in changed):
                measured |= self.measured(day, known)
                count += 1
            self.record.judge(place, measured, self.config.monitoring)
        return count

    def first_day(self, known: Sequence[date], last: date) -> date:
        """Return the first day of the record, which stays; older days do not count."""
        if self.record.first is None or self.record.first > last:
            oldest = last - timedelta(days=HISTORY_DAYS)
            self.record = SignalRecord(first=max(known[0], oldest))
        assert self.record.first is not None
        return self.record.first

    def changed_days(self, known: Sequence[date], first: date, last: date) -> set[date]:
        """List new days, and days whose counts changed since they were measured."""
        changed = {
            first + timedelta(days=place)
            for place in range(len(self.record.days), (last - first).days + 1)
        }
        for day in known:
            if day > last or self.state.sources.get(str(day)) == self.days.digests[day]:
                continue
            sketch = self.fresh_sketch(day)
            if self.state.sketches.get(str(day)) != sketch.digest():
                changed.add(day)
                self.state.sketches[str(day)] = sketch.digest()
            self.state.sources[str(day)] = self.days.digests[day]
        for name in set(self.state.sources) - set(map(str, known)):
            changed.add(date.fromisoformat(name))
            del self.state.sources[name], self.state.sketches[name]
        for day, served in self.served.items():
            if day <= last and self.state.served.get(str(day)) != list(served):
                changed.add(day)
                self.state.served[str(day)] = list(served)
        return {day for day in changed if first <= day <= last}

    def measured(
        self, day: date, known: Sequence[date]
    ) -> dict[str, tuple[Measurement, str | None]]:
        """Measure a day against the days with events in its reference window."""
        config, vectors = self.config.monitoring, self.vectors
        reach = timedelta(days=config.reference_days)
        reference = [self.sketch(one) for one in known if day - reach <= one < day]
        sketch = self.sketch(day) if day in self.days.digests else self.empty_sketch()
        served = self.served.get(day)
        if served is None and self.served and day > min(self.served):
            served = ServedDay(0, 0, None, None)
        found, version = measure(sketch, reference, vectors, served, config), None
        if vectors is not None:
            version, until = vectors.version, vectors.known_until
            # Until its newest event a bundle's vectors were trained on what they are compared with.
            is_new = until is None or day > until
            if is_new and (agreement := measure_agreement(sketch, vectors)) is not None:
                found["agreement"] = agreement
        return {name: (one, version) for name, one in found.items()}

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
        examples = self.config.monitoring.max_examples
        sketch = build_sketch(self.days.read(day), self.tables, examples, self.config.seed)
        sketch.save(self.folder / SKETCHES, day)
        return self.held(day, sketch)

    def empty_sketch(self) -> Sketch:
        """Count a day without events."""
        some = self.sketch(next(iter(self.days.digests)))
        return Sketch(some.counts.clear(), some.sample.clear())

    @cached_property
    def tables(self) -> KnownTables:
        """Build the tables of items and users, in the bins that the state keeps."""
        items, users = known_tables(self.config.workspace)
        tables, self.state.edges = build_tables(items, users, self.state.edges)
        return tables

    @cached_property
    def vectors(self) -> ServedVectors | None:
        """Read the served bundle."""
        return vectors_of_bundle(bundles_dir(self.config) / CURRENT)

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
