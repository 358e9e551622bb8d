from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl

from features.schema import SourceConfig
from pipelines.datasets.describe import describe, share_that_fits, typed_events
from tests.recsys.testing.worlds import WorldConfig, world

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
    assert [warning.split(";")[0].split(" and will")[0] for warning in warnings] == [
        "1 events repeat a user and item seen before",
        "1 events lie in the future",
    ]
    assert "evaluation.exclude_history = false" in warnings[0]
    assert "data.time_unit" in warnings[1]


def test_users_of_one_event_and_a_dominant_item_are_noticed() -> None:
    table = pl.DataFrame({
        "user_id": [f"u{n}" for n in range(10)],
        "item_id": ["bag"] * 6 + ["a", "b", "c", "d"],
        "value": [1.0] * 10,
        "sequence_index": range(10),
    })  # fmt: skip
    warnings = " ".join(describe(table).warnings)
    assert "10 of 10 users have one event" in warnings
    assert "item 'bag' has 60% of the events" in warnings
    assert "value is the same in every event" in warnings


def test_planted_defects_are_read_as_the_run_reads_them(tmp_path: Path) -> None:
    made = world(WorldConfig(seed=5))
    table = pl.DataFrame({
        "user_id": made.events.user_ids, "item_id": made.events.item_ids,
        "when": made.events.times,
    })  # fmt: skip
    future, early = pl.lit(4_857_667_200), pl.lit(3, dtype=pl.Int64)
    planted = [table.head(7), table.head(4).with_columns(when=future)]
    table = pl.concat([table, *planted, table.head(3).with_columns(when=early)])
    table.write_csv(tmp_path / "events.csv")
    source = SourceConfig(paths=(tmp_path / "events.csv",), columns={"event_time": "when"})
    warnings = describe(typed_events(source)).warnings
    assert any(warning.startswith("4 events lie in the future") for warning in warnings)
    assert any(warning.startswith("3 events lie before 1990") for warning in warnings)
    assert any("events repeat a user and item" in warning for warning in warnings)
    with (tmp_path / "events.csv").open("a") as file:
        file.write("u,i,yesterday\n")
    again = " ".join(describe(typed_events(source)).warnings)
    assert "1 events have no readable event_time" in again


def test_of_a_log_larger_than_memory_some_users_are_described_whole(tmp_path: Path) -> None:
    users = [f"u{number // 3}" for number in range(3_000)]
    times = [MONDAY] * len(users)
    path = tmp_path / "events.parquet"
    pl.DataFrame({"user_id": users, "item_id": users, "event_time": times}).write_parquet(path)
    source = SourceConfig(paths=(path,))
    assert share_that_fits(source, 10**10) == 1
    assert share_that_fits(source, path.stat().st_size * 30) == 2
    some = typed_events(source, 4)
    counts = some.group_by("user_id").len()
    assert counts["len"].unique().to_list() == [3]
    assert 150 < counts.height < 350
