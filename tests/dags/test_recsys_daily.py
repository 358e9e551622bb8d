import ast
import importlib.util
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner

from pipelines.cli.main import app
from pipelines.engine.workspace import Workspace

ROOT = Path(__file__).parents[2]
FILE = ROOT / "dags" / "recsys_daily.py"
AIRFLOW = Path(os.environ.get("RECSYS_AIRFLOW_VENV", ROOT / ".venv-airflow")) / "bin" / "airflow"


class Skipped(Exception):
    """Stands in for AirflowSkipException."""


class Failed(Exception):
    """Stands in for AirflowFailException, after which there is no retry."""


class Task:
    """Stands in for BashOperator: keeps what it was given and what comes after it, and runs it."""

    made: list["Task"]

    def __init__(
        self, *, task_id: str, bash_command: str, skip_on_exit_code: tuple[int, ...]
    ) -> None:
        self.task_id, self.bash_command, self.after = task_id, bash_command, []
        self.skip_on_exit_code = skip_on_exit_code
        Task.made.append(self)

    def execute(self, context: object) -> None:
        code = subprocess.run(["bash", "-c", self.bash_command], check=False).returncode
        if code in self.skip_on_exit_code:
            raise Skipped(f"exit code {code}.")
        if code:
            raise OSError(f"exit code {code}")

    def __rshift__(self, other: "Task") -> "Task":
        self.after.append(other.task_id)
        return other


class Dag:
    """Stands in for airflow.sdk.DAG."""

    settings: dict[str, Any]

    def __init__(self, **settings: Any) -> None:
        Dag.settings = settings

    def __enter__(self) -> "Dag":
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> list[Task]:
    """Load the DAG file without Airflow and return its tasks."""
    operators = ModuleType("airflow.providers.standard.operators.bash")
    operators.BashOperator = Task  # type: ignore[attr-defined]
    sdk = ModuleType("airflow.sdk")
    sdk.DAG = Dag  # type: ignore[attr-defined]
    sdk.CronDataIntervalTimetable = lambda cron, timezone: (cron, timezone)  # type: ignore[attr-defined]
    exceptions = ModuleType("airflow.sdk.exceptions")
    exceptions.AirflowSkipException = Skipped  # type: ignore[attr-defined]
    exceptions.AirflowFailException = Failed  # type: ignore[attr-defined]
    for module in (operators, sdk, exceptions):
        monkeypatch.setitem(sys.modules, module.__name__, module)
        above = module.__name__.split(".")
        for depth in range(1, len(above)):
            name = ".".join(above[:depth])
            if name not in (sdk.__name__, operators.__name__):
                monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setenv("RECSYS_COMMAND", "/srv/my venv/bin/recsys")
    monkeypatch.setenv("RECSYS_CONFIG", "/etc/recsys/shop.toml")
    monkeypatch.setenv("RECSYS_WORKSPACE", "/data/runs")
    monkeypatch.setenv("RECSYS_EVENTS", "/data/events/{day}.parquet")
    Task.made = []
    spec = importlib.util.spec_from_file_location("recsys_daily", FILE)
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    return Task.made


def test_tasks_are_the_stages_of_the_command_line_one_after_the_other(tasks: list[Task]):
    listed = json.loads(CliRunner().invoke(app, ["stages", "--json"]).stdout)
    names = [stage["name"] for stage in listed]
    assert [task.task_id for task in tasks] == names
    assert [task.after for task in tasks] == [[name] for name in names[1:]] + [[]]


def test_each_task_is_a_command_that_the_command_line_takes(tasks: list[Task]):
    for task in tasks:
        program, *arguments = shlex.split(task.bash_command.removeprefix("exec "))
        assert program == "/srv/my venv/bin/recsys"
        assert arguments[-2:] == ["--stage", task.task_id]
        assert "/data/runs/{{ data_interval_start | ds }}" in arguments
        assert 'data.events="/data/events/{{ data_interval_start | ds }}.parquet"' in arguments
        # Without the file it gets as far as looking for it: every option is known.
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 2
        assert "/etc/recsys/shop.toml" in result.stderr


@pytest.mark.parametrize(
    ("code", "error"), [(3, Failed), (70, Failed), (2, OSError), (74, OSError), (75, OSError)]
)
def test_only_what_would_end_equally_again_is_not_tried_again(
    tasks: list[Task], code: int, error: type[Exception]
):
    tasks[0].bash_command = f"exit {code}"
    with pytest.raises(error, match=f"exit code {code}"):
        tasks[0].execute({})


def test_one_run_at_a_time_no_catching_up_and_limits(tasks: list[Task]):
    settings = Dag.settings
    assert settings["catchup"] is False
    assert settings["max_active_runs"] == 1
    assert settings["schedule"] == ("@daily", "UTC")
    assert settings["start_date"].tzinfo is not None
    assert settings["default_args"]["retries"] >= 1
    assert settings["default_args"]["execution_timeout"] < settings["dagrun_timeout"]


def test_the_file_imports_airflow_and_the_standard_library_only():
    for node in ast.walk(ast.parse(FILE.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for name in names:
            top = name.split(".")[0]
            assert top == "airflow" or top in sys.stdlib_module_names, name


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not AIRFLOW.exists(), reason="needs Airflow: make install-airflow")
def test_airflow_runs_a_tiny_world_from_events_to_a_bundle(tmp_path: Path, tiny_shop: Path):
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(FILE.parent),
        "RECSYS_COMMAND": str(Path(sys.executable).parent / "recsys"),
        "RECSYS_CONFIG": str(tiny_shop),
        "RECSYS_WORKSPACE": str(tmp_path / "runs"),
    }

    def airflow(*arguments: str) -> str:
        child = subprocess.run(
            [str(AIRFLOW), *arguments],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        told = child.stdout[-4000:] + child.stderr[-4000:]
        assert child.returncode == 0, told
        return told

    airflow("db", "migrate")
    told = airflow("dags", "test", "recsys_daily", "2026-01-02")

    # A run at the start of the second is of the whole first.
    workspace = tmp_path / "runs" / "2026-01-01"
    assert Workspace(workspace).manifest("release") is not None, told
    assert (tmp_path / "runs" / "bundles" / "current" / "manifest.json").is_file()
    assert not (tmp_path / "runs" / "2026-01-02").exists()
