"""The deadline of the first round: what is served in haste if its models would be late.

All up to the release may be cut. What is popular, and what occurs together, is then served first,
and the other models wait for the next round.
"""

from __future__ import annotations

from collections.abc import Callable

from pipelines.auto.beside import ENDS, OutOfTimeError, RunStages, stages_between, time_limit
from pipelines.auto.first_round import COUNTED, HASTY_USERS
from pipelines.auto.plan import LAST, SEARCH, PlanPart, Round
from pipelines.config.run import RunConfig
from pipelines.config.toml import merge
from pipelines.engine.runner import StageOutcome
from pipelines.stages.list import STAGES

FIRST_BUNDLE, FIRST_EVENTS = 60.0, 500_000
"""Seconds from the begin of the command within which the first bundle is to be served, for logs of
up to that many events."""
RESERVED_SHARE = 2
"""Part of the limit that the round in haste keeps at most: a busy machine's estimates are high."""
HASTY, HASTY_ENDS = "bundle in haste", 4.0
"""Name of that round, and its estimated seconds to evaluate and release."""


def first_limit(num_events: int, elapsed: float, left: float) -> float:
    """Return the seconds that the first round has, of those that are left of the budget."""
    return left if num_events > FIRST_EVENTS else min(left, FIRST_BUNDLE - elapsed)


def hasty_round(first: Round) -> Round | None:
    """Reduce a first round to what counts alone; None if it has nothing else."""
    counts, *others = first.parts
    if first.name == HASTY or all(part.name == LAST for part in others):
        return None
    off = [*COUNTED, *([SEARCH] if SEARCH in first.choices else [])]
    choices = merge(first.choices, {section: {"enabled": False} for section in off})
    few = {"evaluation": {"max_users": HASTY_USERS}, "blend": {"max_queries": HASTY_USERS}}
    choices = merge(choices, few)
    parts = (counts, PlanPart(LAST, "", "to be served", HASTY_ENDS))
    deferred = dict.fromkeys([*first.deferred, *(f"{section}.enabled" for section in off)])
    return Round(name=HASTY, choices=choices, parts=parts, deferred=tuple(deferred))


def run_in_time(
    one: Round, config: RunConfig, run_stages: RunStages, left: Callable[[], float], reserve: float
) -> list[StageOutcome]:
    """Run a first round to its bundle; ``reserve`` of the seconds left are for the one in haste.

    Raises:
        OutOfTimeError: It would be late; its release has not begun.
    """
    names, limit = [stage.name for stage in STAGES], left()
    measuring = sum(part.seconds for part in one.parts if part.name == LAST)
    counted, last = max(1.0, (one.seconds - measuring) / 2), names.index(ENDS[-1])
    with time_limit(limit - min(reserve, limit / RESERVED_SHARE)):
        outcomes = run_stages(stages_between(names[1], "fit_baselines"), config)
        # To fit to all events takes as long again.
        took = sum(outcome.seconds for outcome in outcomes)
        if took + max(1.0, took / counted) * measuring > left():
            raise OutOfTimeError
        outcomes += run_stages(stages_between("train_two_tower", names[last - 1]), config)
    return outcomes + run_stages(STAGES[last:], config)
