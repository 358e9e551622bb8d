"""The synthetic shop watched day by day in memory, as `recsys monitor` watches a workspace."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import islice

from pipelines.config.operation import MonitoringConfig
from pipelines.monitoring.days import EventCounts, count_events, days_of_lists
from pipelines.monitoring.signals import SignalRecord, measure
from tests.year.world import Drift, World, WorldConfig, WorldDay


@dataclass
class Watched:
    """Days that were judged so far."""

    config: MonitoringConfig = field(default_factory=MonitoringConfig)
    record: SignalRecord = field(default_factory=SignalRecord)
    reference: deque[EventCounts] = field(default_factory=deque)

    def see(self, day: WorldDay) -> list[str]:
        """Judge a day; name the signals that raise an alarm."""
        self.record.first = self.record.first or day.date
        counts = count_events(day.events)
        served = days_of_lists(day.served, day.clicks)[day.date]
        found = measure(counts, list(self.reference), served, self.config)
        self.record.judge(len(self.record.days), found, self.config)
        if day.events.height:
            self.reference.append(counts)
            if len(self.reference) > self.config.reference_days:
                self.reference.popleft()
        return [name for name, one in self.record.days[-1].items() if one.streak]

    def with_drift(self, config: WorldConfig, drift: Sequence[Drift], days: int = 1) -> list[str]:
        """Name the alarms of the next days if drift began with them; what was seen stays as is."""
        place = len(self.record.days)
        beside = Watched(
            config=self.config,
            record=SignalRecord(first=self.record.first, days=deepcopy(self.record.days[-130:])),
            reference=deque(self.reference),
        )
        beside.record.first = self.record.date_of(place - len(beside.record.days))
        world = World(replace(config, days=max(config.days, place + days)), drift)
        found: list[str] = []
        for day in islice(world.days(), place, place + days):
            found += beside.see(day)
        return found
