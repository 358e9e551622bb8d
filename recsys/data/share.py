"""Shares of a training step's batch among processes.

A step's batch is the same however many processes work on it: each takes a part, and the mean of
their losses is the loss of the whole. A loss that needs more than its part (in-batch negatives, the
number of labels) asks for it here.

Axes: P labels of a part, G labels of the whole batch.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class StepShare(Protocol):
    """One process's view of a step."""

    def all_labels(self, labels: Tensor) -> Tensor:
        """Join the labels of all processes, [P] -> [G], in the order of their ranks."""

    def weight(self, labels: Tensor) -> Tensor | float:
        """Weigh a mean over this part's labels so that the mean over processes is the whole's.

        Args:
            labels: Item rows, [P], or one column a task, [P, T], each with a mean of its own; 0 is
                no label.
        """

    def draws(self, device: torch.device) -> torch.Generator | None:
        """Return the generator of draws that are equal in all processes; None is torch's."""


class WholeStep:
    """The whole batch is here."""

    def all_labels(self, labels: Tensor) -> Tensor:
        return labels

    def weight(self, labels: Tensor) -> Tensor | float:
        return 1.0

    def draws(self, device: torch.device) -> torch.Generator | None:
        return None


WHOLE = WholeStep()
