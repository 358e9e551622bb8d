"""What recsys status finds, and when it exits with 5."""

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from pipelines.cli.main import app
from pipelines.engine.history import recorded
from pipelines.operations.status import Status, read_status
from pipelines.partitions.manifest import Partition, PartitionsManifest, SetAside
from pipelines.publishing.promotion import note_release, promote
from pipelines.tracking.outbox import open_outbox

Aged = Callable[[Path, float], None]


@pytest.fixture
def shop(five_bundles: Path, tmp_path: Path) -> Path:
    """A workspace that serves v2."""
    shutil.copytree(five_bundles, tmp_path / "bundles", symlinks=True)
    promote(tmp_path / "bundles", "v2")
    return tmp_path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def look(shop: Path, **options: Any) -> Status:
    return read_status(shop, **{"max_bundle_days": 3, **options})


def test_all_is_well_with_a_young_bundle(shop):
    note_release(shop / "bundles", "v3", promoted=False)
    with recorded(shop, "update") as recording:
        recording.reasons.append("1 new partition")
    found = look(shop)
    assert found.problems == []
    assert found.served["champion"] == "v2"
    assert found.served["challenger"] == "v3"
    assert found.served["age_days"] < 0.1
    assert found.commands["update"]["last"]["outcome"] == "done"
    assert found.disk["free"] > 0
    before = {path: path.lstat().st_mtime_ns for path in shop.rglob("*")}
    result = run("status", shop)
    assert {path: path.lstat().st_mtime_ns for path in shop.rglob("*")} == before
    assert result.exit_code == 0, result.output
    assert result.output.startswith("all is well\nchampion: v2")
    assert json.loads(run("status", shop, "--json").stdout)["served"]["champion"] == "v2"


def test_an_old_bundle_is_late(shop, aged):
    aged(shop / "bundles/bundle-v2", 5)
    assert look(shop).problems == ["champion v2 was released 5.0 days ago (more than 3)"]
    assert look(shop, max_bundle_days=7).problems == []
    assert run("status", shop).exit_code == 5
    assert run("status", shop, "--max-bundle-days", 7).exit_code == 0


def test_nothing_that_is_served_is_a_problem(shop):
    shutil.rmtree(shop / "bundles/bundle-v2")
    assert "bundle v2 is missing" in look(shop).problems[0]
    shutil.rmtree(shop / "bundles")
    assert "no bundle was released" in look(shop).problems[0]
    assert run("status", shop / "nowhere").exit_code == 2


def test_a_failure_counts_until_the_command_ends_well(shop):
    with pytest.raises(OSError, match="No space"), recorded(shop, "update"):
        raise OSError(28, "No space left on device")
    (problem,) = look(shop).problems
    assert problem.startswith("recsys update failed at 2")
    assert "exit code 74" in problem
    assert "No space left" in problem
    with recorded(shop, "update"):
        pass
    assert look(shop).problems == []


def test_running_and_killed_commands_are_told_apart(shop):
    with recorded(shop, "run"):
        found = look(shop)
        assert [one["command"] for one in found.running] == ["run"]
        assert found.problems == []
    line = {"time": "2026-11-22T01:00:00+00:00", "command": "update", "seconds": 0}
    (shop / "running/update-1").write_text(json.dumps(line))
    assert look(shop).problems == ["recsys update of 2026-11-22T01:00:00+00:00 was killed"]


def partition(**fields: Any) -> Partition:
    return Partition(files=(), digests=(), rows=1, arrived="2026-11-21T06:00:00+00:00", **fields)


def test_partitions_that_do_not_come_are_late(shop):
    manifest = PartitionsManifest(
        source="events",
        partitions={"2026-11-18": partition(), "2026-11-20": partition()},
        set_aside={"2026-11-21": SetAside(files=(), reason="no column item_id", since="x")},
    )
    (shop / "partitions").mkdir()
    manifest.write(shop)
    midday = datetime(2026, 11, 21, 12, tzinfo=UTC)
    found = look(shop, now=midday)
    assert found.partitions["missing"] == ["2026-11-19"]
    assert found.problems == [
        "partitions missing: 2026-11-19",
        "partition 2026-11-21 was set aside: no column item_id",
    ]
    problems = look(shop, now=midday + timedelta(days=1, hours=1)).problems
    assert "partitions: none since 2026-11-20" in problems
    (shop / "partitions/partitions.json").write_text("{")
    assert "cannot be read" in look(shop).problems[0]


def test_alarms_of_the_monitor_count(shop):
    document = {
        **{"time": "x", "day": "2026-11-22", "retrain": True, "reason": "drift"},
        **{"alarm": True, "alarms": ["events.share", "freshness.bundle"]},
    }
    (shop / "monitoring").mkdir()
    path = shop / "monitoring/monitor.json"
    path.write_text(json.dumps(document))
    assert look(shop).problems == [
        "the monitor raised events.share, freshness.bundle for 2026-11-22"
    ]
    path.write_text(json.dumps({**document, "alarm": False, "alarms": []}))
    assert look(shop).problems == []


def test_records_that_wait_for_the_server_are_late_after_a_day(shop):
    run_file = open_outbox(shop).new_file("release")
    run_file.tags({"a": "b"})
    assert look(shop).waiting_records == 0, "it is running"
    run_file.end("FINISHED")
    found = look(shop)
    assert found.waiting_records == 1
    assert found.problems == []
    later = datetime.now(UTC) + timedelta(days=2)
    (problem,) = [one for one in look(shop, now=later).problems if "tracked runs" in one]
    assert "recsys registry send" in problem


def test_a_disk_that_cannot_take_a_run_is_a_problem(shop, monkeypatch):
    usage = shutil.disk_usage(shop)._replace(free=1 << 20)
    monkeypatch.setattr("pipelines.operations.status.shutil.disk_usage", lambda _: usage)
    assert "recsys gc makes room" in look(shop).problems[0]
