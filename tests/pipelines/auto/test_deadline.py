"""The first round ends in time on a machine that becomes slow, and says what it left out."""

import time
from dataclasses import replace

import pytest

from pipelines.auto.beside import FIRST_BUNDLE, HASTY, first_limit
from pipelines.auto.make_plan import make_plan
from pipelines.auto.plan import Round
from pipelines.engine.errors import RefusedError
from pipelines.presets.resolve import ConfigSources
from tests.pipelines.auto.test_planner import MACHINE, SHOP
from tests.pipelines.auto.test_rounds import automatic, outcome_of, planned, sources

__all__ = ["sources"]
LIMIT = 0.5


class SlowStages:
    """Stands in for the stages: one with EASE is slow, or says that it was, until it is cut."""

    def __init__(self, slow: str, took: float = 0.0) -> None:
        self.slow, self.took, self.released, self.ran = slow, took, [], set()
        self.refuses = False

    def __call__(self, stages, config):
        for stage in stages:
            self.ran.add((stage.name, config.ease.enabled))
            if stage.name == self.slow and config.ease.enabled and not self.released:
                time.sleep(0.0 if self.took else 30.0)
            if stage.name == "release":
                self.released.append(config.ease.enabled)
                if self.refuses and not config.ease.enabled:
                    raise RefusedError("below popularity")
        return [outcome_of(one.name, self.took if one.name == self.slow else 0.0) for one in stages]


@pytest.fixture
def first(monkeypatch: pytest.MonkeyPatch) -> Round:
    """Plan the first round of a shop as if all, the limit too, took a hundredth of its seconds."""
    monkeypatch.setattr("pipelines.auto.beside.FIRST_BUNDLE", LIMIT)
    monkeypatch.setattr("pipelines.auto.beside.HASTY_ENDS", 0.04)
    one = make_plan(SHOP, MACHINE, {}, 600.0).rounds[0]
    parts = tuple(replace(part, seconds=part.seconds / 100) for part in one.parts)
    return replace(one, parts=parts)


@pytest.mark.parametrize("own", [(), ("ease.enabled=true",)])
@pytest.mark.parametrize("stage", ["fit_baselines", "fit_blend", "evaluate", "refit"])
def test_a_late_first_round_is_served_in_haste_and_the_rest_follows(sources, first, stage, own):
    sources = ConfigSources(path=sources.path, workspace=sources.workspace, assignments=own)
    said: list[str] = []
    stages, plan, run = SlowStages(stage), planned(first), automatic(sources, said)
    run.run(plan, stages)
    assert (stage, True) in stages.ran
    assert time.perf_counter() - run.begin < 5 * LIMIT
    # What counts alone first; then, beside it, all that was cut.
    assert stages.released == [False, True]
    assert plan.plan.rounds[0].name == HASTY
    assert "EASE" in [part.name for part in plan.plan.rounds[1].parts]
    assert plan.finished == len(plan.plan.rounds) == 2
    [note] = [note for note in plan.plan.notes if ": late after" in note]
    assert note in said
    stages.ran.clear()
    automatic(sources, said).run(plan, stages)
    assert ("fit_baselines", False) not in stages.ran


def test_a_refused_round_in_haste_leaves_it_to_the_next(sources, first):
    stages, plan = SlowStages("fit_blend"), planned(first)
    stages.refuses = True
    automatic(sources, []).run(plan, stages)
    assert (stages.released, plan.finished) == ([False, True], 2)


@pytest.mark.parametrize(("took", "released"), [(0.01, [True]), (1.0, [False, True])])
def test_a_round_that_cannot_end_in_time_is_cut_before_its_time_is_spent(
    sources, first, took, released
):
    """To fit to all events would take as long again."""
    stages = SlowStages("fit_baselines", took)
    automatic(sources, []).run(planned(first), stages)
    assert stages.released == released


@pytest.mark.parametrize(
    ("num_events", "left", "limit"), [(5e5, 600.0, 50.0), (5e6, 600.0, 600.0), (5e3, 15.0, 15.0)]
)
def test_the_first_round_has_a_minute_or_the_budget(num_events, left, limit):
    assert FIRST_BUNDLE == 60.0
    assert first_limit(num_events, 10.0, left) == limit
