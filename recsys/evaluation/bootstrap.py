"""Bootstrap confidence intervals of means over users (Efron, 1987, BCa).

The users are the sample: an interval says how far the mean would move with other users of the
same kind. It says nothing of another seed of training, another split, or other weeks.

BCa (bias-corrected and accelerated) is the choice by measured coverage. A ranking metric is zero
for nine users in ten, so its mean is skewed, and the plain percentile interval sits too low:
with 500 users and 3% hits it covers the true NDCG@10 in 93.1% of worlds, BCa in 94.8%
(`tests/benchmarks/results/evaluation/significance.md`). Below some 15 hits in all, neither is to
be trusted to a point: MRR@10 of the same worlds is covered in 93.8%.

Resampling U users with replacement draws how often each *distinct* row of values occurs, which is
one multinomial draw over the distinct rows. With one target a user there are only as many rows as
ranks, so a million users cost no more than a thousand.

Axes: U users, M metrics, G distinct rows of values, R resamples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from recsys.evaluation.config import BootstrapConfig

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

_MAX_CELLS = 1 << 22
"""Draws held at once (32 MiB), which bounds memory for any U and R."""


class Interval(NamedTuple):
    """A mean over users with its interval."""

    mean: float
    low: float
    high: float
    num_users: int
    """Users that have a value."""


def bootstrap_intervals(
    values: Mapping[str, Tensor | Floats], config: BootstrapConfig | None = None
) -> dict[str, Interval]:
    """Interval of the mean of each metric over users.

    Metrics known for the same users are resampled together. A user with NaN (no target, an empty
    list) is not in that metric's sample. Where all users have one value, both ends are that
    value: the sample holds no sign of how users vary, which is not the same as certainty.

    Args:
        values: Metric name to one value per user, [U] each, all for the same users.
    """
    config = config or BootstrapConfig()
    table = as_table(values)  # [U, M]
    names = list(values)
    intervals: dict[str, Interval] = {}
    for users, columns in _known_together(table):
        if len(users) == 0:
            raise ValueError(
                f"no user has a value of {names[columns[0]]!r}, so there is no mean to bound; "
                "leave it out, or check that the users have targets"
            )
        found = _bca(table[users][:, columns], config)
        intervals.update({names[column]: found[place] for place, column in enumerate(columns)})
    return {name: intervals[name] for name in names}


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


def resampled_means(table: Floats, num_resamples: int, seed: int) -> Floats:
    """Means of samples of U users drawn with replacement from U, [R, M].

    Args:
        table: Values of every user, [U, M], without NaN.
    """
    rows, counts = np.unique(table, axis=0, return_counts=True)  # [G, M], [G]
    num_users = len(table)
    draw = np.random.default_rng(seed)
    means = np.empty((num_resamples, table.shape[1]))
    step = max(1, _MAX_CELLS // len(rows))
    for begin in range(0, num_resamples, step):
        end = min(begin + step, num_resamples)
        drawn = _draw_counts(draw, counts, end - begin)  # [r, G]
        means[begin:end] = drawn @ rows / num_users
    return means


def _draw_counts(draw: np.random.Generator, counts: NDArray[np.int64], size: int) -> Floats:
    """Draw how often each distinct row is in samples as large as the whole, [size, G]."""
    num_users, num_rows = int(counts.sum()), len(counts)
    # A multinomial draw costs about 4 random integers a row, so it pays where rows are shared.
    if 4 * num_rows < num_users:
        return draw.multinomial(num_users, counts / num_users, size=size).astype(np.float64)
    row_of_user = np.repeat(np.arange(num_rows), counts)
    drawn = np.empty((size, num_rows))
    for sample in drawn:
        chosen = row_of_user[draw.integers(0, num_users, num_users, dtype=np.int32)]
        sample[:] = np.bincount(chosen, minlength=num_rows)
    return drawn


def _known_together(table: Floats) -> Iterator[tuple[NDArray[np.int64], list[int]]]:
    """Group the columns that are known for the same users: those users, those columns."""
    groups: dict[bytes, list[int]] = {}
    known = ~np.isnan(table)
    for column in range(table.shape[1]):
        groups.setdefault(known[:, column].tobytes(), []).append(column)
    for columns in groups.values():
        yield known[:, columns[0]].nonzero()[0], columns


def _bca(table: Floats, config: BootstrapConfig) -> list[Interval]:
    """Intervals of the column means of [U, M] without NaN."""
    num_users = len(table)
    means = table.mean(axis=0)
    resampled = resampled_means(table, config.num_resamples, config.seed)  # [R, M]
    centred = table - means
    squares = (centred**2).sum(axis=0)
    cubes = (centred**3).sum(axis=0)
    intervals = []
    for column, mean in enumerate(means):
        low = high = float(mean)
        # Values that differ in nothing but the rounding of their mean have no spread.
        if squares[column] > num_users * (1e-12 * max(1.0, abs(mean))) ** 2:
            # The jackknife's acceleration has this closed form where the statistic is a mean.
            acceleration = float(cubes[column] / (6 * squares[column] ** 1.5))
            levels = _bca_levels(resampled[:, column], low, acceleration, config.confidence)
            # Weibull's positions (level x (R + 1)) do not narrow the interval when R is small.
            ends = np.quantile(resampled[:, column], levels, method="weibull")
            low, high = float(ends[0]), float(ends[1])
        intervals.append(Interval(float(mean), low, high, num_users))
    return intervals


def _bca_levels(
    resampled: Floats, mean: float, acceleration: float, confidence: float
) -> list[float]:
    """Quantile levels of the resampled means at which the interval ends (Efron, 1987)."""
    normal = NormalDist()
    num_resamples = len(resampled)
    # Resamples equal to the mean count half: coarse metrics hit it often.
    equal = np.isclose(resampled, mean, rtol=1e-12, atol=0)
    below = ((resampled < mean) & ~equal).sum() + equal.sum() / 2
    bias = normal.inv_cdf(min(max(below, 0.5), num_resamples - 0.5) / num_resamples)
    tail = normal.inv_cdf((1 - confidence) / 2)
    levels = []
    for z in (bias + tail, bias - tail):
        # Beyond 1 / acceleration the formula turns around; the outermost resample is the end.
        room = max(1 - acceleration * z, 1e-6)
        levels.append(normal.cdf(bias + z / room))
    return levels


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
