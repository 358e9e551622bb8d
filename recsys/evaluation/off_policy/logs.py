"""Logged lists with propensities, and the weights that turn one policy's log into another's.

A logged single action is a list of one slot. Every probability is that of a slot's item given the
items above it, as `recsys.reranking.lists` logs it; the weight of a slot is the evaluated
policy's probability over the logging policy's. The reward in slot k is weighed by w_1 ... w_k, the
items down to its slot: people read from above (reward-interaction IPS; McInerney et al., KDD 2020,
arXiv:2007.12986).

Axes: n lists, K slots.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]
QUANTILES = (0.5, 0.9, 0.99, 0.999)
FEW, SOME = 50.0, 400.0
"""Effective lists below which an estimate is refused, and doubted."""
LOST, WARNED = 0.2, 0.05
"""Distance of the mean weight from 1, beyond its error, that refuses and doubts an estimate."""
ALONE, HEAVY = 0.2, 0.05
"""Share of all weight on one list that refuses and doubts an estimate."""
ERRORS = 4.0
"""Standard errors that the mean weight is allowed to stray."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LoggedLists:
    """Lists, the reward of each slot, and how likely each policy shows each slot's item."""

    rewards: Floats
    """[n, K]; places after a list's length count for nothing, here and below."""
    propensities: Floats
    """Probabilities of the logging policy, in (0, 1], [n, K]."""
    evaluated: Floats
    """Probabilities of the evaluated policy for the same items, in [0, 1], [n, K]."""
    lengths: Integers
    """Slots of each list, 1 to K, [n]."""

    def __post_init__(self) -> None:
        shape = self.rewards.shape
        if len(shape) != 2 or 0 in shape:
            raise ValueError(
                f"rewards must be [lists, slots] with at least one of each, got shape {shape}; "
                "single actions are lists of one slot"
            )
        for name in ("propensities", "evaluated"):
            if (found := getattr(self, name).shape) != shape:
                raise ValueError(f"{name} must have the shape of rewards, {shape}, got {found}")
        if self.lengths.shape != shape[:1]:
            raise ValueError(f"lengths must have shape {shape[:1]}, got {self.lengths.shape}")
        short = (self.lengths < 1) | (self.lengths > shape[1])
        if short.any():
            at = int(short.argmax())
            raise ValueError(
                f"list {at} has length {self.lengths[at]}; lengths must be 1 to {shape[1]}"
            )
        self._check("rewards", np.isfinite(self.rewards), "finite; drop lists without a reward")
        self._check(
            "propensities",
            (self.propensities > 0) & (self.propensities <= 1),
            "in (0, 1]: an item that was shown had a chance to be. Log the probability with which "
            "it was drawn",
        )
        self._check("evaluated", (self.evaluated >= 0) & (self.evaluated <= 1 + 1e-9), "in [0, 1]")

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def present(self) -> Mask:
        """Which slots lists have, [n, K]."""
        found: Mask = np.arange(self.rewards.shape[1]) < self.lengths[:, None]
        return found

    @property
    def earned(self) -> Floats:
        """Rewards, 0 after the end of a list, [n, K]."""
        return np.where(self.present, self.rewards, 0.0)

    @property
    def slot_weights(self) -> Floats:
        """Evaluated over logged probability, 1 after the end of a list, [n, K]."""
        chances = np.where(self.present, self.propensities, 1.0)
        return np.where(self.present, self.evaluated, 1.0) / chances

    def _check(self, name: str, valid: Mask, allowed: str) -> None:
        wrong = ~valid & self.present
        if wrong.any():
            at, slot = (int(one[0]) for one in np.nonzero(wrong))
            value = getattr(self, name)[at, slot]
            raise ValueError(
                f"{name} of list {at}, slot {slot} is {value} ({int(wrong.sum())} such); they must "
                f"be {allowed}"
            )


def cascade(log: LoggedLists) -> Floats:
    """Weigh each slot by the items down to it, [n, K]."""
    return log.slot_weights.cumprod(1)


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
    """Largest share of all weight."""
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
    # Squares of scaled numbers cannot overflow.
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
    """Return the slot at which half of the rewards are earned above it or in it.

    The weights of that slot represent all, if weights differ by slot; without rewards
    it is the middle slot.
    """
    by_slot = log.earned.sum(0)
    counts = by_slot if by_slot.sum() > 0 and (by_slot >= 0).all() else log.present.sum(0)
    cumulative = counts.cumsum()
    return int(np.searchsorted(cumulative, 0.5 * cumulative[-1]))
