"""Signals against days whose values are known."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import polars as pl
import pytest

from pipelines.config.operation import MonitoringConfig
from pipelines.monitoring.days import days_of_lists, served_days
from pipelines.monitoring.signals import SIGNALS, find_signal, measure
from pipelines.monitoring.sketch import Sketch, build_sketch, build_tables
from tests.year.watched import Watched
from tests.year.world import Drift, World, WorldConfig


def events_of(rows: list[tuple[str, str, str, float | None]]) -> pl.DataFrame:
    time = datetime(2026, 11, 22, 9, tzinfo=UTC)
    return pl.DataFrame(
        [(user, item, time, kind, value) for user, item, kind, value in rows],
        schema={
            "user_id": pl.String(),
            "item_id": pl.String(),
            "event_time": pl.Datetime("us", "UTC"),
            "event_type": pl.String(),
            "value": pl.Float64(),
        },
        orient="row",
    )


def counts(sketch: Sketch, table: str) -> dict[str, float]:
    rows = sketch.counts.filter(pl.col("table") == table)
    return dict(zip(rows["key"], rows["count"], strict=True))


def test_a_sketch_counts_types_values_categories_and_users_once(tmp_path) -> None:
    items = pl.DataFrame(
        {"item_id": ["x", "y"], "categories": [["a", "b"], ["b"]], "price": [1.0, 9.0]}
    )
    users = pl.DataFrame({"user_id": ["ann", "bo"], "country": ["DE", "FR"]})
    tables, edges = build_tables(items, users)
    events = [
        ("ann", "x", "view", None),
        ("ann", "y", "buy", 4.0),
        ("bo", "y", "view", None),
        ("cy", "new", "view", 250.0),
    ]
    sketch = build_sketch(events_of(events), tables)
    assert (sketch.total("events"), sketch.total("users"), sketch.total("value")) == (4, 3, 254)
    assert counts(sketch, "event_type") == {"view": 3, "buy": 1}
    assert counts(sketch, "category") == {"a": 1, "b": 3, "unknown": 1}
    assert counts(sketch, "value") == {"none": 2, "=4": 1, "+32": 1}
    assert counts(sketch, "user.country") == {"DE": 1, "FR": 1, "unknown": 1}
    assert counts(sketch, "hour") == {"9": 4}
    assert list(edges) == ["item.price"]
    # Later columns fall into the bins that were cut first.
    _, kept = build_tables(items.with_columns(price=pl.col("price") * 100), users, edges)
    assert kept == edges
    sketch.save(tmp_path, date(2026, 11, 22))
    found = Sketch.load(tmp_path, date(2026, 11, 22))
    assert found is not None
    assert found.counts.equals(sketch.counts)
    assert Sketch.load(tmp_path, date(2026, 11, 23)) is None


def test_a_day_equal_to_its_window_lies_at_no_distance_and_another_afar() -> None:
    users = pl.DataFrame({"user_id": [f"u{n}" for n in range(100)], "country": ["DE", "FR"] * 50})
    tables, _ = build_tables(None, users)
    rows = [(f"u{n}", f"i{n % 7}", "view" if n % 2 else "buy", 5.0) for n in range(100)]
    joined = [(f"new{n}", "i0", "view", 5.0) for n in range(100)]
    usual, other, grown = (
        build_sketch(events_of(part), tables)
        for part in (rows, [(u, "z", "buy", 50.0) for u, *_ in rows], rows + joined)
    )
    config = MonitoringConfig()
    same, far, new = (measure(day, [usual] * 20, None, config) for day in (usual, other, grown))
    for name in ("event_types", "values", "popularity", "hour"):
        assert same[name].value == pytest.approx(0, abs=1e-6)
    assert far["values"].value == far["popularity"].value == pytest.approx(1)
    assert (same["new_items"].value, far["new_items"].value) == (0, 1)
    assert (far["mean_value"].value, far["effective_items"].value) == (50, 1)
    # Users that no run knows yet are no drift of users' columns.
    assert new["new_users"].value == pytest.approx(0.5)
    assert new["user.country"].value == pytest.approx(0, abs=1e-3)


def test_bands_return_to_the_values_that_were_scored_and_fewer_clicks_are_found() -> None:
    world = WorldConfig(days=60, users=800, items=250, events=1_500, holidays=0)
    watched = Watched()
    for day in World(world).days():
        watched.see(day)
    for name, one in watched.record.days[-1].items():
        value = find_signal(name).value_at(one.score)
        assert value == pytest.approx(one.value, rel=0.2, abs=0.005), name
    assert set(SIGNALS) <= set(watched.record.days[-1])
    assert "click_rate" in watched.with_drift(world, [Drift(kind="ctr", day=60, size=0.5)])


def test_served_lists_are_counted_once_with_their_clicks(tmp_path) -> None:
    time = datetime(2026, 11, 22, 23, 59, tzinfo=UTC)
    served = pl.DataFrame(
        {
            "request_id": ["a", "a", "b", "c"],
            "received_time": [time, time, time, time + timedelta(minutes=2)],
            "fallback": [None, None, "popularity", None],
            "degraded": [None, None, "unknown_user", "unknown_user"],
        }
    )
    events = pl.DataFrame(
        {"request_id": ["a", "a", "b"], "event_type": ["click", "like", "impression"]}
    )
    found = days_of_lists(served, events)
    assert found[date(2026, 11, 22)] == (2, 1, 1, 1)
    assert found[date(2026, 11, 23)] == (1, 0, 0, 1)
    assert days_of_lists(served.drop("fallback"), None)[date(2026, 11, 22)] == (2, 0, None, 1)
    assert served_days(tmp_path) == {}


def test_users_are_kept_up_to_a_limit_the_same_ones_each_day(monkeypatch) -> None:
    monkeypatch.setattr("pipelines.monitoring.sketch.MAX_USERS", 10)
    tables, _ = build_tables(None, None)
    rows = [(f"u{n}", "x", "view", None) for n in range(50)]
    first, second = (
        counts(build_sketch(events_of(part), tables), "user") for part in (rows, rows[::-1])
    )
    assert len(first) == 10
    assert first == second
