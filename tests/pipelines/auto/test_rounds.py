import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipelines.auto.machine import Machine
from pipelines.auto.plan import LAST, SEQUENCE, Plan, PlanPart, Round
from pipelines.auto.rounds import Automatic, Planned
from pipelines.config.run import RunConfig
from pipelines.doctor.doctor import GIB
from pipelines.engine.artifacts import Manifest
from pipelines.engine.errors import RefusedError
from pipelines.engine.runner import StageOutcome
from pipelines.engine.stage import Stage
from pipelines.presets.resolve import ConfigSources, resolve
from tests.pipelines.auto.test_planner import SHOP

MACHINE = Machine(device="cpu", num_cpus=2, memory_bytes=16 * GIB, flops=60e9)


def round_of(name: str, epochs: float, seconds: float = 1.0) -> Round:
    part = PlanPart("part", "", "", seconds)
    return Round(name=name, choices={"two_tower_training": {"max_epochs": epochs}}, parts=(part,))


@pytest.fixture
def sources(tmp_path: Path) -> ConfigSources:
    (tmp_path / "events.csv").write_text("user_id,item_id\na,b\n")
    (tmp_path / "shop.toml").write_text(
        'preset = "auto"\nseed = 3\n[data]\nevents = "events.csv"\n'
    )
    (tmp_path / "run" / "build_features" / "sequences" / "given").mkdir(parents=True)
    return ConfigSources(path=tmp_path / "shop.toml", workspace=tmp_path / "run")


def planned(*rounds: Round, finished: int = 0) -> Planned:
    plan = Plan(rounds=rounds, left_out=(), notes=("a note",))
    return Planned(key="k", plan=plan, finished=finished, shape=SHOP, machine=MACHINE)


class Runs:
    """Stands in for the stages: notes what was run, and refuses some."""

    def __init__(self, refused: float = -1.0) -> None:
        self.epochs: list[float] = []
        self._refused = refused

    def __call__(self, stages: Sequence[Stage], config: RunConfig) -> list[StageOutcome]:
        if all(stage.name != "release" for stage in stages):
            # A round is prepared beside the workspace.
            return [outcome_of("train_two_tower", 8.0)]
        self.epochs.append(config.two_tower_training.max_epochs)
        if config.two_tower_training.max_epochs == self._refused:
            raise RefusedError("worse than what is served")
        return []


def automatic(sources: ConfigSources, said: list[str], ago: float = 0.0) -> Automatic:
    return Automatic(sources, sources.config(), time.perf_counter() - ago, said.append)


def test_rounds_run_in_order_and_the_plan_is_kept(sources):
    said: list[str] = []
    runs = Runs()
    automatic(sources, said).run(planned(round_of("a", 1.0), round_of("b", 2.0)), runs)
    assert runs.epochs == [1.0, 2.0]
    assert [line.split(":")[0] for line in said] == ["round 1 of 2", "a", "round 2 of 2", "b"]
    # Other commands on this run have the choices of its last round, below what the user sets.
    config = resolve(sources.path, workspace=sources.workspace)
    assert (config.two_tower_training.max_epochs, config.seed) == (2.0, 3)


def test_a_killed_run_goes_on_where_it_was_and_a_finished_one_through_its_last_round(sources):
    rounds = (round_of("a", 1.0), round_of("b", 2.0), round_of("c", 3.0))
    for finished, epochs in ((1, [2.0, 3.0]), (3, [3.0])):
        runs = Runs()
        automatic(sources, []).run(planned(*rounds, finished=finished), runs)
        assert runs.epochs == epochs


def test_a_round_without_time_is_left_out_and_the_first_never(sources):
    said: list[str] = []
    runs = Runs()
    late = automatic(sources, said, ago=10_000.0)
    late.run(planned(round_of("a", 1.0), round_of("b", 2.0, seconds=60.0)), runs)
    assert runs.epochs == [1.0]
    assert "b: left out, 60 s are needed and 0 s are left; what is served stays" in said


