"""Signals against days whose values are known."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import polars as pl
import pytest

from pipelines.config.operation import MonitoringConfig
from pipelines.monitoring.days import EventCounts, count_events, days_of_lists, served_days
from pipelines.monitoring.signals import SIGNALS, measure
from tests.year.watched import Watched
from tests.year.world import Drift, World, WorldConfig


def counted(rows: list[tuple[str, str, str]]) -> EventCounts:
    schema = dict.fromkeys(("user_id", "item_id", "event_type"), pl.String())
    return count_events(pl.DataFrame(rows, schema=schema, orient="row"))


def test_a_day_equal_to_its_window_lies_at_no_distance_and_another_afar():
    rows = [(f"u{n}", f"i{n % 7}", "view" if n % 2 else "buy") for n in range(100)]
    usual, other = counted(rows), counted([(user, "z", "cart") for user, *_ in rows])
    assert (usual.events, usual.users) == (100, 100)
    config = MonitoringConfig()
    same, far = (measure(day, [usual] * 20, None, config) for day in (usual, other))
    for name in ("event_types", "popularity"):
        assert same[name].value == pytest.approx(0, abs=1e-6)
        assert far[name].value == pytest.approx(1)
    assert (same["new_items"].value, far["new_items"].value) == (0, 1)
    # Without types there is no mix of them; a day without events has counts alone.
    untyped = count_events(pl.DataFrame({"user_id": ["ann"] * 60, "item_id": ["x"] * 60}))
    assert "event_types" not in measure(untyped, [untyped] * 20, None, config)
    assert set(measure(EventCounts(), [usual] * 20, None, config)) == {"events", "users"}


def test_bands_return_to_the_values_that_were_scored_and_fewer_clicks_are_found():
    world = WorldConfig(days=60, users=800, items=250, events=1_500, holidays=0)
    watched = Watched()
    for day in World(world).days():
        watched.see(day)
    for name, one in watched.record.days[-1].items():
        value = SIGNALS[name].value_at(one.score)
        assert value == pytest.approx(one.value, rel=0.2, abs=0.005), name
    assert set(SIGNALS) == set(watched.record.days[-1])
    assert "click_rate" in watched.with_drift(world, [Drift(kind="ctr", day=60, size=0.5)])


def test_served_lists_are_counted_once_with_their_clicks(tmp_path):
    time = datetime(2026, 11, 22, 23, 59, tzinfo=UTC)
    served = pl.DataFrame(
        {
            "request_id": ["a", "a", "b", "c"],
            "received_time": [time, time, time, time + timedelta(minutes=2)],
            "fallback": [None, None, "popularity", None],
        }
    )
    events = pl.DataFrame(
        {"request_id": ["a", "a", "b"], "event_type": ["click", "like", "impression"]}
    )
    found = days_of_lists(served, events)
    assert found == {date(2026, 11, 22): (2, 1, 1), date(2026, 11, 23): (1, 0, 0)}
    assert days_of_lists(served.drop("fallback"), None)[date(2026, 11, 22)] == (2, 0, None)
    assert served_days(tmp_path) == {}
