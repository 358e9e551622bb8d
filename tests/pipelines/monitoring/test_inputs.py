"""Where days, vectors and ages come from."""

from __future__ import annotations

import os
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from pipelines.config.monitoring import MonitoringConfig
from pipelines.config.run import DataConfig, RunConfig
from pipelines.monitoring.days import event_days
from pipelines.monitoring.freshness import freshness_of, seen_times
from pipelines.monitoring.run import State, export_folder, monitor
from pipelines.monitoring.trained_days import full_run_until
from pipelines.monitoring.vectors import vectors_of_bundle
from pipelines.partitions.ingest import ingest
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
        found = freshness_of(config, as_of, days, [], {"bundle": times})
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


def test_a_damaged_state_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text('{"sources": ')
    with pytest.raises(ValueError, match="the next recsys monitor measures all days afresh"):
        State.load(path)


def test_a_folder_without_served_lists_is_refused(tmp_path: Path) -> None:
    config = RunConfig(workspace=tmp_path, monitoring=MonitoringConfig(served=tmp_path))
    with pytest.raises(ValueError, match=r"monitoring\.served"):
        export_folder(config)
    assert export_folder(RunConfig(workspace=tmp_path)) is None
    assert full_run_until(RunConfig(workspace=tmp_path)) is None
