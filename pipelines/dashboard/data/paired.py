"""Two sides on the same queries: means, differences, intervals and p-values, by slice.

With several held-out items a user's items of a slice belong together: users are the sample.

Nothing is drawn at random, so that a page answers at once and always the same:

- the interval is BCa's (Efron, 1987) with the bootstrap's quantiles by their expansion in the
  skewness (Cornish and Fisher), both exact to the order of 1 / users;
- the p-value is the sign-flip test's, whose distribution is symmetric, with the term of its
  kurtosis (Edgeworth).

Axes: M queries, G pairs of a user and a slice, C slices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from pipelines.dashboard.context import Context
from pipelines.dashboard.data.answers import DEPTH, Joined, Side, answers, join
from pipelines.dashboard.data.slices import Slicing, Slicings
from recsys.data.batch import Jagged
from recsys.evaluation.ranking import per_user_metric

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Moments(NamedTuple):
    """Sums over each slice, [C]; the means of one without users are NaN."""

    num_users: Floats
    first: Floats
    second: Floats
    difference: Floats
    """Mean of the second minus the first."""
    standard_error: Floats
    skewness: Floats
    """Skewness of a user's difference."""
    squares: Floats
    """Sum of squared differences."""
    fourths: Floats
    """Sum of their fourth powers."""


class Pairs:
    """All pairs of the sides of joined queries."""

    def __init__(self, known: Joined, slicings: Slicings | None = None) -> None:
        self.known = known
        self.slicings = slicings or Slicings(known)
        self.one_each = known.num_users == len(known)

    def moments(self, first: int, second: int, slicing: Slicing, metric: str) -> Moments:
        """Compute a metric of two sides in each slice."""
        ranks = [self.known.ranks[place][slicing.queries] for place in (first, second)]
        if self.one_each:
            gains = per_user_metric(Jagged.one_each(torch.arange(DEPTH + 1)), metric).numpy()
            return sum_moments(slicing.codes, gains[ranks[0]], gains[ranks[1]], len(slicing.names))
        users = self.known.user_rows[slicing.queries]
        order = np.lexsort((slicing.codes, users))
        keys = np.stack([users[order], slicing.codes[order]])
        starts = np.flatnonzero(np.append(True, (keys[:, 1:] != keys[:, :-1]).any(axis=0)))
        offsets = torch.from_numpy(np.append(starts[: len(order)], len(order)).astype(np.int64))
        before, after = (
            per_user_metric(Jagged(torch.from_numpy(one[order].astype(np.int64)), offsets), metric)
            for one in ranks
        )
        codes = slicing.codes[order][starts[: len(order)]]
        return sum_moments(codes, before.numpy(), after.numpy(), len(slicing.names))


def join_pairs(context: Context, sides: Sequence[Side]) -> Pairs:
    """Join sides and return their pairs; kept until a file changes."""
    files = [path for one in sides for path in answers(one.run).files]
    key = ("pairs", tuple((one.run.key, one.model) for one in sides))

    def make() -> Pairs:
        known = join(sides)
        # Other models of the same runs have the same queries, and so the same slices.
        alike = ("slicings", tuple(dict.fromkeys(one.run.key for one in sides)))
        return Pairs(known, context.tables.get(alike, files, lambda: Slicings(known)))

    return context.tables.get(key, files, make)


def sum_moments(codes: NDArray[np.integer], first: Floats, second: Floats, num: int) -> Moments:
    """Sum up each of some slices."""

    def total(values: Floats | None = None) -> Floats:
        return np.bincount(codes, weights=values, minlength=num).astype(np.float64)

    margin = second - first
    users = total()
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = total(margin) / users
        centred = margin - mean[codes]
        spread = np.sqrt(total(centred**2) / users)
        skewness = np.where(spread > 0, total(centred**3) / users / spread**3, 0.0)
        return Moments(
            num_users=users,
            first=total(first) / users,
            second=total(second) / users,
            difference=mean,
            standard_error=np.where(users > 1, spread / np.sqrt(users - 1), 0.0),
            skewness=np.nan_to_num(skewness),
            squares=total(margin**2),
            fourths=total(margin**4),
        )


def interval(found: Moments, confidence: float) -> tuple[Floats, Floats]:
    """Bound each slice's difference, [C] and [C]; see the module."""
    tail = NormalDist().inv_cdf((1 + confidence) / 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        acceleration = np.nan_to_num(found.skewness / (6 * np.sqrt(found.num_users)))
        ends = []
        for z in (-tail, tail):
            # The bias equals the acceleration if the statistic is a mean.
            moved = acceleration + z
            room = np.maximum(1 - acceleration * moved, 1e-6)
            level = acceleration + moved / room
            quantile = level + acceleration * (level**2 - 1)
            ends.append(found.difference + found.standard_error * quantile)
    return ends[0], ends[1]


def p_values(found: Moments) -> Floats:
    """Two-sided p-value of "no difference" for each slice, [C]; 1 if nothing differs."""
    totals = np.abs(found.difference) * found.num_users
    rows = zip(totals, found.squares, found.fourths, strict=True)
    return np.array([min(1.0, 2 * _sign_flip(*row)) for row in rows])


def _sign_flip(total: float, squares: float, fourths: float) -> float:
    """Return the tail of the sign-flip test above a sum; 1 if nothing differs."""
    if not squares > 0:
        return 1.0
    normal = NormalDist()
    z = total / math.sqrt(squares)
    # Flipped signs have no skewness, and this excess of kurtosis. As a factor its term keeps the
    # tail above 0.
    excess = -2 * fourths / squares**2
    tail = max(normal.cdf(-z), 1e-300)
    return min(1.0, tail * math.exp(normal.pdf(z) * excess / 24 * (z**3 - 3 * z) / tail))
