"""Tracking, progress and time limit of a training.

Both are protocols: pipelines bring an experiment tracker and a progress bar, this package needs
neither.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol


class Tracker(Protocol):
    """Keeps the numbers of a run."""

    def log(self, step: int, **values: float) -> None:
        """Keep the numbers known after ``step`` steps; a value may be NaN."""


class Progress(Protocol):
    """Shows how far a run is."""

    def show(self, step: int, num_steps: int, **values: float) -> None:
        """Show that ``step`` of ``num_steps`` steps are done; called every few steps."""


class SilentTracker:
    """Keeps nothing."""

    def log(self, step: int, **values: float) -> None:
        pass


class MemberCurve:
    """Logs a member's metrics under its own name."""

    def __init__(self, curve: Tracker, number: int) -> None:
        self._curve, self._name = curve, f"member {number + 1}"

    def log(self, step: int, **values: float) -> None:
        self._curve.log(step, **{f"{self._name}/{name}": value for name, value in values.items()})


class SilentProgress:
    """Shows nothing."""

    def show(self, step: int, num_steps: int, **values: float) -> None:
        pass


SETTLED_SHARE = 0.05
"""Share of the limit before which the seconds of a step say little."""
TOLERANCE = 1.05
"""Times its limit that a run may seem to need before it hurries; smaller delays show nearer the
end."""


def seconds_now() -> float:
    """Read the clock that limits are measured by."""
    return time.monotonic()


@dataclass
class TrainState:
    """The counters that go into a checkpoint."""

    step: int = 0
    best_step: int = 0
    best_metric: float | None = None
    evaluations_since_best: int = 0
    bad_steps: int = 0
    stopped_early: bool = False
    skipped_steps: float = 0.0
    """Steps of the schedule that ``max_seconds`` left no time for."""
    seconds: float = 0.0
    """Spent so far; this and what follows is 0 without ``max_seconds``."""
    first_step_seconds: float = 0.0
    """Seconds of the first step, which includes the setup."""
    num_validations: int = 0
    validation_seconds: float = 0.0

    def place(self) -> float:
        return self.step + self.skipped_steps

    def per_validation(self) -> float:
        return self.validation_seconds / max(1, self.num_validations)

    def per_step(self) -> float:
        """Return the seconds of a step without validations."""
        further = self.seconds - self.first_step_seconds - self.validation_seconds
        return further / (self.step - 1) if self.step > 1 else self.first_step_seconds


def steps_to_skip(
    state: TrainState, remaining: float, max_seconds: float, eval_every: int | None
) -> float:
    """Return how much of its schedule a run skips with this step, in steps; 0 while all of it fits.

    Args:
        state: So far; at least one step.
        eval_every: Steps between validations; None where there are none.
    """
    left = max_seconds - state.seconds - state.per_validation()
    if left < state.per_step():
        return remaining
    if state.seconds < SETTLED_SHARE * max_seconds:
        return 0.0
    validations = state.per_validation() / eval_every if eval_every else 0.0
    stride = remaining * (state.per_step() + validations) / left
    return min(remaining, stride - 1) if stride > TOLERANCE else 0.0
