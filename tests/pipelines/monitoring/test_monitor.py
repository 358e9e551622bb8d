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
from pipelines.engine.workspace import DailyState
from pipelines.inputs.online_events import export_store
from pipelines.monitoring.days import export_folder
from pipelines.monitoring.monitor import monitor, parse_moment
from pipelines.partitions.manifest import Partition, PartitionsManifest
from serving.online.events import Event
from serving.online.sqlite_store import SqliteStore
from serving.online.store import RequestRecord
from tests.pipelines.pages.read import blocks_in
from tests.year.world import Drift, World, WorldConfig

WORLD = WorldConfig(days=64, users=500, items=150, events=900, holidays=0)
FIRST = WORLD.first_day


def write_day(workspace: Path, day: date, events: pl.DataFrame) -> None:
    """Write a day as ingested, in a new version each time."""
    empty = PartitionsManifest(source="events")
    manifest = PartitionsManifest.read(workspace) or empty
    before = manifest.partitions.get(f"{day}")
    partition = Partition(
        files=(),
        digests=(str(events.hash_rows().sum()),),
        revision=before.revision + 1 if before else 1,
        rows=events.height,
        arrived="",
    )
    folder = DailyState(workspace).partition(f"{day}", partition.revision)
    folder.mkdir(parents=True)
    events.write_parquet(folder / "events-00000.parquet")
    manifest.with_partition(f"{day}", partition).write(workspace)


def workspace_of(folder: Path, drift: Drift | None = None, num_days: int = WORLD.days) -> RunConfig:
    """Prepare a workspace with the world's days."""
    folder.mkdir(parents=True, exist_ok=True)
    world = World(replace(WORLD, days=num_days), [] if drift is None else [drift])
    for day in world.days():
        if day.events.height:
            write_day(folder, day.date, day.events)
    return RunConfig(workspace=folder)


def as_of(num_days: int) -> datetime:
    """Give the moment at which so many days are over."""
    return datetime.combine(FIRST + timedelta(days=num_days), datetime.min.time(), UTC)


@pytest.fixture(scope="module")
def quiet(tmp_path_factory):
    config = workspace_of(tmp_path_factory.mktemp("quiet"))
    return config, monitor(config, as_of(WORLD.days)).document


def test_a_quiet_day_raises_no_alarm_and_a_second_call_changes_nothing(quiet):
    config, document = quiet
    assert not document["alarm"]
    assert not document["retrain"]
    assert document["day"] == str(FIRST + timedelta(days=WORLD.days - 1))
    assert document["words"][0].startswith(f"{document['day']}: quiet")
    names = {one["name"] for one in document["signals"]}
    assert names == {"events", "users", "event_types", "popularity", "new_items"}
    shown = blocks_in(config.workspace / "monitoring" / "monitor.html")
    drawn = {one["key"] for one in shown if one["kind"] == "chart"}
    assert drawn == names
    values = {row[0]: row[2] for one in shown if one["key"] == "signals" for row in one["rows"]}
    assert values == {one["title"]: one["value"] for one in document["signals"]}

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


def test_too_little_past_is_said_instead_of_an_alarm(tmp_path):
    config = workspace_of(tmp_path / "shop", Drift(kind="category", day=20, size=0.9), num_days=22)
    document = monitor(config, as_of(22)).document
    assert not document["alarm"]
    assert {one["state"] for one in document["signals"]} == {"learning"}
    assert all("too little past" in one["words"] for one in document["signals"])


def test_drift_asks_for_a_retrain_until_the_day_is_corrected(tmp_path):
    last = WORLD.days - 1
    config = workspace_of(tmp_path / "shop", Drift(kind="event_mix", day=last, size=0.8))
    document = monitor(config, as_of(WORLD.days)).document
    assert "event_types" in document["alarms"]
    assert document["retrain"]
    assert document["reason"].startswith(f"since {FIRST + timedelta(days=last)} ")
    corrected = list(World(WORLD).days())[-1]
    write_day(config.workspace, corrected.date, corrected.events)
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
    measured = [monitor(config, as_of(days)).document["measured_days"] for days in (29, 30)]
    assert measured == [10, 1]


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
    arguments = ["monitor", str(config.workspace), "--as-of"]
    calm = CliRunner().invoke(app, [*arguments, str(as_of(30).date())])
    assert calm.exit_code == 0, calm.output
    late = CliRunner().invoke(app, [*arguments, str(as_of(32).date())])
    assert late.exit_code == 5
    wrong = CliRunner().invoke(app, [*arguments, "yesterday"])
    assert wrong.exit_code == 2
    codes = [one.exit_code for one in read_history(config.workspace)]
    assert codes == [0, 5, 2]


def test_bad_inputs_are_refused_with_what_to_do(tmp_path):
    config = RunConfig(workspace=tmp_path, monitoring=MonitoringConfig(served=tmp_path))
    refused = {
        "and run recsys ingest": lambda: monitor(config),
        "must be a day or time": lambda: parse_moment("soon"),
        "monitoring.served": lambda: export_folder(config),
        "reference_days must be >= 7, got 3": lambda: MonitoringConfig(reference_days=3),
        "false_alarms_a_month": lambda: MonitoringConfig(false_alarms_a_month=0),
    }
    for message, call in refused.items():
        with pytest.raises(ValueError, match=message):
            call()
    assert parse_moment("2026-11-22") == datetime(2026, 11, 22, tzinfo=UTC)
    assert export_folder(RunConfig(workspace=tmp_path)) is None


def test_served_lists_are_watched_as_a_store_exports_them(tmp_path):
    """Forty lists a day, of which six are popular items alone and ten are clicked on."""
    config = workspace_of(tmp_path / "shop", num_days=8)
    records, events = [], []
    for number in range(8 * 40):
        day, place = divmod(number, 40)
        at_ms = int(as_of(day).timestamp() * 1_000) + 60_000 * place
        request_id = f"{at_ms:012x}{number:020x}"
        fallback = "popularity" if place < 6 else None
        document = json.dumps({"items": [{"item_id": "i"}] * 2, "fallback": fallback}).encode()
        records.append(RequestRecord(request_id, at_ms, "u", document))
        if place % 4 == 0:
            about = {"event_id": f"e{number}", "user_id": "u", "item_id": "i"}
            times = {"time_ms": at_ms + 5, "received_ms": at_ms + 5}
            events.append(Event(**about, **times, event_type="click", request_id=request_id))
    store = SqliteStore(tmp_path / "online")
    store.add_requests(records)
    store.add_events(events)
    store.close()
    export_store(f"sqlite:{tmp_path / 'online'}", DailyState(config.workspace).online_events)
    document = monitor(config, as_of(8)).document
    values = {one["name"]: one["value"] for one in document["signals"]}
    assert values["lists"] == 40
    assert values["click_rate"] == pytest.approx(0.25)
    assert values["fallback_share"] == pytest.approx(0.15)
    # A server that has stopped, or an export that was not made.
    late = monitor(config, as_of(9)).document
    assert {one["name"]: one["value"] for one in late["signals"]}["lists"] == 0
