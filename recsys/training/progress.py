"""Tracking, progress and time limit of a training.

Both are protocols: pipelines bring an experiment tracker and a progress bar, this package needs
neither.
"""

from __future__ import annotations

import sys
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


class SilentProgress:
    """Shows nothing."""

    def show(self, step: int, num_steps: int, **values: float) -> None:
        pass


class StderrProgress:
    """Writes one line each time, with the steps done per second since the line before."""

    def __init__(self) -> None:
        self._line_before: tuple[int, float] | None = None

    def show(self, step: int, num_steps: int, **values: float) -> None:
        numbers = [f"{name} {value:.4g}" for name, value in values.items()]
        time_s = time.monotonic()
        if self._line_before is not None:
            step_before, time_before_s = self._line_before
            rate = (step - step_before) / max(1e-9, time_s - time_before_s)
            numbers.append(f"{rate:.1f} steps/s")
        self._line_before = (step, time_s)
        sys.stderr.write(f"step {step}/{num_steps} {' '.join(numbers)}\n")


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
    """Time that a training took so far."""

    num_steps: int
    seconds: float
    """Seconds of steps and validations."""
    first_step_seconds: float
    """Seconds of the first step, which includes the setup."""
    num_validations: int = 0
    validation_seconds: float = 0.0

    def per_validation(self) -> float:
        return self.validation_seconds / max(1, self.num_validations)

    def per_step(self) -> float:
        """Return the seconds of a step without validations."""
        further = self.seconds - self.first_step_seconds - self.validation_seconds
        return further / (self.num_steps - 1) if self.num_steps > 1 else self.first_step_seconds


def steps_to_skip(
    spent: Spent, remaining: float, max_seconds: float, eval_every: int | None
) -> float:
    """Return how much of its schedule a run skips with this step, in steps; 0 while all of it fits.

    Args:
        spent: So far; at least one step.
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
