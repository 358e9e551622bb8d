"""The first round ends in time on a machine that becomes slow, and says what it left out."""

import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from pipelines.auto.deadline import FIRST_BUNDLE, HASTY, first_limit
from pipelines.auto.make_plan import make_plan
from pipelines.auto.plan import Plan
from pipelines.config.run import RunConfig
from pipelines.engine.artifacts import Manifest
from pipelines.engine.runner import StageOutcome
from pipelines.engine.stage import Stage
from pipelines.presets.resolve import ConfigSources
from tests.pipelines.auto.test_planner import MACHINE, SHOP
from tests.pipelines.auto.test_rounds import automatic, planned, sources

__all__ = ["sources"]
LIMIT = 0.5


class SlowStages:
    """Stands in for the stages: one with EASE is slow, or says that it was, until it is cut."""

    def __init__(self, slow: str = "", took: float = 0.0) -> None:
        self.slow, self.took, self.released, self.ran = slow, took, [], []

    def __call__(self, stages: Sequence[Stage], config: RunConfig) -> list[StageOutcome]:
        outcomes = []
        for stage in stages:
            self.ran.append((stage.name, config.ease.enabled, config.blend.enabled))
            if stage.name == self.slow and config.ease.enabled and not self.released:
                time.sleep(0.0 if self.took else 30.0)
            if stage.name == "release":
                self.released.append(config.ease.enabled)
            manifest = Manifest(
                stage=stage.name, inputs={}, config={}, versions={}, rows={}, files={}
            )
            seconds = self.took if stage.name == self.slow else 0.0
            outcomes.append(StageOutcome(stage.name, seconds, manifest))
        return outcomes


def first_plan() -> Plan:
    """Plan the first round of a shop as if all took a hundredth of its seconds."""
    plan = make_plan(SHOP, MACHINE, {}, 600.0)
    one = plan.rounds[0]
    parts = tuple(replace(part, seconds=part.seconds / 100) for part in one.parts)
    return replace(plan, rounds=(replace(one, parts=parts),))


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Serve the first bundle within half a second; in haste it needs a tenth of one."""
    monkeypatch.setattr("pipelines.auto.deadline.FIRST_BUNDLE", LIMIT)
    monkeypatch.setattr("pipelines.auto.deadline.HASTY_ENDS", 0.1)


@pytest.mark.parametrize("own", [(), ("ease.enabled=true", "blend.enabled=true")])
@pytest.mark.parametrize("stage", ["fit_baselines", "fit_blend", "evaluate", "refit"])
def test_a_late_first_round_is_served_in_haste_and_the_rest_follows(
    sources: ConfigSources, stage: str, own: tuple[str, ...]
) -> None:
    sources = ConfigSources(path=sources.path, workspace=sources.workspace, assignments=own)
    said: list[str] = []
    stages, plan = SlowStages(stage), planned(*first_plan().rounds)
    run = automatic(sources, said)
    run.run(plan, stages)
    assert (stage, True, True) in stages.ran
    assert time.perf_counter() - run.begin < 5 * LIMIT
    # What counts alone first; then, beside it, all that was cut.
    assert stages.released == [False, True]
    assert plan.plan.rounds[0].name == HASTY
    assert "EASE" in [part.name for part in plan.plan.rounds[1].parts]
    assert plan.finished == len(plan.plan.rounds) == 2
    [note] = [note for note in plan.plan.notes if "would be late" in note]
    assert note in said
    # The same command does nothing again.
    stages.ran.clear()
    automatic(sources, said).run(plan, stages)
    assert ("fit_baselines", False, False) not in stages.ran


def test_a_round_that_cannot_end_in_time_is_cut_before_its_time_is_spent(
    sources: ConfigSources,
) -> None:
    """Fitting took so long that fitting to all events would take it beyond the limit."""
    for took, released in ((0.01, [True]), (1.0, [False, True])):
        stages, run = SlowStages("fit_baselines", took), automatic(sources, [])
        run.run(planned(*first_plan().rounds), stages)
        assert ("fit_blend", True, True) in stages.ran
        assert stages.released == released


@pytest.mark.parametrize(
    ("num_events", "left", "limit"),
    [(500_000, 600.0, 50.0), (5_000_000, 600.0, 150.0), (5_000, 15.0, 15.0)],
)
def test_the_first_round_has_a_minute_its_estimate_or_the_budget(
    num_events, left, limit, monkeypatch
) -> None:
    monkeypatch.setattr("pipelines.auto.deadline.FIRST_BUNDLE", FIRST_BUNDLE)
    monkeypatch.setattr("pipelines.auto.deadline.PATIENCE", 1.5)
    one = first_plan().rounds[0]
    part = replace(one.parts[0], seconds=100.0)
    assert first_limit(replace(one, parts=(part,)), num_events, 10.0, left) == limit
