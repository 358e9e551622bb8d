"""The synthetic shop watched day by day in memory, as `recsys monitor` watches a workspace."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np

from pipelines.config.operation import MonitoringConfig
from pipelines.monitoring.days import days_of_lists
from pipelines.monitoring.judged import SignalRecord
from pipelines.monitoring.signals import measure, measure_agreement
from pipelines.monitoring.sketch import Sketch, build_sketch, build_tables
from pipelines.monitoring.vectors import ServedVectors, unit
from tests.year.world import Drift, World, WorldConfig, WorldDay


@dataclass
class Watched:
    """Days that were judged so far."""

    config: MonitoringConfig = field(default_factory=MonitoringConfig)
    record: SignalRecord = field(default_factory=SignalRecord)
    edges: dict[str, list[float]] = field(default_factory=dict)
    reference: deque[Sketch] = field(default_factory=deque)

    def see(self, day: WorldDay) -> list[str]:
        """Judge a day; name the signals that raise an alarm."""
        self.record.first = self.record.first or day.date
        tables, self.edges = build_tables(day.items, day.users, self.edges)
        sketch = build_sketch(day.events, tables, self.config.max_examples)
        vectors = vectors_of(day)
        served = days_of_lists(day.served, day.clicks)[day.date]
        found = measure(sketch, list(self.reference), vectors, served, self.config)
        if (agreement := measure_agreement(sketch, vectors)) is not None:
            found["agreement"] = agreement
        measured = {name: (one, None) for name, one in found.items()}
        self.record.judge(len(self.record.days), measured, self.config)
        if day.events.height:
            self.reference.append(sketch)
            if len(self.reference) > self.config.reference_days:
                self.reference.popleft()
        return [name for name, one in self.record.days[-1].items() if one.streak]

    def with_drift(self, config: WorldConfig, drift: Sequence[Drift], days: int = 1) -> list[str]:
        """Name the alarms of the next days if drift began with them; what was seen stays as is."""
        place = len(self.record.days)
        beside = Watched(
            config=self.config,
            record=SignalRecord(first=self.record.first, days=deepcopy(self.record.days[-130:])),
            edges=self.edges,
            reference=deque(self.reference),
        )
        beside.record.first = self.record.date_of(place - len(beside.record.days))
        world = World(replace(config, days=max(config.days, place + days)), drift)
        found: list[str] = []
        for day in islice(world.days(), place, place + days):
            found += beside.see(day)
        return found


def vectors_of(day: WorldDay) -> ServedVectors:
    """Serve the day's vectors."""
    users = unit(day.user_vectors)
    rows = {user: row for row, user in enumerate(day.users["user_id"].to_list())}
    none = np.zeros(users.shape[1])
    return ServedVectors(
        version="world",
        rows={item: row for row, item in enumerate(day.items["item_id"].to_list())},
        item_vectors=unit(day.item_vectors),
        user_vectors_of=lambda ids: np.array(
            [users[rows[one]] if one in rows else none for one in ids]
        ).reshape(-1, users.shape[1]),
        codes=day.codes,
    )
