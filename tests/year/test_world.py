"""The synthetic shop: the same seed gives the same days, and drift changes only what it names."""

from __future__ import annotations

from datetime import date

import polars as pl

from tests.year.world import Drift, World, WorldConfig, world_days

SMALL = WorldConfig(days=21, users=300, items=120, events=600)


def test_days_follow_each_other_and_repeat_with_the_seed():
    first = list(world_days(seed=3, days=10, users=100, items=50, events=200))
    second = list(world_days(seed=3, days=10, users=100, items=50, events=200))
    assert [day for day, _, _ in first] == [date(2026, 1, 5 + number) for number in range(10)]
    for (_, events, items), (_, events_twin, items_twin) in zip(first, second, strict=True):
        assert events.equals(events_twin)
        assert items.equals(items_twin)
        assert events["event_time"].dt.date().unique().to_list() == [events["event_time"][0].date()]
        assert set(events["item_id"]) <= set(items["item_id"])
    assert first[-1][2].height > first[0][2].height


def test_days_before_drift_are_those_without_it():
    plain = list(World(SMALL).days())
    drifting = list(World(SMALL, [Drift(kind="category", day=14)]).days())
    assert all(plain[day].events.equals(drifting[day].events) for day in range(14))
    shares = [
        day.events.join(day.items.explode("categories"), on="item_id")
        .select((pl.col("categories") == "kind 0").mean())
        .item()
        for day in (plain[14], drifting[14])
    ]
    assert shares[1] > shares[0] + 0.2
