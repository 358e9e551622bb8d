"""Keeps steps whose loss or gradient is not finite from moving weights.

On a CPU the host looks at each step. On a GPU to look is to wait: the host would start the next
step's first kernel only once the last one of this step is done. There the fused optimizer reads on
the device whether to move, and the host reads the counts every few steps. A skipped step moves
nothing, so a streak of them is found late but does no harm.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from recsys.training.orthogonal import Muon


class BadSteps(NamedTuple):
    """Steps that moved nothing, since they were last read."""

    total: int
    longest: int
    """The longest streak, which may have begun before."""


class StepGuard:
    """Steps an optimizer, or skips."""

    def __init__(self, optimizer: Optimizer, device: torch.device) -> None:
        self._optimizer = optimizer
        # Another subclass of AdamW may do more than the fused kernel, which reads the switch.
        fused = type(optimizer) in (AdamW, Muon) and all(
            group.get("fused") for group in optimizer.param_groups
        )
        self.waits = not (device.type == "cuda" and fused)
        """Whether the host sees each step."""
        self.in_a_row = 0
        """Bad steps up to the latest, as of the last reading."""
        self._total = self._longest = 0
        self._counts = torch.zeros(3, device=device)
        """On the device: in all, in a row, and the longest streak."""

    def step(self, sum_to_check: Tensor) -> None:
        """Move the weights where loss plus gradient norm, a scalar, is finite."""
        if not self.waits:
            self._step_on_device(sum_to_check)
        elif bool(torch.isfinite(sum_to_check)):
            self._optimizer.step()
            self.in_a_row = 0
        else:
            self.in_a_row += 1
            self._total += 1
            self._longest = max(self._longest, self.in_a_row)

    def _step_on_device(self, sum_to_check: Tensor) -> None:
        bad = (~torch.isfinite(sum_to_check)).float()
        self._optimizer.found_inf = bad  # type: ignore[attr-defined]
        self._optimizer.step()
        total, in_a_row, longest = self._counts.unbind()
        total.add_(bad)
        in_a_row.add_(bad).mul_(bad)
        torch.maximum(longest, in_a_row, out=longest)

    def read(self) -> BadSteps:
        """Read the counts and begin them anew; on a device this waits for it."""
        if not self.waits:
            self._total, self.in_a_row, self._longest = map(int, self._counts.tolist())
            self._counts[0].zero_()
            self._counts[2] = self._counts[1]
        bad = BadSteps(self._total, self._longest)
        self._total, self._longest = 0, self.in_a_row
        return bad
