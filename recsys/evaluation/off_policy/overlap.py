"""How much of a log bears on another policy: weights, their effective sample size, and doubts.

An off-policy estimate is a weighted mean. Where few lists have all of the weight it stands on those
few, whatever the log's size; where the logging policy never shows what the evaluated one does, no
weight makes up for it and the estimate is too low. Weights have mean 1 if propensities are right
and the log covers the policy, so a mean that is far from 1 reveals either.

Axes: n lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from recsys.evaluation.off_policy.logs import Floats, LoggedLists

QUANTILES = (0.5, 0.9, 0.99, 0.999)
FEW, SOME = 50.0, 400.0
"""Effective lists below which an estimate is refused, and doubted."""
LOST, WARNED = 0.2, 0.05
"""Distance of the mean weight from 1, beyond its error, that refuses and doubts an estimate."""
ALONE, HEAVY = 0.2, 0.05
"""Share of all weight on one list that refuses and doubts an estimate."""
ERRORS = 4.0
"""Standard errors that the mean weight is allowed to stray."""


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """The weights of a log."""

    num_lists: int
    effective: float
    """Lists of equal weight that would be as sure: (sum w)^2 / sum w^2 (Kong, 1992)."""
    zero_share: float
    """Lists that the evaluated policy never shows."""
    mean: float
    mean_error: float
    """Standard error of it."""
    largest: float
    largest_share: float
    """Of all weight."""
    quantiles: Mapping[float, float]

    @property
    def effective_share(self) -> float:
        return self.effective / self.num_lists

    @property
    def strayed(self) -> float:
        """How far the mean weight is from 1 beyond its error."""
        return max(0.0, abs(self.mean - 1) - ERRORS * self.mean_error)

    @property
    def grade(self) -> str:
        """``good``, ``doubtful`` or ``none``: whether an estimate by these weights is worth it."""
        if self.effective < FEW or self.strayed > LOST or self.largest_share > ALONE:
            return "none"
        if self.effective < SOME or self.strayed > WARNED or self.largest_share > HEAVY:
            return "doubtful"
        return "good"


def effective_size(weights: Floats) -> float:
    """Count the equal weights that some weights are worth, 0 where all are 0, [n]."""
    largest = float(weights.max(initial=0.0))
    if not largest > 0:
        return 0.0
    # Squares of what is scaled cannot overflow.
    scaled = weights / largest
    return float(scaled.sum() ** 2 / (scaled**2).sum())


def overlap(weights: Floats) -> Overlap:
    """Describe weights, [n]."""
    if weights.ndim != 1 or not len(weights) or not np.isfinite(weights).all():
        raise ValueError(f"weights must be finite numbers [n], n >= 1, got shape {weights.shape}")
    if (weights < 0).any():
        raise ValueError(f"weights must be at least 0, got {weights.min()}")
    total, largest, number = float(weights.sum()), float(weights.max()), len(weights)
    deviation = float(weights.std(ddof=1)) if number > 1 else float("inf")
    return Overlap(
        num_lists=number,
        effective=effective_size(weights),
        zero_share=float((weights == 0).mean()),
        mean=total / number,
        mean_error=deviation / number**0.5,
        largest=largest,
        largest_share=largest / total if total > 0 else 1.0,
        quantiles=dict(zip(QUANTILES, np.quantile(weights, QUANTILES).tolist(), strict=True)),
    )


def typical_slot(log: LoggedLists) -> int:
    """Name the slot at which half of the rewards are earned above it or in it.

    The weights of that slot stand for those of all, where weights differ by slot; without rewards
    it is the middle slot.
    """
    by_slot = log.earned.sum(0)
    counts = by_slot if by_slot.sum() > 0 and (by_slot >= 0).all() else log.present.sum(0)
    cumulative = counts.cumsum()
    return int(np.searchsorted(cumulative, 0.5 * cumulative[-1]))
