"""Watch the days of a workspace: measure new and corrected days, judge and describe them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from pipelines.config.operation import HISTORY_DAYS
from pipelines.config.run import RunConfig
from pipelines.engine.artifacts import write_json
from pipelines.engine.errors import WorkspaceBusyError
from pipelines.engine.workspace import DailyState
from pipelines.monitoring.days import (
    EventCounts,
    EventDays,
    ServedDay,
    count_events,
    export_folder,
    served_days,
)
from pipelines.monitoring.document import describe_day, judge_inputs, monitoring_page
from pipelines.monitoring.signals import Measurement, SignalRecord, measure
from recsys.data.durable import locked

LOCK = ".monitoring.lock"
MAX_MISSING_DAYS = 31
"""Days without events that are watched after the last day with events."""


def read_watched(path: Path) -> dict[str, list[Any]]:
    """Read the digest of each watched day's files and what it served, by day; empty before any."""
    if not path.exists():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))["days"])
    except (ValueError, KeyError, TypeError) as error:
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
    days, folder = EventDays.find(config.workspace), DailyState(config.workspace).monitoring
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / LOCK, wait=False) as held:
        if not held:
            raise WorkspaceBusyError(f"another recsys monitor watches {config.workspace}")
        return Watcher(config, days, as_of).run()


class Watcher:
    """One call: which days changed, what they measure, what that means."""

    def __init__(self, config: RunConfig, days: EventDays, as_of: datetime) -> None:
        self.config, self.days, self.as_of = config, days, as_of
        self.digests = days.digests
        self.state = DailyState(config.workspace)
        self.watched = read_watched(self.state.watched)
        self.record = SignalRecord.load(self.state.signals)
        self.served = served_days(export_folder(config))
        self._counts: dict[date, EventCounts] = {}

    def run(self) -> Monitored:
        """Bring everything up to the last whole day."""
        known = [day for day in self.digests if day < self.as_of.date()]
        if not known:
            raise ValueError(
                f"no day with events is over by {self.as_of:%Y-%m-%d %H:%M} UTC; the first is "
                f"{next(iter(self.digests))}"
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
            str(day): [self.digests.get(day), list(self.served.get(day, ()))]
            for day in {*known, *self.served}
            if first <= day <= last
        }
        before, self.watched = self.watched, now
        names = {name for name in {*before, *now} if before.get(name) != now.get(name)}
        return {day for day in map(date.fromisoformat, names) if first <= day <= last}

    def measured(self, day: date, known: Sequence[date]) -> dict[str, Measurement]:
        """Measure a day against the days with events in its reference window."""
        config = self.config.monitoring
        reach = timedelta(days=config.reference_days)
        reference = [self.counts(one) for one in known if day - reach <= one < day]
        counts = self.counts(day) if day in self.digests else EventCounts()
        served = self.served.get(day)
        if served is None and self.served and day > min(self.served):
            served = ServedDay(0, 0, None)
        return measure(counts, reference, served, config)

    def counts(self, day: date) -> EventCounts:
        """Count a day's events; held in memory as long as it is in a reference window."""
        if day not in self._counts:
            self._counts[day] = count_events(self.days.read(day))
            while len(self._counts) > self.config.monitoring.reference_days + 2:
                del self._counts[next(iter(self._counts))]
        return self._counts[day]

    def write(self, document: dict[str, Any]) -> Monitored:
        """Keep everything, what others read last."""
        from pipelines.pages.file import write_page

        # Earlier versions kept each day's counts, with user ids.
        shutil.rmtree(self.state.monitoring / "days", ignore_errors=True)
        self.record.save(self.state.signals)
        write_json(self.state.watched, {"days": self.watched})
        write_page(monitoring_page(document, self.record.table()), self.state.monitor_page)
        write_json(self.state.monitor, document)
        return Monitored(document=document, page=self.state.monitor_page)


def parse_moment(text: str) -> datetime:
    """Read a day or time, in UTC if it has no zone; ValueError if it is neither."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"--as-of must be a day or time such as 2026-11-22 or 2026-11-22T06:00, got {text!r}"
        ) from None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
