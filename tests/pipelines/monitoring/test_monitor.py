"""`recsys monitor` on a workspace of partitions: alarms, corrections, late inputs, exit codes."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from pipelines.cli.main import app
from pipelines.config.operation import MonitoringConfig
from pipelines.config.run import DataConfig, RunConfig
from pipelines.engine.history import read_history
from pipelines.inputs.opened_store import export_store
from pipelines.monitoring.days import event_days
from pipelines.monitoring.monitor import monitor, parse_moment
from pipelines.presets.resolve import ONLINE_EVENTS
from serving.online.events import Event
from serving.online.sqlite_store import SqliteStore
from serving.online.store import RequestRecord
from tests.pipelines.pages.read import blocks_in
from tests.year.world import Drift, World, WorldConfig

WORLD = WorldConfig(days=64, users=500, items=150, events=900, holidays=0)
FIRST = WORLD.first_day


def write_day(features: Path, day: date, events: pl.DataFrame) -> None:
    """Write a day as stage build_features does."""
    users = pl.read_parquet(features / "users.parquet")
    items = pl.read_parquet(features / "items.parquet")
    rows = events.join(users.select("user_id", "user_row"), on="user_id").join(
        items.select("item_id", "item_row"), on="item_id"
    )
    folder = features / "events" / f"day={day}"
    folder.mkdir(parents=True, exist_ok=True)
    rows.drop("user_id", "item_id", "session_id").write_parquet(folder / "part-00000.parquet")
    manifest = features / "manifest.json"
    files = json.loads(manifest.read_text())["files"] if manifest.exists() else {}
    files[f"events/day={day}/part-00000.parquet"] = str(rows.hash_rows().sum())
    manifest.write_text(json.dumps({"files": files}))


def workspace_of(folder: Path, drift: Drift | None = None, num_days: int = WORLD.days) -> RunConfig:
    """Prepare a workspace with the world's days as build_features writes them."""
    features = folder / "build_features"
    features.mkdir(parents=True)
    world = World(replace(WORLD, days=num_days), [] if drift is None else [drift])
    found = list(world.days())
    for name in ("items", "users"):
        table = getattr(found[-1], name)
        table.with_row_index(f"{name[:-1]}_row", offset=1).write_parquet(
            features / f"{name}.parquet"
        )
    for day in found:
        if day.events.height:
            write_day(features, day.date, day.events)
    return RunConfig(workspace=folder)


def as_of(num_days: int) -> datetime:
    """Give the moment at which so many days are over."""
    return datetime.combine(FIRST + timedelta(days=num_days), datetime.min.time(), UTC)


@pytest.fixture(scope="module")
def quiet(tmp_path_factory):
    config = workspace_of(tmp_path_factory.mktemp("quiet"))
    return config, monitor(config, as_of(WORLD.days)).document


def test_a_quiet_day_raises_no_alarm_and_is_said_in_words(quiet):
    config, document = quiet
    assert not document["alarm"]
    assert not document["retrain"]
    assert document["day"] == str(FIRST + timedelta(days=WORLD.days - 1))
    assert document["words"][0].startswith(f"{document['day']}: quiet")
    names = {one["name"] for one in document["signals"]}
    assert {"events", "event_types", "values", "categories", "popularity", "two_sample"} <= names
    assert {"hour", "item.price", "user.age", "user.country"} <= names
    shown = blocks_in(config.workspace / "monitoring" / "monitor.html")
    drawn = {one["key"] for one in shown if one["kind"] == "chart"}
    assert drawn == {name.replace(".", "-") for name in names}
    values = {row[0]: row[3] for one in shown if one["key"] == "signals" for row in one["rows"]}
    assert values == {one["title"]: one["value"] for one in document["signals"]}


