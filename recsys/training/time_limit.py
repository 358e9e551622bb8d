"""A training's limit in seconds: its schedule is shortened to the steps that still fit.

A schedule that is cut off leaves the learning rate high, and the last weights are then poor. So a
run that will not get through all its steps in time takes larger strides along its schedule, and
the rate has come down when the time is up. One that will takes strides of exactly one step, so
its weights are those of a run without a limit, bit for bit.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

SETTLED_SHARE = 0.05
"""Share of the limit before which the seconds of a step say little."""
TOLERANCE = 1.05
"""Times its limit that a run may seem to need before it hurries; what is less shows nearer the
end."""


def seconds_now() -> float:
    """Read the clock that limits are measured by."""
    return time.monotonic()


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What a training took so far."""

    num_steps: int
    seconds: float
    """Of steps and validations."""
    first_step_seconds: float
    """What all is set up in, so it says nothing about others."""
    num_validations: int = 0
    validation_seconds: float = 0.0

    def per_validation(self) -> float:
        return self.validation_seconds / max(1, self.num_validations)

    def per_step(self) -> float:
        """Give the seconds of a step without validations."""
        further = self.seconds - self.first_step_seconds - self.validation_seconds
        return further / (self.num_steps - 1) if self.num_steps > 1 else self.first_step_seconds


def steps_to_skip(
    spent: Spent, remaining: float, max_seconds: float, eval_every: int | None
) -> float:
    """Say how much of its schedule a run skips with this step, in steps; 0 while all of it fits.

    Args:
        spent: So far; at least one step.
        remaining: Steps of the schedule that are left.
        max_seconds: The limit, which one more validation at the end has to fit into.
        eval_every: Steps between validations; None where there are none.
    """
    left = max_seconds - spent.seconds - spent.per_validation()
    if left < spent.per_step():
        return remaining
    if spent.seconds < SETTLED_SHARE * max_seconds:
        return 0.0
    validations = spent.per_validation() / eval_every if eval_every else 0.0
    stride = remaining * (spent.per_step() + validations) / left
    return min(remaining, stride - 1) if stride > TOLERANCE else 0.0
