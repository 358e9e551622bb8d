"""Where the numbers of a run go, and what a person watches meanwhile.

Both are protocols: pipelines bring an experiment tracker and a progress bar, this package needs
neither.
"""

from __future__ import annotations

import sys
import time
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