def test_a_second_call_measures_nothing_and_leaves_the_days_as_they_are(quiet):
    config, document = quiet
    path = config.workspace / "monitoring" / "days.parquet"
    before = pl.read_parquet(path)
    twin = monitor(config, as_of(WORLD.days)).document
    assert twin["measured_days"] == 0
    assert twin["signals"] == document["signals"]
    assert pl.read_parquet(path).equals(before)


def test_days_watched_one_by_one_are_judged_as_in_one_go(quiet, tmp_path):
    config = workspace_of(tmp_path / "shop", num_days=40)
    for num_days in (38, 39, 40):
        monitor(config, as_of(num_days))
    columns = ["date", "signal", "value", "streak"]
    single = pl.read_parquet(config.workspace / "monitoring" / "days.parquet").select(columns)
    whole = workspace_of(tmp_path / "other", num_days=40)
    monitor(whole, as_of(40))
    twin = pl.read_parquet(whole.workspace / "monitoring" / "days.parquet").select(columns)
    assert single.sort("date", "signal").equals(twin.sort("date", "signal"))


def test_drift_is_found_on_its_first_day_and_asks_for_a_retrain(tmp_path):
    last = WORLD.days - 1
    config = workspace_of(tmp_path / "shop", Drift(kind="category", day=last, size=0.5))
    document = monitor(config, as_of(WORLD.days)).document
    assert document["alarm"]
    assert "categories" in document["alarms"]
    assert document["retrain"]
    assert document["reason"].startswith(f"since {FIRST + timedelta(days=last)} ")
    assert "mix of categories" in document["reason"]


def test_too_little_past_is_said_instead_of_an_alarm(tmp_path):
    config = workspace_of(tmp_path / "shop", Drift(kind="category", day=20, size=0.9), num_days=22)
    document = monitor(config, as_of(22)).document
    assert not document["alarm"]
    assert {one["state"] for one in document["signals"]} == {"learning"}
    assert any("Too little past" in text for text in document["words"])


def test_a_corrected_day_is_measured_anew_and_the_alarm_goes(tmp_path):
    last = WORLD.days - 1
    config = workspace_of(tmp_path / "shop", Drift(kind="event_mix", day=last, size=0.8))
    assert "event_types" in monitor(config, as_of(WORLD.days)).document["alarms"]
    corrected = list(World(WORLD).days())[-1]
    write_day(config.workspace / "build_features", corrected.date, corrected.events)
    document = monitor(config, as_of(WORLD.days)).document
    assert document["measured_days"] == 1
    assert not document["alarm"]


def test_an_input_that_stops_is_late_and_no_reason_to_retrain(quiet):
    config, _ = quiet
    document = monitor(config, as_of(WORLD.days + 1)).document
    assert {"freshness.events", "events"} <= set(document["alarms"])
    assert not document["retrain"]
    (late,) = [one for one in document["freshness"] if one["name"] == "events"]
    assert late["alarm"]
    assert "late" in late["words"]


def test_a_long_past_is_measured_from_its_end_and_stays_where_it_began(tmp_path, monkeypatch):
    config = workspace_of(tmp_path / "shop", num_days=30)
    monkeypatch.setattr("pipelines.monitoring.monitor.HISTORY_DAYS", 9)
    assert monitor(config, as_of(29)).document["num_days"] == 10
    later = monitor(config, as_of(30)).document
    assert (later["num_days"], later["measured_days"]) == (11, 1)


def test_the_age_of_an_input_may_be_limited_by_hand(tmp_path):
    config = workspace_of(tmp_path / "shop", num_days=10)
    catalogue = tmp_path / "items.csv"
    catalogue.write_text("item_id\n1\n")
    config = replace(
        config,
        data=DataConfig(items=catalogue),
        monitoring=MonitoringConfig(max_age_days={"catalogue": 2.0}),
    )
    changed = datetime.fromtimestamp(int(catalogue.stat().st_mtime), UTC)
    early = monitor(config, changed + timedelta(days=1)).document
    late = monitor(config, changed + timedelta(days=3)).document
    assert "freshness.catalogue" not in early["alarms"]
    assert "freshness.catalogue" in late["alarms"]


