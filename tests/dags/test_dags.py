"""What the scheduler sees of the DAGs, and how their tasks end."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pipelines.cli.main import app
from pipelines.stages.list import STAGES
from tests.dags.conftest import DAGS, Airflow

NAMES = {
    "recsys_backfill": ["update_each_day"],
    "recsys_daily": ["gc", "ingest", "monitor", "parity", "sync", "update"],
    "recsys_hourly": ["count", "ingest", "pull_registry"],
    "recsys_monitoring": ["monitor", "status"],
}
READ_STDIN = "import sys; open('notices', 'a').write(sys.stdin.read() + chr(10))"
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("airflow")]


def probe(airflow: Airflow) -> dict[str, Any]:
    airflow.environment = {
        "RECSYS_COMMAND": "/bin/sh",
        "RECSYS_CONFIG": f"{airflow.home}/my shop/shop.toml",
        "RECSYS_WORKSPACE": f"{airflow.home}/my shop",
        "RECSYS_BUNDLES": f"{airflow.home}/bundles",
        "RECSYS_STORE": f"sqlite:{airflow.home}/online",
        "RECSYS_ON_FAILURE": shlex.join([sys.executable, "-c", READ_STDIN]),
    }
    output = airflow("python", Path(__file__).parent / "probe.py", DAGS)
    lines = [line for line in output.splitlines() if line.startswith("PROBE")]
    found: dict[str, Any] = json.loads(lines[-1].removeprefix("PROBE"))
    return found


def check_tasks(dags: dict[str, Any]) -> None:
    stages = [{"name": one.name, "reads": one.reads} for one in STAGES]
    weekly = dags["recsys_weekly"]["tasks"]
    assert set(weekly) == {stage["name"] for stage in stages}
    for stage in stages:
        for read in stage["reads"]:
            assert stage["name"] in weekly[read]["after"]
    edges = sum(len(task["after"]) for task in weekly.values())
    assert edges == sum(len(stage["reads"]) for stage in stages), "a chain that nobody needs"
    for dag, names in NAMES.items():
        assert sorted(dags[dag]["tasks"]) == names
    daily = dags["recsys_daily"]["tasks"]
    assert daily["ingest"]["after"] == ["monitor"]
    assert daily["monitor"]["after"] == ["update"]
    assert daily["update"]["after"] == ["gc", "parity", "sync"]
    hourly = dags["recsys_hourly"]["tasks"]
    assert hourly["pull_registry"]["after"] == ["ingest"]
    assert hourly["ingest"]["after"] == ["count"]
    assert dags["recsys_monitoring"]["tasks"]["monitor"]["after"] == ["status"]


def check_assets_and_limits(dags: dict[str, Any]) -> None:
    daily, weekly = dags["recsys_daily"]["tasks"], dags["recsys_weekly"]["tasks"]
    assert daily["ingest"]["outlets"] == ["recsys_partitions"]
    assert daily["update"]["outlets"] == weekly["release"]["outlets"] == ["recsys_bundle"]
    assert dags["recsys_monitoring"]["assets"] == ["recsys://bundle"]
    assert daily["update"]["pool"] == weekly["train_sequence"]["pool"] == "recsys_gpu"
    assert daily["ingest"]["pool"] == "default_pool"
    for name, dag in dags.items():
        assert dag["catchup"] is False, name
        assert dag["max_active_runs"] == 1
        assert 0 < dag["deadline"][0] < dag["seconds"]
        for task in dag["tasks"].values():
            assert task["seconds"] <= dag["deadline"][0]
            assert task["callbacks"] == 1
            assert task["retries"] == {"recsys_hourly": 0, "recsys_monitoring": 2}.get(name, 9)


def check_commands(dags: dict[str, Any]) -> None:
    for dag in dags.values():
        for name, task in dag["tasks"].items():
            result = CliRunner().invoke(app, task["arguments"])
            # It gets as far as looking for the files: every option is known.
            assert result.exit_code in (0, 2), (name, result.output)
            assert "Usage" not in result.output, (name, result.output)


def check_endings(endings: dict[str, str]) -> None:
    assert endings["0, first"] == "success"
    for code in (2, 3, 5, 70):
        assert endings[f"{code}, first"] == "AirflowFailException", code
    for code in (1, 71, 74, 75, 137):
        assert endings[f"{code}, first"] == "AirflowException", code
    # A workspace in use is waited for longer than a failure is tried.
    assert endings["75, third"] == "AirflowException"
    assert endings["74, third"] == "AirflowFailException"
    assert endings["2, invalid is retried"] == "AirflowException"
    assert endings["3, invalid is retried"] == "AirflowFailException"
    assert endings["75, busy is skipped"] == "AirflowSkipException"
    assert endings["74, busy is skipped"] == "AirflowException"


def test_the_scheduler_imports_all_dags_with_their_tasks_limits_and_endings(airflow: Airflow):
    found = probe(airflow)
    assert found["errors"] == {}
    assert set(found["dags"]) == {*NAMES, "recsys_weekly"}
    check_tasks(found["dags"])
    check_assets_and_limits(found["dags"])
    check_commands(found["dags"])
    check_endings(found["endings"])
    failed, late = (airflow.home / "notices").read_text().splitlines()
    assert json.loads(failed) == {
        "kind": "failure",
        "dag": "recsys_daily",
        "task": "update",
        "run": "r1",
        "error": "'; touch injected; echo '$(touch injected)",
    }
    assert json.loads(late) == {"kind": "deadline", "dag": "recsys_daily", "run": "r2"}
    assert not (airflow.home / "injected").exists()
