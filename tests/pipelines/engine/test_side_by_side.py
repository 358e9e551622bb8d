"""Two schedulers at once in one workspace (FAULTS 31), each a process of its own."""

import json
import os
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pipelines.engine.console import find_exit_code
from pipelines.engine.history import read_history, recorded
from pipelines.engine.runner import pick_stages, run_stages
from pipelines.engine.stage import Stage, StageContext, StageRows


@dataclass(frozen=True, kw_only=True)
class TinyConfig:
    """Stands in for RunConfig."""

    workspace: Path
    value: dict[str, int] = field(default_factory=dict)
    engine: str = "local"

    def raw_file_keys(self) -> list[str]:
        return []


def make(context: StageContext) -> StageRows:
    """Make an artefact once the file ``go-<stage>`` is there: a test decides what runs at once."""
    place, name = context.workspace.path, context.output.name.removeprefix(".partial-")
    (place / f"began-{name}").touch()
    while not (place / f"go-{name}").exists():
        time.sleep(0.005)
    found = [json.loads((path / "out.json").read_text()) for path in context.inputs.values()]
    (context.output / "out.json").write_text(json.dumps([name, *found]))
    return StageRows(rows_in=1, rows_out=1)


def stage(name: str, *reads: str) -> Stage:
    return Stage(
        name=name, description="", reads=reads, writes="", sections=("value",), function=make
    )


STAGES = [
    stage("source"),
    stage("left", "source"),
    stage("right", "source"),
    stage("join", "left", "right"),
]


def run(workspace: Path, stages: tuple[str, ...]) -> int:
    """Run stages, those with a ``!`` though nothing changed; return the exit code."""
    force = [name.removeprefix("!") for name in stages if name.startswith("!")]
    only = [name.removeprefix("!") for name in stages]
    config: Any = TinyConfig(workspace=workspace)
    try:
        with recorded(workspace, "run"):
            chosen = pick_stages(STAGES, only, None)
            run_stages(chosen, config, force=force, side_by_side=bool(only))
    except Exception as error:
        (workspace / f"message-{os.getpid()}").write_text(str(error))
        return find_exit_code(error)
    return 0


@dataclass
class Child:
    """A process forked off, so that it need not import everything."""

    pid: int
    workspace: Path

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def runs(self) -> bool:
        return os.waitpid(self.pid, os.WNOHANG) == (0, 0)


Start = Callable[..., Child]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    for name in ("source", "left", "right", "join"):
        (tmp_path / f"go-{name}").touch()
    return tmp_path


@pytest.fixture
def start(workspace: Path) -> Start:
    def start_child(*stages: str) -> Child:
        child = os.fork()
        if child == 0:
            try:
                os._exit(run(workspace, stages))
            finally:
                os._exit(99)
        return Child(child, workspace)

    return start_child


def ended(child: Child) -> tuple[int, str]:
    code, message = child.wait(), child.workspace / f"message-{child.pid}"
    return code, message.read_text() if message.exists() else ""


def until(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not come"
        time.sleep(0.005)


def begun(start: Start, workspace: Path, stage: str) -> Child:
    """Start a stage that stays in the middle until `let_go`."""
    (workspace / f"go-{stage}").unlink(missing_ok=True)
    (workspace / f"began-{stage}").unlink(missing_ok=True)
    child = start(f"!{stage}")
    until(workspace / f"began-{stage}")
    return child


def let_go(workspace: Path, stage: str) -> None:
    (workspace / f"go-{stage}").touch()


def of_too_much_memory(context: StageContext) -> StageRows:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20),) * 2)
    torch.zeros(1 << 40)
    return StageRows(rows_in=0, rows_out=0)


def test_a_child_out_of_memory_is_reported_and_the_parent_lives(workspace, start, monkeypatch):
    """FAULTS 17."""
    hungry = replace(STAGES[1], name="hungry", function=of_too_much_memory)
    monkeypatch.setitem(globals(), "STAGES", [*STAGES[:1], hungry, *STAGES[1:]])
    code, message = ended(start())
    assert code == 71
    assert message.startswith("out of memory in stage hungry: ")
    assert "run again" in message
    assert (workspace / "source/manifest.json").exists(), "what was done stays done"
    assert [line.exit_code for line in read_history(workspace)] == [71]
    assert run(workspace, ("source", "left")) == 0
    assert (workspace / "left/manifest.json").exists(), "the next run goes on"
    assert not (workspace / "hungry").exists()


def test_stages_that_do_not_depend_on_each_other_run_at_once(workspace, start):
    assert ended(start())[0] == 0
    whole = (workspace / "join/out.json").read_bytes()
    left, right = begun(start, workspace, "left"), begun(start, workspace, "right")
    assert [left.runs(), right.runs()] == [True, True], "both are in the middle"
    let_go(workspace, "right")
    assert ended(right) == (0, "")
    let_go(workspace, "left")
    assert ended(left) == (0, "")
    assert ended(start("join")) == (0, "")
    assert (workspace / "join/out.json").read_bytes() == whole


def test_a_stage_is_refused_while_what_it_reads_or_makes_is_in_use(workspace, start):
    assert ended(start())[0] == 0
    left = begun(start, workspace, "left")
    for name, said in (
        ("join", f"reads the artefact of left, which is being made by process {left.pid}"),
        ("!left", f"being made by process {left.pid}"),
        ("!source", f"being read by stage left, process {left.pid}"),
    ):
        code, message = ended(start(name))
        assert code == 75
        assert said in message
    assert ended(start("source")) == (0, ""), "unchanged, it is left as it is"
    let_go(workspace, "left")
    assert ended(left)[0] == 0
    assert ended(start("join"))[0] == 0
