"""Sources of days and ages."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

from pipelines.config.run import DataConfig, RunConfig
from pipelines.engine.errors import WorkspaceBusyError
from pipelines.engine.workspace import DailyState
from pipelines.monitoring.days import EventDays
from pipelines.monitoring.document import decide_retrain, judge_inputs
from pipelines.monitoring.monitor import LOCK, monitor
from pipelines.partitions.ingest import ingest
from recsys.data.durable import locked
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


def test_days_come_from_partitions_and_corrections_change_their_digest(shop):
    before = EventDays.find(shop.workspace)
    assert len(before.digests) == 20
    day = list(before.digests)[4]
    rows = before.read(day)
    assert rows.columns == ["user_id", "item_id", "event_type"]
    assert rows.height == pl.read_parquet(f"{shop.data.partitions}/{day}.parquet").height
    path = Path(str(shop.data.partitions)) / f"{day}.parquet"
    pl.read_parquet(path).head(30).write_parquet(path)
    ingest(shop, lambda line: None)
    after = EventDays.find(shop.workspace)
    assert after.read(day).height == 30
    changed = [one for one in before.digests if before.digests[one] != after.digests[one]]
    assert changed == [day]


def test_an_input_is_late_by_what_its_past_gaps_teach(tmp_path):
    config = RunConfig(workspace=tmp_path)
    days = [date(2026, 10, 1) + number * DAY for number in range(40)]

    def is_late(as_of: datetime) -> bool:
        (found,) = judge_inputs(config, as_of, days, [])
        return found.alarm

    after = datetime(2026, 11, 10, tzinfo=UTC)
    assert [is_late(after + age * DAY) for age in (0.9, 1.1)] == [False, True]
    # A shop that rests on Sundays is not late on Mondays.
    days[:] = [day for day in days if day.weekday() < 6]
    last = datetime.combine(days[-1], datetime.min.time(), UTC)
    assert [is_late(last + age * DAY) for age in (2.9, 3.1)] == [False, True]


def test_a_second_monitor_of_a_workspace_is_refused_while_the_first_runs(shop):
    folder = DailyState(shop.workspace).monitoring
    folder.mkdir()
    with locked(folder / LOCK), pytest.raises(WorkspaceBusyError, match="another"):
        monitor(shop, NOON)


def test_damaged_files_are_refused_by_name(shop):
    last = list(EventDays.find(shop.workspace).digests)[-1]
    state = DailyState(shop.workspace)
    monitor(shop, datetime(last.year, last.month, last.day, tzinfo=UTC))
    for path, damaged in ((state.signals, b"PAR1"), (state.watched, b'{"days": ')):
        before = path.read_bytes()
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=rf"{path.name}.* measures all days again"):
            monitor(shop, NOON)
        path.write_bytes(before)
    (clean,) = (shop.workspace / "partitions" / "days").glob(f"{last}~1/*.parquet")
    clean.write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=str(last)):
        EventDays.find(shop.workspace).read(last)


def test_a_retrain_helps_against_drift_alone():
    drifted = {"title": "mix of items", "drift": True, "since": "2026-11-20"}
    assert decide_retrain([drifted]) == (True, "since 2026-11-20 mix of items")
    assert decide_retrain([{**drifted, "drift": False}])[0] is False
    assert decide_retrain([]) == (False, "no drift")
