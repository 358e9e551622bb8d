"""Where days, vectors and ages come from."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from pipelines.config.operation import MonitoringConfig
from pipelines.config.run import DataConfig, RunConfig
from pipelines.engine.errors import WorkspaceBusyError
from pipelines.monitoring.days import event_days, export_folder, full_run_until
from pipelines.monitoring.document import decide_retrain, judge_inputs, seen_times
from pipelines.monitoring.monitor import FOLDER, LOCK, State, monitor
from pipelines.monitoring.vectors import vectors_of_bundle
from pipelines.partitions.ingest import ingest
from pipelines.publishing.released import Released
from recsys.data.durable import locked
from serving.bundle.manifest import publish
from tests.serving.synthetic_bundle import SyntheticSize, write_synthetic_bundle
from tests.year.world import World, WorldConfig

DAY = timedelta(days=1)
NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)


@pytest.fixture
def shop(tmp_path: Path) -> RunConfig:
    """A shop whose days arrive as partitions, the last one corrupt."""
    folder = tmp_path / "events"
    folder.mkdir()
    for day in World(WorldConfig(days=20, users=200, items=80, events=300)).days():
        day.events.write_parquet(folder / f"{day.date}.parquet")
    config = RunConfig(workspace=tmp_path / "run", data=DataConfig(partitions=str(folder)))
    ingest(config, lambda line: None)
    return config


def test_days_come_from_partitions_and_corrections_change_their_digest(shop: RunConfig) -> None:
    before = event_days(shop.workspace)
    assert len(before.digests) == 20
    day = list(before.digests)[4]
    rows = before.read(day)
    assert {"user_id", "item_id", "event_time", "event_type", "value", "domain"} <= set(
        rows.columns
    )
    assert rows["event_time"].dt.date().unique().to_list() == [day]
    path = Path(str(shop.data.partitions)) / f"{day}.parquet"
    pl.read_parquet(path).head(30).write_parquet(path)
    ingest(shop, lambda line: None)
    after = event_days(shop.workspace)
    assert after.read(day).height == 30
    changed = [one for one in before.digests if before.digests[one] != after.digests[one]]
    assert changed == [day]


def test_partitions_that_are_set_aside_or_missing_raise_an_alarm(shop: RunConfig) -> None:
    folder = Path(str(shop.data.partitions))
    last = date.fromisoformat(sorted(folder.glob("*.parquet"))[-1].stem)
    as_of = datetime(last.year, last.month, last.day, 6, tzinfo=UTC) + 4 * DAY
    assert "freshness.partitions" not in monitor(shop, as_of).document["alarms"]
    (folder / f"{last + DAY}.parquet").write_bytes(b"PAR1 torn")
    (folder / f"{last + 3 * DAY}.parquet").write_bytes((folder / f"{last}.parquet").read_bytes())
    ingest(shop, lambda line: None)
    document = monitor(shop, as_of).document
    assert "freshness.partitions" in document["alarms"]
    (found,) = [one for one in document["freshness"] if one["name"] == "partitions"]
    assert f"{last + DAY}" in found["words"]


def test_vectors_are_those_of_the_served_bundle(tmp_path: Path) -> None:
    assert vectors_of_bundle(tmp_path / "bundles" / "current") is None
    size = SyntheticSize(num_items=50, num_users=30)
    write_synthetic_bundle(tmp_path / "bundles", "v1", size)
    publish(tmp_path / "bundles", "v1")
    vectors = vectors_of_bundle(tmp_path / "bundles" / "current")
    assert vectors is not None
    items = pl.Series(["nothing", *list(vectors.rows)[:3]])
    assert vectors.item_rows(items).tolist() == [-1, 1, 2, 3]
    assert np.linalg.norm(vectors.item_vectors[1:], axis=1) == pytest.approx(1)
    users = vectors.user_vectors(pl.Series(["nobody", "user-1", "user-2", "user-1"]))
    assert users.shape == (4, vectors.item_vectors.shape[1])
    assert not users[0].any()
    assert (users[1] == users[3]).all()


def test_an_input_is_late_by_what_its_past_gaps_teach(tmp_path: Path) -> None:
    config = RunConfig(workspace=tmp_path)
    days = [date(2026, 10, 1) + number * DAY for number in range(40)]
    weekly = [NOON - 7 * number * DAY for number in range(5, 0, -1)]

    def alarms(as_of: datetime, times: list[datetime]) -> dict[str, bool]:
        found = judge_inputs(config, as_of, days, [], {"bundle": times})
        return {one.name: one.alarm for one in found}

    after = datetime(2026, 11, 10, tzinfo=UTC)
    assert alarms(after + 0.9 * DAY, weekly) == {"events": False, "bundle": False}
    assert alarms(after + 1.1 * DAY, weekly)["events"]
    assert not alarms(NOON + 3 * DAY, weekly)["bundle"]
    assert alarms(NOON + 4 * DAY, weekly)["bundle"]
    assert not alarms(NOON + 400 * DAY, weekly[:3])["bundle"]
    # A shop that rests on Sundays is not late on Mondays.
    days[:] = [day for day in days if day.weekday() < 6]
    last = datetime.combine(days[-1], datetime.min.time(), UTC)
    assert not alarms(last + 2.9 * DAY, weekly)["events"]
    assert alarms(last + 3.1 * DAY, weekly)["events"]


def test_times_of_inputs_are_remembered_each_once(tmp_path: Path) -> None:
    catalogue = tmp_path / "items.csv"
    catalogue.write_text("item_id\n")
    config = RunConfig(workspace=tmp_path, data=DataConfig(items=catalogue))
    seen: dict[str, list[str]] = {}
    for moment in (NOON, NOON, NOON + DAY):
        os.utime(catalogue, (moment.timestamp(), moment.timestamp()))
        times = seen_times(config, seen, moment)
        seen = {name: [one.isoformat() for one in known] for name, known in times.items()}
    assert seen["catalogue"] == [NOON.isoformat(), (NOON + DAY).isoformat()]
    assert seen["bundle"] == []


def test_a_second_monitor_of_a_workspace_is_refused_while_the_first_runs(shop: RunConfig) -> None:
    (shop.workspace / FOLDER).mkdir()
    with locked(shop.workspace / FOLDER / LOCK), pytest.raises(WorkspaceBusyError, match="another"):
        monitor(shop, NOON)


def test_damaged_files_are_made_anew_or_refused_by_name(shop: RunConfig) -> None:
    last = list(event_days(shop.workspace).digests)[-1]
    as_of = datetime(last.year, last.month, last.day, tzinfo=UTC)
    folder = shop.workspace / FOLDER
    before = monitor(shop, as_of).document["signals"]
    for path in (folder / "days").glob("*.parquet"):
        path.write_bytes(path.read_bytes()[:50])
    after = monitor(shop, as_of + DAY).document
    assert after["measured_days"] == 1
    assert {one["name"] for one in before} <= {one["name"] for one in after["signals"]}
    (folder / "days.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=r"days\.parquet.* measures all days again"):
        monitor(shop, as_of + DAY)
    (clean,) = (shop.workspace / "partitions" / "days").glob(f"{last}~1/*.parquet")
    clean.write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=str(last)):
        event_days(shop.workspace).read(last)


def test_a_damaged_state_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text('{"sources": ')
    with pytest.raises(ValueError, match="the next recsys monitor measures all days again"):
        State.load(path)


def test_a_retrain_is_wanted_until_a_full_run_has_seen_the_alarm(tmp_path: Path) -> None:
    full = Released(
        version="v1",
        kind="full",
        time="2026-11-20T03:00:00+00:00",
        full_time="2026-11-20T03:00:00+00:00",
        full_version="v1",
        until=int(datetime(2026, 11, 19, 23, tzinfo=UTC).timestamp()),
    )
    increment = replace(
        full, version="v2", kind="incremental", time="2026-11-22T03:00:00+00:00", until=None
    )
    for one in (full, increment):
        folder = tmp_path / "released" / one.version
        folder.mkdir(parents=True)
        (folder / "released.json").write_text(json.dumps(asdict(one)))
    (tmp_path / "bundles" / "bundle-v2").mkdir(parents=True)
    (tmp_path / "bundles" / "current").symlink_to("bundle-v2")
    known = full_run_until(RunConfig(workspace=tmp_path))
    assert known == date(2026, 11, 19)
    (tmp_path / "released" / "v2" / "released.json").write_text('{"of": "another version"}')
    assert full_run_until(RunConfig(workspace=tmp_path)) is None
    drifted = {"title": "mix of categories", "drift": True, "since": "2026-11-20"}
    assert decide_retrain([drifted], known) == (True, "since 2026-11-20 mix of categories")
    wanted, reason = decide_retrain([{**drifted, "since": "2026-11-19"}], known)
    assert not wanted
    assert "trained on days up to 2026-11-19" in reason
    assert decide_retrain([{**drifted, "drift": False}], None)[0] is False
    assert decide_retrain([], None) == (False, "no drift")


def test_a_folder_without_served_lists_is_refused(tmp_path: Path) -> None:
    config = RunConfig(workspace=tmp_path, monitoring=MonitoringConfig(served=tmp_path))
    with pytest.raises(ValueError, match=r"monitoring\.served"):
        export_folder(config)
    assert export_folder(RunConfig(workspace=tmp_path)) is None
    assert full_run_until(RunConfig(workspace=tmp_path)) is None
