"""Two sides on the same queries: means, differences, intervals and p-values, by slice.

With one held-out item a user, all that a metric needs is how often each pair of ranks occurs, so
the queries are counted once by slice and pair of ranks; any metric at any k, with its interval and
test, comes from those few counts. With several held-out items a user's items belong together: the
metric of each user is computed and users are the sample.

Nothing is drawn at random, so that a page answers at once and always the same:

- the interval is BCa's (Efron, 1987) with the bootstrap's quantiles by their expansion in the
  skewness (Cornish and Fisher), both exact to the order of 1 / users;
- the p-value is the sign-flip test's, whose distribution is symmetric, with the term of its
  kurtosis (Edgeworth).

Axes: M queries, G rows of counts, C slices.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from pipelines.dashboard.context import Context
from pipelines.dashboard.data.answers import DEPTH, Joined, Side, Split, answers, join
from pipelines.dashboard.data.slices import Slicing, Slicings
from recsys.data.batch import Jagged
from recsys.evaluation.ranking import per_user_metric

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Values(NamedTuple):
    """A metric of both sides, each row as often as it occurs."""

    codes: Ints
    """Slice, [G]."""
    first: Floats
    """[G]."""
    second: Floats
    counts: Floats
    """Users, [G]."""
    num_slices: int


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


class Counts(NamedTuple):
    """How often pairs of ranks occur in each slice, [G]."""

    codes: Ints
    first: Ints
    second: Ints
    counts: Floats


class Groups(NamedTuple):
    """The held-out items of one user in one slice, G groups of R memberships."""

    order: Ints
    """Memberships, group by group, [R]."""
    offsets: Ints
    """[G + 1]."""
    codes: Ints
    """[G]."""


class Pairs:
    """All pairs of the sides of joined queries; what was counted is kept."""

    def __init__(self, known: Joined, slicings: Slicings | None = None) -> None:
        self.known = known
        self.slicings = slicings or Slicings(known)
        self.one_each = known.num_users == len(known)
        self._kept: dict[Hashable, Counts | Groups] = {}
        self._gains: dict[str, Floats] = {}

    def values(self, first: int, second: int, slicing: Slicing, metric: str) -> Values:
        """Compute a metric of two sides.

        Args:
            first: Place of a side.
            second: Place of another.
            slicing: Of the queries.
            metric: Such as ndcg@10; at most `DEPTH` places.
        """
        key = (first, second, slicing.group) if self.one_each else slicing.group
        if key not in self._kept:
            counted = self._counted(first, second, slicing) if self.one_each else None
            self._kept[key] = counted or self._grouped(slicing)
        found, num_slices = self._kept[key], len(slicing.names)
        if isinstance(found, Counts):
            gains = self._gains_of(metric)
            return Values(
                found.codes, gains[found.first], gains[found.second], found.counts, num_slices
            )
        offsets = torch.from_numpy(found.offsets)
        before, after = (
            per_user_metric(
                Jagged(torch.from_numpy(ranks[found.order].astype(np.int64)), offsets), metric
            ).numpy()
            for ranks in (self.known.ranks[first], self.known.ranks[second])
        )
        return Values(found.codes, before, after, np.ones(len(found.codes)), num_slices)

    def _gains_of(self, metric: str) -> Floats:
        """Compute a metric of a user with one held-out item by its rank, [DEPTH + 1]."""
        if metric not in self._gains:
            ranks = Jagged.one_each(torch.arange(DEPTH + 1))
            self._gains[metric] = per_user_metric(ranks, metric).numpy()
        return self._gains[metric]

    def _counted(self, first: int, second: int, slicing: Slicing) -> Counts:
        width = DEPTH + 1
        ranks = [self.known.ranks[one][slicing.queries] for one in (first, second)]
        cells = (slicing.codes * width + ranks[0]) * width + ranks[1]
        counts = np.bincount(cells, minlength=1)
        inside = np.flatnonzero(counts)
        return Counts(
            inside // width**2,
            inside // width % width,
            inside % width,
            counts[inside].astype(np.float64),
        )

    def _grouped(self, slicing: Slicing) -> Groups:
        users = self.known.user_rows[slicing.queries]
        order = np.lexsort((slicing.codes, users))
        keys = np.stack([users[order], slicing.codes[order]])
        starts = np.flatnonzero(np.append(True, (keys[:, 1:] != keys[:, :-1]).any(axis=0)))
        starts = starts[: len(order)]
        return Groups(
            slicing.queries[order].astype(np.int64),
            np.append(starts, len(order)).astype(np.int64),
            slicing.codes[order][starts].astype(np.int64),
        )

    def moments(self, first: int, second: int, slicing: Slicing, metric: str) -> Moments:
        """Compute what intervals and tests of each slice need."""
        return moments_of(self.values(first, second, slicing, metric))


def pairs_of(context: Context, sides: Sequence[Side], split: Split) -> Pairs:
    """Join sides and return their pairs, kept with what was counted until a file changes."""
    files = [path for one in sides for path in answers(one.run, split).files]
    key = ("pairs", split, tuple((one.run.key, one.model) for one in sides))

    def make() -> Pairs:
        known = join(tuple(sides), split)
        # Other models of the same runs have the same queries, and so the same slices.
        alike = ("slicings", split, tuple(dict.fromkeys(one.run.key for one in sides)))
        return Pairs(known, context.tables.get(alike, files, lambda: Slicings(known)))

    return context.tables.get(key, files, make)


def moments_of(values: Values) -> Moments:
    """Sum up each slice."""
    codes, weights, num = values.codes, values.counts, values.num_slices

    def total(of: Floats) -> Floats:
        return np.bincount(codes, weights=of, minlength=num).astype(np.float64)

    margin = values.second - values.first  # [G]
    users = total(weights)
    with np.errstate(divide="ignore", invalid="ignore"):
        first, second = (
            total(weights * values.first) / users,
            total(weights * values.second) / users,
        )
        mean = total(weights * margin) / users
        centred = margin - mean[codes]
        variance = total(weights * centred**2) / users
        spread = np.sqrt(variance)
        skewness = np.where(spread > 0, total(weights * centred**3) / users / spread**3, 0.0)
        error = np.where(users > 1, spread / np.sqrt(users - 1), 0.0)
    return Moments(
        num_users=users,
        first=first,
        second=second,
        difference=mean,
        standard_error=error,
        skewness=np.nan_to_num(skewness),
        squares=total(weights * margin**2),
        fourths=total(weights * margin**4),
    )


def interval(found: Moments, confidence: float) -> tuple[Floats, Floats]:
    """Bound each slice's difference, [C] and [C]; see the module."""
    tail = NormalDist().inv_cdf((1 + confidence) / 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        acceleration = np.nan_to_num(found.skewness / (6 * np.sqrt(found.num_users)))
        ends = []
        for z in (-tail, tail):
            # The bias equals the acceleration where the statistic is a mean.
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
