"""Intervals of an estimate whose sample size was settled before.

The error of every estimate here is, to first order, a mean of contributions, one a list. Lists of
one user are alike, so contributions are summed by user before their variance is taken (Liang and
Zeger, 1986). Weights have long tails to one side. The interval is therefore turned back from a
cubic of the t statistic that has no skew (Hall, JRSS B 1992), and the quantile is Student's with
the degrees of freedom that the contributions' kurtosis leaves, 2 n / (kurtosis - 1) (Satterthwaite,
1946), never more than n - 1: of a long tail the variance is itself uncertain.

Axes: n lists, U users.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from recsys.evaluation.bootstrap import student_quantile
from recsys.evaluation.off_policy.estimators import Estimate
from recsys.evaluation.off_policy.logs import Floats, Integers, LoggedLists

LEAST_DEGREES = 3.0


class ValueInterval(NamedTuple):
    """An interval, and the standard error that it is made from."""

    low: float
    high: float
    standard_error: float


def interval_of(
    estimate: Estimate, *, confidence: float = 0.95, users: Integers | None = None
) -> ValueInterval:
    """Compute the interval of a value.

    Args:
        users: Number of each list's user, [n]; None has lists as independent.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}")
    parts = estimate.influence
    if users is not None:
        if users.shape != parts.shape:
            raise ValueError(f"users must have shape {parts.shape}, got {users.shape}")
        _, owners = np.unique(users, return_inverse=True)
        parts = np.bincount(owners, estimate.influence).astype(np.float64)
    number = len(parts)
    if number < 2:
        raise ValueError(
            f"an interval needs at least 2 independent lists or users, got {number}; log more"
        )
    squares = parts**2
    error = math.sqrt(float(squares.sum()) * number / (number - 1)) / len(estimate.influence)
    quantile = student_quantile(0.5 + confidence / 2, degrees_of_freedom(parts))
    skew = _moment(parts, 3)
    return ValueInterval(
        estimate.value - error * _without_skew(quantile, skew, number),
        estimate.value - error * _without_skew(-quantile, skew, number),
        error,
    )


def degrees_of_freedom(parts: Floats) -> float:
    """How many draws of a normal would tell their variance as well as some values do theirs."""
    kurtosis = _moment(parts, 4)
    return max(LEAST_DEGREES, min(len(parts) - 1.0, 2 * len(parts) / max(kurtosis - 1, 1e-9)))


def _moment(parts: Floats, power: int) -> float:
    """Compute a standardised moment about 0; 0 where all values are 0."""
    deviation = math.sqrt(float((parts**2).mean()))
    return float(((parts / deviation) ** power).mean()) if deviation else 0.0


def _without_skew(quantile: float, skew: float, number: int) -> float:
    """Turn a quantile without skew into one of the t statistic (Hall, 1992, section 2)."""
    root = math.sqrt(number)
    if abs(skew) < 1e-6:
        return quantile - skew / (6 * root)
    inner = 1 + skew * (quantile / root - skew / (6 * number))
    return 3 * root / skew * (math.copysign(abs(inner) ** (1 / 3), inner) - 1)


MOST_STAKED = 0.75
"""Share of the wealth that the worst list may take."""
STAKES = 4 * 0.5 ** np.arange(16)
"""Bets are split evenly between these, so that one fits for any variance and the number."""
STEPS = 20
"""Halvings in the search of a bound: 1e-6 of the range."""


class Sequence(NamedTuple):
    """Bounds at each look, [T] each, which only ever narrow."""

    looks: Integers
    """How many lists were seen."""
    low: Floats
    high: Floats


def default_looks(number: int, count: int = 24) -> Integers:
    """Choose looks, evenly on a logarithmic scale from 10 lists to all."""
    first = min(10, number)
    return np.unique(np.geomspace(first, number, count).round().astype(np.int64))


def betting_sequence(log: LoggedLists, weights: Floats, *, error: float = 0.05) -> Sequence:
    """Bound the mean reward of a list at every look, with both sides wrong by ``error`` together.

    Rewards of a slot must be in [0, 1].
    """
    rewards = log.earned
    if (rewards < 0).any() or (rewards > 1).any():
        raise ValueError(
            f"rewards of a slot must lie between 0 and 1, got {rewards.min()} to {rewards.max()}"
        )
    if not 0 < error < 1:
        raise ValueError(f"error must lie between 0 and 1, got {error}")
    looks, slots = default_looks(len(log)), rewards.shape[1]
    earned = (weights * rewards).sum(1) / slots
    missed = (weights * (1 - rewards)).sum(1) / slots
    low = _lower_bounds(earned, looks, error / 2)
    high = 1 - _lower_bounds(missed, looks, error / 2)
    return Sequence(looks, slots * low, slots * np.maximum(high, low))


def _lower_bounds(values: Floats, looks: Integers, error: float) -> Floats:
    """Bound the mean, in [0, 1], of values >= 0 from below at each look, [T]."""
    bounds, best, needed = np.zeros(len(looks)), 0.0, -math.log(error)
    for place, number in enumerate(looks.tolist()):
        seen = values[:number]
        if best < 1 and _wealth(seen, best + 1e-12) >= needed:
            low, high = best, 1.0
            for _ in range(STEPS):
                middle = 0.5 * (low + high)
                # Wealth falls with the mean that is bet against.
                low, high = (middle, high) if _wealth(seen, middle) >= needed else (low, middle)
            best = low
        bounds[place] = best
    return bounds


def _wealth(values: Floats, mean: float) -> float:
    """Logarithm of what bets on more than a mean have won, an equal part by each stake."""
    staked = np.unique(np.minimum(STAKES, MOST_STAKED / mean))
    parts = np.ones(len(staked))
    # Stakes that were cut to the most are one stake with all of their parts.
    parts[-1] += len(STAKES) - len(staked)
    logs = np.array([np.log1p(stake * (values - mean)).sum() for stake in staked])
    highest = float(logs.max())
    return highest + math.log(float((parts * np.exp(logs - highest)).sum()) / len(STAKES))
