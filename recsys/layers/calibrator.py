"""Calibrate a ranker's logits, each task by a line of its own (Platt 1999).

A line is stored as a map from logit to logit at knots, flat beyond the outer ones.

Axes: P predictions, T tasks, Q knots.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

NUM_KNOTS = 64
FURTHEST = 20.0
"""Logits beyond this are as good as certain."""


class Calibrator(nn.Module):
    """The maps of all tasks; until fitted, the sigmoid."""

    def __init__(self, num_tasks: int) -> None:
        super().__init__()
        line = torch.linspace(-FURTHEST, FURTHEST, NUM_KNOTS).expand(num_tasks, -1)
        self.knots: Tensor
        self.values: Tensor
        self.fitted: Tensor
        self.register_buffer("knots", line.clone())
        self.register_buffer("values", line.clone())
        self.register_buffer("fitted", torch.zeros((), dtype=torch.bool))
        self._line: tuple[Tensor, Tensor, Tensor] | None = None
        self.register_load_state_dict_post_hook(_forget_line)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def fit(self, logits: Tensor, labels: Tensor) -> None:
        """Fit every task's map on predictions that the model did not train on.

        Args:
            logits: [P, T].
            labels: 0 or 1, [P, T]; NaN where the task was not observed.
        """
        maps = []
        for task in range(logits.shape[1]):
            observed = ~labels[:, task].isnan()
            own, truth = (
                logits[observed, task].double().cpu(),
                labels[observed, task].double().cpu(),
            )
            positives = int(truth.sum())
            if positives in (0, len(truth)):
                raise ValueError(
                    f"task {task} has {positives} positive of {len(truth)} labels; calibration "
                    "needs both classes: give more data or leave the task out"
                )
            maps.append(platt_map(own, truth))
        self.knots.copy_(torch.stack([knots for knots, _ in maps]))
        self.values.copy_(torch.stack([values for _, values in maps]))
        self.fitted.fill_(True)
        self._line = None

    def forward(self, logits: Tensor) -> Tensor:
        """Return probabilities, [P, T] -> [P, T]."""
        _, slope, shift = self.line()
        clamped = logits.float().clamp(-FURTHEST, FURTHEST)
        return torch.sigmoid(torch.addcmul(shift, clamped, slope))

    def line(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the values it was read from, slopes and shifts, [T]; the same until it changes."""
        if self._line is None or self._line[0] is not self.values:
            self._line = (self.values, *self._slope_and_shift())
        return self._line

    def _slope_and_shift(self) -> tuple[Tensor, Tensor]:
        """Read each task's line off its ends, [T] each."""
        knots, values = self.knots.double(), self.values.double()
        slope = (values[:, -1] - values[:, 0]) / (knots[:, -1] - knots[:, 0])
        shift = values[:, 0] - slope * knots[:, 0]
        off = (torch.addcmul(shift[:, None], slope[:, None], knots) - values).abs().max()
        if not off <= 1e-4 * (1 + values.abs().max()):
            raise ValueError(
                f"a calibration is {float(off):.4g} off its line; this version calibrates by a "
                "line for each task: fit the ranker's calibration again"
            )
        return slope.float(), shift.float()


def _forget_line(calibrator: Calibrator, _keys: object) -> None:
    calibrator._line = None


def platt_map(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Fit slope and shift by Newton's steps on Platt's smoothed targets; knots and values, [Q]."""
    positives = labels.sum()
    targets = torch.where(
        labels > 0, (positives + 1) / (positives + 2), 1 / (len(labels) - positives + 2)
    )
    inputs = torch.stack([logits, torch.ones_like(logits)], dim=1)  # [P, 2]
    weights = torch.tensor([1.0, 0.0], dtype=logits.dtype)

    def loss_of(candidate: Tensor) -> Tensor:
        return functional.binary_cross_entropy_with_logits(inputs @ candidate, targets)

    ridge = 1e-9 * torch.eye(2, dtype=logits.dtype)
    for _ in range(50):
        chance = torch.sigmoid(inputs @ weights)
        gradient = inputs.T @ (chance - targets) / len(targets)
        curvature = inputs.T @ (inputs * (chance * (1 - chance))[:, None]) / len(targets)
        step = torch.linalg.solve(curvature + ridge, gradient)
        # Halved until it helps: far from the optimum Newton overshoots.
        size = 1.0
        while loss_of(weights - size * step) > loss_of(weights) and size > 1e-6:
            size /= 2
        weights = weights - size * step
        if float((size * step).abs().max()) < 1e-9:
            break
    if weights[0] <= 0:
        raise ValueError(
            f"Platt's slope is {float(weights[0]):.4g}: higher scores have fewer positives; the "
            "model ranks the wrong way round or has learned nothing"
        )
    knots = torch.linspace(-FURTHEST, FURTHEST, NUM_KNOTS, dtype=logits.dtype)
    return knots, knots * weights[0] + weights[1]
