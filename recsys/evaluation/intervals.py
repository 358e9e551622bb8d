"""Confidence intervals of means over users, corrected for skew (Hall, JRSS B 1992).

The users are the sample: an interval says how far the mean would move with other users of the
same kind. It says nothing of another seed of training, another split, or other weeks.

A ranking metric is zero for nine users in ten, so its mean is skewed. The interval is turned back
from a cubic of the t statistic that has no skew, which needs no resampling and no seed
(docs/decisions/evaluation.md has its coverage). It takes Student's quantile: of few users the
variance is itself uncertain.

Axes: U users, M metrics.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]
LEAST_DEGREES = 3.0
"""Least degrees of freedom, to which Student's quantile is exact enough."""


class Interval(NamedTuple):
    """A mean over users with its interval."""

    mean: float
    low: float
    high: float
    num_users: int
    """Users that have a value."""


def mean_intervals(
    values: Mapping[str, Tensor | Floats], confidence: float = 0.95
) -> dict[str, Interval]:
    """Interval of the mean of each metric over users.

    A user with NaN (no target, an empty list) is not in that metric's sample. Where all users have
    one value, both ends are that value: the sample holds no sign of how users vary, which is not
    the same as certainty.

    Args:
        values: Metric name to one value per user, [U] each, all for the same users.
    """
    intervals = {}
    for name, column in zip(values, as_table(values).T, strict=True):
        known = column[~np.isnan(column)]
        if not len(known):
            raise ValueError(
                f"no user has a value of {name!r}, so there is no mean to bound; "
                "leave it out, or check that the users have targets"
            )
        low = high = mean = float(known.mean())
        parts = known - mean
        # Values that differ in nothing but the rounding of their mean have no spread.
        if (parts**2).sum() > len(known) * (1e-12 * max(1.0, abs(mean))) ** 2:
            error = float(known.std(ddof=1)) / math.sqrt(len(known))
            ends = skewed_ends(mean, error, parts, confidence, len(known) - 1)
            # No mean is outside the values.
            low, high = np.clip(ends, known.min(), known.max()).tolist()
        intervals[name] = Interval(mean, low, high, len(known))
    return intervals


def skewed_ends(
    value: float, error: float, parts: Floats, confidence: float, degrees: float
) -> tuple[float, float]:
    """Return the ends of an interval of a value that is a sum of skewed parts.

    Args:
        error: Standard error of the value.
        parts: Contributions to its deviation, about 0, [U].
        degrees: Degrees of freedom of the standard error.
    """
    quantile = student_quantile(0.5 + confidence / 2, max(LEAST_DEGREES, degrees))
    skew = moment(parts, 3)
    low, high = (_without_skew(one, skew, len(parts)) for one in (quantile, -quantile))
    return value - error * low, value - error * high


def moment(parts: Floats, power: int) -> float:
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


def as_table(values: Mapping[str, Tensor | Floats]) -> Floats:
    """Stack metrics as columns, [U, M] float64; NaN is allowed, infinity is not."""
    if not values:
        raise ValueError("no metric was given; name at least one, such as 'ndcg@10'")
    columns = [np.asarray(column, dtype=np.float64) for column in values.values()]
    shapes = {name: column.shape for name, column in zip(values, columns, strict=True)}
    if len(set(shapes.values())) != 1 or columns[0].ndim != 1:
        raise ValueError(f"every metric needs one value per user, [U], got the shapes {shapes}")
    table = np.stack(columns, axis=1)
    infinite = np.isinf(table)
    if infinite.any():
        user, column = np.argwhere(infinite)[0]
        raise ValueError(
            f"metric {list(values)[column]!r} is infinite for user {user}; values must be finite, "
            "or NaN where a user has none"
        )
    return table


def student_quantile(probability: float, degrees: float) -> float:
    """Compute a quantile of Student's distribution (Hill's expansion; CACM algorithm 396, 1970).

    To 0.3% from three degrees on between the quantiles 0.005 and 0.995.
    """
    z = NormalDist().inv_cdf(probability)
    squared = z * z
    terms = (
        (squared + 1) / 4,
        (5 * squared**2 + 16 * squared + 3) / 96,
        (3 * squared**3 + 19 * squared**2 + 17 * squared - 15) / 384,
        (79 * squared**4 + 776 * squared**3 + 1482 * squared**2 - 1920 * squared - 945) / 92160,
    )
    return z * (1 + sum(term / degrees**power for power, term in enumerate(terms, start=1)))


def group_values(values: Floats, groups: Labels) -> Floats:
    """One value a group whose mean over groups is the mean over queries, [G].

    Groups have different numbers of queries, so the mean is a ratio of two sums; these are the
    values by which it varies (its linearisation: the groups' influence, moved to the mean).
    """
    _, place, counts = np.unique(groups, return_inverse=True, return_counts=True)
    sums = np.bincount(place.reshape(-1), weights=values)
    mean = values.mean()
    found: Floats = mean + (sums - mean * counts) / counts.mean()
    return found


def time_blocks(times: Labels, num_blocks: int = 20) -> Labels | None:
    """Cut queries into blocks of nearly equal size by time, equal times together; [Q].

    Returns:
        None where all have one time.
    """
    if len(times) == 0 or times.min() == times.max():
        return None
    ordered = np.sort(times)
    starts = ordered[(np.arange(1, num_blocks) * len(times)) // num_blocks]
    blocks: Labels = np.searchsorted(np.unique(starts), times, side="right").astype(np.int64)
    return blocks
