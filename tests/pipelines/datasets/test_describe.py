from datetime import UTC, datetime, timedelta

import polars as pl

from pipelines.datasets.describe import describe

MONDAY = datetime(2024, 1, 1, tzinfo=UTC)


def events(times: list[datetime], items: list[str]) -> pl.DataFrame:
    return pl.DataFrame({"user_id": ["u"] * len(times), "item_id": items, "event_time": times})


def test_facts_are_counted() -> None:
    table = events([MONDAY, MONDAY + timedelta(days=2, hours=1)], ["b", "a"])
    facts = dict(describe(table).facts)
    assert facts["events"] == "2"
    assert facts["density"] == "100.000% of all user-item pairs"
    assert facts["time span"] == "2024-01-01 to 2024-01-03 (2 days)"
    assert describe(table).warnings == []


def test_ties_sorted_by_id_at_day_resolution_are_noticed() -> None:
    warnings = " ".join(describe(events([MONDAY] * 4, ["a", "b", "c", "d"])).warnings)
    assert "100% of the events share their time" in warnings
    assert "sorted by id" in warnings
    assert "resolution of a day" in warnings
    shuffled = " ".join(describe(events([MONDAY] * 4, ["c", "a", "d", "b"])).warnings)
    assert "sorted by id" not in shuffled


def test_repeats_and_future_dates_are_noticed() -> None:
    later = datetime.now(UTC) + timedelta(days=400)
    warnings = describe(events([MONDAY, later], ["a", "a"])).warnings
    assert warnings == [
        "1 events repeat a user and item seen before",
        "1 events lie in the future",
    ]


def test_order_without_times_is_said() -> None:
    table = pl.DataFrame({"user_id": ["u"], "item_id": ["a"], "sequence_index": [0]})
    assert "only the order is known" in describe(table).warnings[0]