def test_a_refused_later_round_leaves_what_is_served(sources):
    said: list[str] = []
    runs = Runs(refused=2.0)
    rounds = (round_of("a", 1.0), round_of("b", 2.0), round_of("c", 3.0))
    automatic(sources, said).run(planned(*rounds), runs)
    assert runs.epochs == [1.0, 2.0, 3.0]
    assert "b: worse than what is served" in said


def test_a_refused_first_round_leaves_it_to_the_next_and_alone_is_an_error(sources):
    runs, plan = Runs(refused=1.0), planned(round_of("a", 1.0), round_of("b", 2.0))
    automatic(sources, []).run(plan, runs)
    assert (runs.epochs, plan.finished) == ([1.0, 2.0], 2)
    with pytest.raises(RefusedError):
        automatic(sources, []).run(planned(round_of("a", 1.0)), Runs(refused=1.0))


def test_what_the_user_sets_wins_over_the_plan(sources):
    fixed = ConfigSources(
        path=sources.path,
        workspace=sources.workspace,
        assignments=["two_tower_training.max_epochs=9.0"],
    )
    runs = Runs()
    automatic(fixed, []).run(planned(round_of("a", 1.0)), runs)
    assert runs.epochs == [9.0]


def test_every_round_reads_the_files_that_the_run_found(sources):
    base = sources.config()
    base = replace(base, data=replace(base.data, online_events='a "quoted" folder'))
    rounds = Automatic(sources, base, 0.0, print)
    assert rounds.round_config(round_of("a", 1.0)).data == base.data


def trained_round(limit: float, seconds: float, ends: float) -> Round:
    parts = (
        PlanPart(name=SEQUENCE, what="", why="", seconds=seconds),
        PlanPart(name=LAST, what="", why="", seconds=ends),
    )
    return Round(name="best", choices={"sequence_training": {"max_seconds": limit}}, parts=parts)


def outcome_of(stage: str, seconds: float) -> StageOutcome:
    manifest = Manifest(stage=stage, inputs={}, config={}, versions={}, rows={}, files={})
    return StageOutcome(stage=stage, skipped=False, seconds=seconds, manifest=manifest)


@pytest.mark.parametrize(("left", "limit"), [(100.0, 35.0), (600.0, 84.0), (60.0, None)])
def test_a_training_is_shortened_to_what_is_left_before_the_end(sources, left, limit, monkeypatch):
    """70 of 100 s train; 20 s come last, 8 s of the two-tower are spent again, 10 s close it."""
    said: list[str] = []
    trained: list[RunConfig] = []

    def run_stages(stages: Sequence[Stage], config: RunConfig) -> list[StageOutcome]:
        trained.extend([config] if stages[-1].name == "adapt_domains" else [])
        return [outcome_of("train_two_tower", 8.0)]

    rounds = (round_of("a", 1.0), trained_round(84.0, 100.0, 20.0))
    monkeypatch.setattr(
        "pipelines.auto.rounds.time", SimpleNamespace(perf_counter=lambda: 900.0 - left)
    )
    run = Automatic(sources, sources.config(), 0.0, said.append)
    run.run(planned(*rounds), run_stages)
    if limit is None:
        assert len(trained) == 1
        assert "what is served stays" in said[-1]
        return
    assert trained[-1].sequence_training.max_seconds == pytest.approx(limit, abs=1.0)
    kept = resolve(sources.path, workspace=sources.workspace)
    assert kept.sequence_training == trained[-1].sequence_training


def test_a_first_round_that_is_slower_than_planned_leaves_no_time_for_the_next(
    sources, monkeypatch
):
    said: list[str] = []
    runs = Runs()
    # The first round takes 30 s for 10; of the next, 45 s are needed as planned.
    clock = chain([800.0], repeat(830.0))
    run = Automatic(sources, sources.config(), 0.0, said.append)
    monkeypatch.setattr(
        "pipelines.auto.rounds.time", SimpleNamespace(perf_counter=lambda: next(clock))
    )
    run.run(planned(round_of("a", 1.0, 10.0), trained_round(84.0, 100.0, 20.0)), runs)
    assert len(runs.epochs) == 1
    assert said[-1].startswith("best: left out, 135 s are needed and 70 s are left")
