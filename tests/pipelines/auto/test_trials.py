import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pipelines.auto.beside import FOLDER, Measured, OutOfTimeError, time_limit
from pipelines.auto.further import CANDIDATES, Candidate
from pipelines.auto.plan import Costs, PlanPart
from pipelines.auto.rounds import CLOSING, Automatic, Planned
from pipelines.auto.trials import further_rounds
from pipelines.config.run import RunConfig
from pipelines.config.toml import merge
from pipelines.engine.artifacts import Manifest, begin, commit, read_json
from pipelines.engine.errors import RefusedError
from pipelines.stages.list import STAGES
from tests.pipelines.auto.test_planner import SHOP
from tests.pipelines.auto.test_rounds import MACHINE, automatic, planned, round_of, sources

__all__ = ["sources"]
QUERIES = 50
COSTS = Costs(SHOP, MACHINE)
NOISE = np.tile([0.1, -0.1], QUERIES // 2)


class Stages:
    """Stands in for the stages: writes what the configured width reaches on validation."""

    def __init__(self, gain: float = 0.0) -> None:
        self.gain, self.ran, self.refused, self.killed_in = gain, [], False, ""
        self.slow_in = ("", 0.0)

    def __call__(self, stages, config: RunConfig):
        for stage in stages:
            final = config.workspace / stage.name
            made_from = {"width": config.ranker.embedding_dim}
            known = Manifest.load(final)
            if known is not None and known.config == made_from:
                continue
            self.ran.append((config.workspace.name, stage.name))
            if stage.name == self.killed_in:
                raise KeyboardInterrupt
            if stage.name == "release" and self.refused:
                raise RefusedError("worse than what is served")
            time.sleep(self.slow_in[1] if stage.name == self.slow_in[0] else 0.0)
            self.write(stage.name, final, made_from)
        return []

    def write(self, name: str, final: Path, made_from: dict) -> None:
        partial = begin(final)
        (partial / "given").mkdir()
        (partial / "sequences" / "given").mkdir(parents=True)
        added = self.gain if made_from["width"] == 16 else 0.0
        np.save(partial / "given" / "values_fast.npy", 0.5 + NOISE * (added != 0) + added)
        (partial / "width.txt").write_text(str(made_from["width"]))
        manifest = Manifest(
            stage=name, inputs={}, config=made_from, versions={}, rows={"in": 1, "out": 1}, files={}
        )
        commit(partial, final, manifest=manifest, run={"seconds": 0.1})


def candidate(_done=None) -> Candidate:
    choices = {"ranker": {"embedding_dim": 16}}
    return Candidate(name="width", what="", choices=choices, seconds={"train_sequence": 1.0})


@pytest.fixture
def served(sources, monkeypatch) -> tuple:
    """A run whose only round is served, and the stages that made it."""
    monkeypatch.setattr("pipelines.auto.trials.CANDIDATES", {"width": candidate})
    run, stages, plan = automatic(sources, []), Stages(), planned(round_of("a", 1.0), finished=1)
    stages(STAGES, run.round_config(plan.plan.rounds[0]))
    stages.ran.clear()
    return run, stages, plan


def widths(workspace: Path) -> set[str]:
    return {(workspace / stage.name / "width.txt").read_text() for stage in STAGES[1:]}


def tried(plan: Planned) -> dict:
    [trial] = plan.trials
    return trial


@pytest.mark.parametrize(("gain", "kept"), [(0.03, True), (0.01, False), (-0.1, False)])
def test_a_part_is_kept_if_it_is_better_by_more_than_a_standard_error(served, gain, kept):
    """Gains of 50 queries are +-0.1 around their mean: a standard error of 0.0143."""
    run, stages, plan = served
    stages.gain = gain
    further_rounds(run, plan, stages)
    assert tried(plan)["kept"] is kept
    assert tried(plan)["gain"]["difference"] == pytest.approx(gain)
    assert tried(plan)["gain"]["standard_error"] == pytest.approx(0.0143, abs=1e-4)
    assert widths(run.base.workspace) == ({"16"} if kept else {"32"})
    assert (len(plan.plan.rounds), plan.finished) == ((2, 2) if kept else (1, 1))
    released = [name for name, stage in stages.ran if stage == "release"]
    assert released == (["run"] if kept else [])
    assert ((FOLDER, "refit") in stages.ran) is kept
    assert not (run.base.workspace / FOLDER).exists()
    assert plan.stopped == "nothing else can be added"
    stages.ran.clear()
    further_rounds(run, plan, stages)
    assert stages.ran == []


def test_a_part_without_time_is_not_begun(served, sources):
    _, stages, plan = served
    late = automatic(sources, [], ago=900.0 - 1.0)
    further_rounds(late, plan, stages)
    assert stages.ran == []
    assert tried(plan)["begun"] is False
    assert "no time left: needs about 2 s" in tried(plan)["reason"]


@pytest.mark.parametrize(("left", "share"), [(60.0, 1.0), (9.0, 0.67), (6.0, None)])
def test_a_part_whose_training_does_not_fit_is_tried_shorter_if_half_of_it_fits(
    served, sources, monkeypatch, left, share
):
    """10 s are trained and eight stages of 0.1 s follow, all of them times 1.2."""
    _, stages, plan = served
    shares: list[float] = []
    one = replace(
        candidate(),
        seconds={"train_sequence": 10.0},
        trained=10.0,
        shorter=lambda part: shares.append(part) or {},
    )
    monkeypatch.setattr("pipelines.auto.trials.CANDIDATES", {"width": lambda _: one})
    further_rounds(automatic(sources, [], ago=900.0 - CLOSING - left), plan, stages)
    assert shares == ([] if share is None else [pytest.approx(share, abs=0.03)])
    assert tried(plan)["begun"] is (share is not None)
    assert ("67% of its training" in tried(plan)["what"]) is (share == 0.67)


def test_after_a_round_that_lost_parts_are_added_to_what_is_served(served):
    run, stages, plan = served
    part = PlanPart("two-tower", "", "a further view", 1.0)
    lost = replace(round_of("best", 1.0), choices=candidate().choices, parts=(part,))
    plan.plan, stages.gain = replace(plan.plan, rounds=(*plan.plan.rounds, lost)), -0.1
    run.run(plan, stages)
    [served_round, _] = plan.plan.rounds
    further_rounds(run, plan, stages)
    assert [one.name for one in plan.plan.rounds] == [served_round.name]
    [left_out] = plan.plan.left_out
    assert "-20.0% +- 2.9%" in left_out.why
    assert tried(plan)["gain"]["difference"] == pytest.approx(-0.1)
    assert plan.stopped == "nothing else can be added"


@pytest.mark.parametrize("stage", ["train_sequence", "refit", "evaluate"])
def test_what_is_late_is_given_up_within_the_budget_and_what_is_served_stays(
    served, sources, stage
):
    """Stages took 0.1 s each; on a machine that is now busy one of them takes far longer."""
    _, stages, plan = served
    stages.gain, stages.slow_in, left, said = 0.1, (stage, 30.0), 2.5, []

    def run_late(run):
        begin, late = time.perf_counter(), automatic(sources, said, 900.0 - CLOSING - left)
        run(late, plan, stages)
        assert time.perf_counter() - begin < left + 1.0
        assert widths(late.base.workspace) == {"32"}
        assert plan.finished == 1

    run_late(further_rounds)
    assert ("better, but too" if stage == "evaluate" else "given up") in tried(plan)["reason"]
    assert len(plan.plan.rounds) == 1
    planned_round = replace(round_of("wider", 1.0), choices=candidate().choices, parts=())
    plan.plan = replace(plan.plan, rounds=(*plan.plan.rounds, planned_round))
    run_late(Automatic.run)
    assert said[-1].startswith("wider: given up")
    assert ("run", "release") not in stages.ran


@pytest.mark.parametrize("stage", ["train_sequence", "refit", "evaluate", "release"])
def test_a_kill_in_a_round_leaves_a_whole_run_that_continues(served, stage):
    run, stages, plan = served
    stages.gain, stages.killed_in = 0.1, stage
    with pytest.raises(KeyboardInterrupt):
        further_rounds(run, plan, stages)
    is_late = stage in ("evaluate", "release")
    before = widths(run.base.workspace)
    assert before == ({"16", "32"} if is_late else {"32"})
    kept = read_json(run.base.workspace / "plan.json") if is_late else {"finished": 1}
    assert kept["finished"] == 1
    stages.killed_in = ""
    stages.ran.clear()
    if is_late:
        run.run(plan, stages)
    further_rounds(run, plan, stages)
    assert widths(run.base.workspace) == {"16"}
    # What was done before the kill is not done again.
    assert ("run" if is_late else FOLDER, "enrich_items") not in stages.ran
    assert plan.finished == 2


def test_a_refused_release_puts_back_what_was_there(served):
    run, stages, plan = served
    stages.gain, stages.refused = 0.1, True
    further_rounds(run, plan, stages)
    assert "refused: worse" in tried(plan)["reason"]
    assert (len(plan.plan.rounds), plan.finished) == (1, 1)
    assert widths(run.base.workspace) == {"32"}
    saved = json.loads((run.base.workspace / "plan.json").read_text())
    assert saved["trials"] == plan.trials


def test_time_is_up_once_and_the_handler_before_comes_back():
    before = signal.getsignal(signal.SIGALRM)

    def ring_within_no_grad() -> None:
        torch.set_grad_enabled(False)
        raise OutOfTimeError

    with pytest.raises(OutOfTimeError), time_limit(60.0):
        ring_within_no_grad()
    assert torch.is_grad_enabled()
    with pytest.raises(OutOfTimeError), time_limit(0.05):
        time.sleep(5.0)
    with time_limit(60.0):
        assert os.getpid()
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("name", "user", "words"),
    [
        ("ranker", {"ranker_training": {"enabled": False}}, "enabled = false is set"),
        ("further member", {}, "there is no sequence model"),
        ("adapters", {}, "there is no trained model to adapt"),
        ("longer training", {}, "there is no sequence model"),
    ],
)
def test_a_part_that_does_not_apply_says_why(served, name, user, words):
    run, _, plan = served
    config = run.round_config(plan.plan.rounds[0])
    config = replace(config, two_tower_training=replace(config.two_tower_training, enabled=False))
    found = CANDIDATES[name](Measured(config, user, COSTS))
    assert isinstance(found, str)
    assert words in found


def test_a_further_member_has_another_kind_of_blocks_and_is_a_valid_setting(served):
    run, _, plan = served
    choices = {"sequence_training": {"enabled": True}}
    trained = replace(plan.plan.rounds[0], choices=choices)
    for name in ("further member", "longer training", "ranker"):
        one = CANDIDATES[name](Measured(run.round_config(trained), {}, COSTS))
        assert isinstance(one, Candidate)
        config = run.round_config(replace(trained, choices=merge(choices, one.choices)))
        if name == "further member":
            assert config.sequence.member_blocks == ("attention", "convolution")
            assert config.sequence.embedding_dim == 256
