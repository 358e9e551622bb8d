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
from recsys.evaluation.off_policy.logs import Floats, Integers

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
    # As many draws of a normal would tell their variance as well as the parts do theirs.
    freedom = min(number - 1.0, 2 * number / max(_moment(parts, 4) - 1, 1e-9))
    quantile = student_quantile(0.5 + confidence / 2, max(LEAST_DEGREES, freedom))
    skew = _moment(parts, 3)
    return ValueInterval(
        estimate.value - error * _without_skew(quantile, skew, number),
        estimate.value - error * _without_skew(-quantile, skew, number),
        error,
    )


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
