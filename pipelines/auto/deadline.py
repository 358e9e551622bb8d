"""The deadline of the first round: what is served in haste if its models would be late.

Fitting, blending and evaluation may be cut; the release never is. What is popular, and what occurs
together, is then served first, and the other models wait for the next round.
"""

from __future__ import annotations

from collections.abc import Callable

from pipelines.auto.beside import (
    ENDS,
    OutOfTimeError,
    RunStages,
    stages_between,
    time_limit,
)
from pipelines.auto.first_round import COUNTED, HASTY_USERS
from pipelines.auto.plan import LAST, SEARCH, PlanPart, Round
from pipelines.config.run import RunConfig
from pipelines.config.toml import merge
from pipelines.engine.runner import StageOutcome
from pipelines.stages.list import STAGES

FIRST_BUNDLE, FIRST_EVENTS = 60.0, 500_000
"""Seconds from the begin of the command within which the first bundle is to be served, for logs of
up to that many events."""
PATIENCE = 1.5
"""Times its estimate that the first round of a larger log may take."""
RESERVED_SHARE = 3
"""Part of the limit that the round in haste keeps at most: a busy machine's estimates are high."""
HASTY = "bundle in haste"
HASTY_ENDS = 4.0
"""Estimated seconds to evaluate and release it."""
MODELS = "fit_baselines"
"""Stage that takes nearly as long again when the models are fitted to all events."""


def first_limit(one: Round, num_events: int, elapsed: float, left: float) -> float:
    """Return the seconds that the first round has, of those that are left of the budget."""
    limit = FIRST_BUNDLE - elapsed
    if num_events > FIRST_EVENTS:
        limit = max(limit, PATIENCE * one.seconds)
    return min(left, limit)


def hasty_round(first: Round) -> Round | None:
    """Reduce a first round to what counts alone; None if it has nothing else."""
    counts, *others = first.parts
    if first.name == HASTY or all(part.name == LAST for part in others):
        return None
    off = [*COUNTED, "blend", *([SEARCH] if SEARCH in first.choices else [])]
    choices = merge(first.choices, {section: {"enabled": False} for section in off})
    choices = merge(choices, {"evaluation": {"max_users": HASTY_USERS}})
    parts = (counts, PlanPart(LAST, "", "to be served", HASTY_ENDS))
    deferred = dict.fromkeys([*first.deferred, *(f"{section}.enabled" for section in off)])
    return Round(name=HASTY, choices=choices, parts=parts, deferred=tuple(deferred))


def run_in_time(
    one: Round,
    config: RunConfig,
    run_stages: RunStages,
    seconds_left: Callable[[], float],
    reserve: float,
) -> list[StageOutcome]:
    """Run a first round to its bundle.

    Args:
        seconds_left: To the moment at which it is to be served.
        reserve: Seconds that the round in haste needs.

    Raises:
        OutOfTimeError: It would be late; its release has not begun.
    """
    release = ENDS[-1]
    *middle, last = stages_between("train_two_tower", release)
    measuring = sum(part.seconds for part in one.parts if part.name == LAST)
    counted = max(1.0, (one.seconds - measuring) / 2)
    outcomes: list[StageOutcome] = []
    left = seconds_left()
    with time_limit(left - min(reserve, left / RESERVED_SHARE)):
        outcomes += run_stages(stages_between(STAGES[1].name, MODELS), config)
        took = sum(outcome.seconds for outcome in outcomes)
        if took + max(1.0, took / counted) * measuring > seconds_left():
            raise OutOfTimeError
        outcomes += run_stages(middle, config)
    return outcomes + run_stages([last, *STAGES[STAGES.index(last) + 1 :]], config)
