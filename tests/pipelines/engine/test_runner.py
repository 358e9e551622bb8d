import json
import signal
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.engine.runner import run_stages
from pipelines.engine.stage import Stage, StageContext, StageRows
from tests.pipelines.engine.conftest import in_a_fork, kill


@dataclass(frozen=True, kw_only=True)
class Numbers:
    path: Path
    factor: int = 2


@dataclass(frozen=True, kw_only=True)
class TinyConfig:
    """Stands in for RunConfig: two stages need no more."""

    workspace: Path
    numbers: Numbers
    report: dict[str, str] = field(default_factory=dict)
    engine: str = "local"

    def raw_file_keys(self) -> list[str]:
        return ["numbers.path"]


def multiply(context: StageContext) -> StageRows:
    config: Any = context.config
    numbers = json.loads(config.numbers.path.read_text())
    context.checkpoints.mkdir(parents=True, exist_ok=True)
    (context.output / "product.json").write_text(
        json.dumps([number * config.numbers.factor for number in numbers])
    )
    return StageRows(rows_in=len(numbers), rows_out=len(numbers))


def add_up(context: StageContext) -> StageRows:
    numbers = json.loads((context.inputs["multiply"] / "product.json").read_text())
    (context.output / "sum.json").write_text(json.dumps(sum(numbers)))
    return StageRows(rows_in=len(numbers), rows_out=1)


def stage(name: str, function: Any, reads: tuple[str, ...], sections: tuple[str, ...]) -> Stage:
    return Stage(
        name=name,
        description=name,
        reads=reads,
        writes="numbers",
        sections=sections,
        function=function,
        raw_files=lambda config: {} if reads else {"numbers": config.numbers.path},  # type: ignore[attr-defined]
    )


STAGES = [
    stage("multiply", multiply, (), ("numbers",)),
    stage("add_up", add_up, ("multiply",), ("report",)),
]


@pytest.fixture
def config(tmp_path: Path) -> TinyConfig:
    (tmp_path / "numbers.json").write_text("[1, 2, 3]")
    return TinyConfig(workspace=tmp_path / "work", numbers=Numbers(path=tmp_path / "numbers.json"))


def run(config: Any, stages: list[Stage] = STAGES, **options: Any) -> dict[str, str]:
    outcomes = run_stages(stages, config, **options)
    return {outcome.stage: "skipped" if outcome.skipped else "ran" for outcome in outcomes}


def result(config: TinyConfig) -> int:
    return int(json.loads((config.workspace / "add_up/sum.json").read_text()))


def test_a_stage_runs_again_if_what_makes_it_changed(config, tmp_path):
    assert run(config) == {"multiply": "ran", "add_up": "ran"}
    assert result(config) == 12
    both, second, first = ("ran", "ran"), ("skipped", "ran"), ("ran", "skipped")
    moved = replace(config, numbers=Numbers(path=tmp_path / "moved.json"))
    tripled = replace(moved, numbers=replace(moved.numbers, factor=3))

    def told(changed: TinyConfig, **options: Any) -> tuple[str, str]:
        outcome = run(changed, **options)
        return outcome["multiply"], outcome["add_up"]

    assert told(config) == ("skipped", "skipped")
    assert told(replace(config, report={"title": "x"})) == second
    assert told(config) == second
    assert told(config, force=["multiply"]) == first
    (config.workspace / "multiply/product.json").unlink()
    assert told(config) == first, "a file of the artefact is gone"
    config.numbers.path.write_text("[1,   2, 3]")
    assert told(config) == first, "equal output stops the ripple"
    config.numbers.path.rename(moved.numbers.path)
    assert told(moved) == ("skipped", "skipped"), "files count by content"
    moved.numbers.path.write_text("[1, 2, 4]")
    assert told(moved) == both
    assert result(config) == 14
    assert told(tripled) == both
    assert result(config) == 21


def test_what_a_stage_lacks_is_named(config):
    with pytest.raises(
        ValueError, match=r"add_up reads the artefact of multiply.*--until multiply"
    ):
        run(config, STAGES[1:])
    config.numbers.path.unlink()
    with pytest.raises(ValueError, match=r"numbers: there is no file .*numbers\.json"):
        run(config)


def test_manifest_holds_what_repeats_and_run_what_does_not(config):
    run(config)
    manifests = {
        name: (config.workspace / name / "manifest.json") for name in ("multiply", "add_up")
    }
    before = {name: path.read_bytes() for name, path in manifests.items()}
    run(config, force=["multiply", "add_up"])
    assert {name: path.read_bytes() for name, path in manifests.items()} == before
    record = json.loads((config.workspace / "multiply/run.json").read_text())
    assert record.keys() == {"seconds", "host", "started", "peak_memory_bytes"}
    manifest = json.loads(before["multiply"])
    assert manifest["config"] == {"numbers": {"factor": 2}}
    assert manifest["rows"] == {"in": 3, "out": 3}


def test_failed_stage_leaves_no_artifact_and_keeps_what_came_before(config):
    def fail(context: StageContext) -> StageRows:
        (context.output / "half.json").write_text("[")
        raise ValueError("the third row is bad")

    with pytest.raises(ValueError, match="third row"):
        run(config, [STAGES[0], stage("add_up", fail, ("multiply",), ())])
    assert not (config.workspace / "add_up").exists()
    assert run(config) == {"multiply": "skipped", "add_up": "ran"}
    assert not list(config.workspace.glob(".partial-*"))


def test_killed_stage_resumes_from_its_checkpoints(config):
    def count_to_three(context: StageContext) -> StageRows:
        context.checkpoints.mkdir(parents=True, exist_ok=True)
        done = len(list(context.checkpoints.iterdir()))
        for step in range(done, 3):
            (context.checkpoints / str(step)).write_text("")
            if step == 1 and done == 0:
                kill()
        (context.output / "started_at").write_text(str(done))
        return StageRows(rows_in=3, rows_out=3)

    stages = [stage("multiply", count_to_three, (), ("numbers",))]
    assert in_a_fork(lambda: run(config, stages)) == -signal.SIGKILL
    assert run(config, stages) == {"multiply": "ran"}
    assert (config.workspace / "multiply/started_at").read_text() == "2"
    assert not list((config.workspace / "checkpoints").iterdir())
