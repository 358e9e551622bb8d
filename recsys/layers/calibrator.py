"""Maps a ranker's logits to probabilities that are frequencies, one rising map for each task.

Platt 1999 (a line through the logits) and isotonic regression by pooling adjacent violators
(Zadrozny and Elkan, KDD 2002). Both are kept as a rising piecewise-linear map from logit to logit,
so that a saved model holds tensors of one shape and the order of candidates within a task hardly
ever becomes a tie.

Axes: P predictions, T tasks, Q knots.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

NUM_KNOTS = 64
FURTHEST = 20.0
"""Logits beyond this are as good as certain."""

Method = Literal["platt", "isotonic"]


class Calibrator(nn.Module):
    """The maps of all tasks; until fitted, the sigmoid alone."""

    def __init__(self, num_tasks: int) -> None:
        super().__init__()
        line = torch.linspace(-FURTHEST, FURTHEST, NUM_KNOTS).expand(num_tasks, -1)
        self.knots: Tensor
        self.values: Tensor
        self.fitted: Tensor
        self.register_buffer("knots", line.clone())
        self.register_buffer("values", line.clone())
        self.register_buffer("fitted", torch.zeros((), dtype=torch.bool))

    @torch.no_grad()
    def fit(self, logits: Tensor, labels: Tensor, *, method: Method = "isotonic") -> None:
        """Fit every task's map on predictions that the model did not train on.

        Args:
            logits: [P, T].
            labels: 0 or 1, [P, T]; NaN where the task was not observed.

        Raises:
            ValueError: If a task has labels of one class only, or the method is unknown.
        """
        if method not in ("platt", "isotonic"):
            raise ValueError(f"method is 'platt' or 'isotonic', got {method!r}")
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
            maps.append(platt_map(own, truth) if method == "platt" else isotonic_map(own, truth))
        self.knots.copy_(torch.stack([knots for knots, _ in maps]))
        self.values.copy_(torch.stack([values for _, values in maps]))
        self.fitted.fill_(True)

    def forward(self, logits: Tensor) -> Tensor:
        """Give probabilities, [P, T] -> [P, T]."""
        columns = logits.float().T.contiguous()  # [T, P]
        right = torch.searchsorted(self.knots, columns).clamp(1, NUM_KNOTS - 1)
        low, high = self.knots.gather(1, right - 1), self.knots.gather(1, right)
        start, end = self.values.gather(1, right - 1), self.values.gather(1, right)
        share = ((columns - low) / (high - low).clamp(min=1e-12)).clamp(0, 1)
        return torch.sigmoid(start + share * (end - start)).T


def platt_map(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Fit slope and shift by Newton's steps on Platt's smoothed targets; knots and values, [Q].

    Raises:
        ValueError: If a higher logit makes the label less likely: there is nothing to calibrate.
    """
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


def isotonic_map(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Pool neighbours until their shares of positives rise; knots and values, [Q].

    A knot is a pool's mean logit, its value the logit of its share; between knots it runs straight.
    """
    ordered, order = torch.sort(logits)
    # A few thousand points are enough for 64 knots, and equal logits belong to one point.
    points = min(len(ordered), 4096)
    place = torch.searchsorted(ordered, ordered) * points // len(ordered)
    _, place = torch.unique_consecutive(place, return_inverse=True)
    count = torch.bincount(place).to(logits.dtype)
    mean = torch.bincount(place, ordered) / count
    share = torch.bincount(place, labels[order]) / count
    pools: list[tuple[float, float, float]] = []  # weight, share, logit
    for point in zip(count.tolist(), share.tolist(), mean.tolist(), strict=True):
        pools.append(point)
        while len(pools) > 1 and pools[-2][1] >= pools[-1][1]:
            last, before = pools.pop(), pools.pop()
            total = before[0] + last[0]
            share_of = last[0] / total
            pooled_share = before[1] + share_of * (last[1] - before[1])
            pooled_logit = before[2] + share_of * (last[2] - before[2])
            pools.append((total, pooled_share, pooled_logit))
    weight, shares, places = torch.tensor(pools, dtype=logits.dtype).T
    # A pool of n has seen nothing rarer than one in n + 2.
    chance = shares.clamp(1 / (weight + 2), 1 - 1 / (weight + 2))
    values = torch.logit(chance).cummax(0).values
    return _thinned(places, weight), _thinned(values, weight)


def _thinned(values: Tensor, weight: Tensor) -> Tensor:
    """Take 64 of the pools, spread over the predictions with both ends, repeating where few."""
    middle = (weight.cumsum(0) - weight / 2) / weight.sum()
    wanted = torch.linspace(0, 1, NUM_KNOTS, dtype=weight.dtype)
    taken = torch.searchsorted(middle, wanted).clamp(max=len(weight) - 1)
    if len(weight) <= NUM_KNOTS:
        taken = torch.arange(NUM_KNOTS).clamp(max=len(weight) - 1)
    else:
        taken[0], taken[-1] = 0, len(weight) - 1
    return values[taken]