def test_the_command_exits_with_5_on_an_alarm_and_is_in_the_history(tmp_path):
    config = workspace_of(tmp_path / "shop", num_days=30)
    (config.workspace / "config.toml").write_text(f'workspace = "{config.workspace}"\n')
    arguments = ["monitor", "--workspace", str(config.workspace), "--as-of"]
    calm = CliRunner().invoke(app, [*arguments, str(as_of(30).date())])
    assert calm.exit_code == 0, calm.output
    late = CliRunner().invoke(app, [*arguments, str(as_of(32).date())])
    assert late.exit_code == 5
    wrong = CliRunner().invoke(app, [*arguments, "yesterday"])
    assert wrong.exit_code == 2
    codes = [one.exit_code for one in read_history(config.workspace)]
    assert codes == [0, 5, 2]


def test_a_workspace_without_days_is_refused_with_what_to_do(tmp_path):
    with pytest.raises(ValueError, match="run recsys ingest or recsys run first"):
        monitor(RunConfig(workspace=tmp_path))


def test_days_are_given_with_their_ids_in_order(quiet):
    config, _ = quiet
    known = event_days(config.workspace)
    found = [(day, known.read(day)) for day in known.digests]
    assert [day for day, _ in found] == list(event_days(config.workspace).digests)
    world = list(World(WORLD).days())
    assert found[3][1].height == world[3].events.height
    assert set(found[3][1]["item_id"]) == set(world[3].events["item_id"])


def test_moments_without_a_zone_are_in_utc():
    assert parse_moment("2026-11-22") == datetime(2026, 11, 22, tzinfo=UTC)
    with pytest.raises(ValueError, match="must be a day or time"):
        parse_moment("soon")


def test_served_lists_are_watched_as_a_store_exports_them(tmp_path):
    world = WorldConfig(days=8, users=100, items=50, events=240, holidays=0)
    config = workspace_of(tmp_path / "shop", num_days=8)
    store = SqliteStore(tmp_path / "online")
    found = list(World(world).days())
    for day in found:
        lists = day.served.group_by("request_id", maintain_order=True).agg(
            pl.col("received_time", "user_id", "fallback").first(), pl.col("item_id")
        )
        store.add_requests(
            [
                RequestRecord(
                    row["request_id"],
                    int(row["received_time"].timestamp() * 1_000),
                    row["user_id"],
                    json.dumps(
                        {
                            "items": [{"item_id": one} for one in row["item_id"]],
                            "fallback": row["fallback"],
                        }
                    ).encode(),
                )
                for row in lists.to_dicts()
            ]
        )
        store.add_events(
            [
                Event(
                    event_id=f"click-{row['request_id']}",
                    user_id=row["user_id"],
                    item_id=row["item_id"],
                    event_type="click",
                    time_ms=int(row["event_time"].timestamp() * 1_000),
                    received_ms=int(row["event_time"].timestamp() * 1_000),
                    request_id=row["request_id"],
                )
                for row in day.clicks.to_dicts()
            ]
        )
    store.close()
    export_store(f"sqlite:{tmp_path / 'online'}", config.workspace / ONLINE_EVENTS)
    document = monitor(config, as_of(8)).document
    values = {one["name"]: one["value"] for one in document["signals"]}
    last = found[-1]
    assert values["lists"] == last.served["request_id"].n_unique()
    assert values["click_rate"] == pytest.approx(last.clicks.height / values["lists"])
    with_fallback = last.served.filter(pl.col("fallback").is_not_null())["request_id"].n_unique()
    assert values["fallback_share"] == pytest.approx(with_fallback / values["lists"])
    # A server that has stopped, or an export that was not made.
    late = monitor(config, as_of(9)).document
    assert {one["name"]: one["value"] for one in late["signals"]}["lists"] == 0
