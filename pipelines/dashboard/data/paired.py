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
from pipelines.dashboard.data.slices import Slicing, Slicings, everything
from recsys.data.batch import Jagged
from recsys.evaluation.paired import (
    MIN_BLOCKS,
    Paired,
    PairedConfig,
    decided,
    detectable,
    student,
)
from recsys.evaluation.ranking import per_user_metric

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
NUM_BLOCKS = 20
"""Of time, as the release gate cuts it."""


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
    """Of each slice, [C]; NaN means where it has no users."""

    num_users: Floats
    num_changed: Floats
    """Users whose value differs."""
    first: Floats
    second: Floats
    difference: Floats
    """Mean of the second minus the first."""
    standard_error: Floats
    skewness: Floats
    """Of a user's difference."""
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
            self._kept[key] = self._summed(first, second, slicing)
        return self._valued(first, second, self._kept[key], len(slicing.names), metric)

    def uncounted(self, first: int, second: int, slicing: Slicing, metric: str) -> Values:
        """Compute a metric by slices that are not kept, such as what is left of others."""
        found = self._summed(first, second, slicing)
        return self._valued(first, second, found, len(slicing.names), metric)

    def _summed(self, first: int, second: int, slicing: Slicing) -> Counts | Groups:
        return self._counted(first, second, slicing) if self.one_each else self._grouped(slicing)

    def _valued(
        self, first: int, second: int, found: Counts | Groups, num_slices: int, metric: str
    ) -> Values:
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

    def overall(self, first: int, second: int, metric: str, config: PairedConfig) -> Paired:
        """Judge the second side against the first by a metric over all queries.

        The interval is over users, and over blocks of time where there are times; a claim needs
        both, as in the release gate.
        """
        known = self.known
        whole = self.values(first, second, everything(len(known)), metric)
        found = moments_of(whole)
        low, high = interval(found, config.confidence)
        error, mean = float(found.standard_error[0]), float(found.difference[0])
        time_low = time_high = None
        smallest = detectable(error, config)
        blocks = self.slicings.blocks(NUM_BLOCKS)
        if blocks is not None:
            of_block = self._by_block(first, second, blocks, metric, mean)
            freedom = len(of_block) - 1
            if freedom >= MIN_BLOCKS - 1:
                of_time = float(of_block.std(ddof=1) / math.sqrt(len(of_block)))
                reach = of_time * student(config.confidence, freedom)
                time_low, time_high = mean - reach, mean + reach
                smallest = detectable(max(error, of_time), config, freedom)
        judged = Paired(
            num_queries=len(known),
            num_users=int(found.num_users[0]),
            champion=float(found.first[0]),
            challenger=float(found.second[0]),
            difference=mean,
            low=float(low[0]),
            high=float(high[0]),
            time_low=time_low,
            time_high=time_high,
            standard_error=error,
            detectable=smallest,
            decision="not enough evidence",
            not_worse=False,
        )
        return decided(judged, config)

    def _by_block(
        self, first: int, second: int, blocks: Slicing, metric: str, mean: float
    ) -> Floats:
        """One value a block of time, by which the mean varies (`recsys.evaluation.paired`)."""
        found = self.moments(first, second, blocks, metric)
        inside = found.num_users > 0
        counts = found.num_users[inside]
        sums = counts * found.difference[inside]
        values: Floats = mean + (sums - mean * counts) / counts.mean()
        return values


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


def moments_of(values: Values, tolerated: float = 0.0) -> Moments:
    """Sum up each slice.

    Args:
        values: Of both sides.
        tolerated: Share of the first side's value that may be lost: what is summed up is
            ``second - (1 - tolerated) * first``.
    """
    codes, weights, num = values.codes, values.counts, values.num_slices

    def total(of: Floats) -> Floats:
        return np.bincount(codes, weights=of, minlength=num).astype(np.float64)

    margin = values.second - (1 - tolerated) * values.first  # [G]
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
        num_changed=total(weights * (values.second != values.first)),
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
    """Two-sided p-value of "no difference" for each slice, [C]; 1 where nothing differs."""
    return np.minimum(1.0, 2 * _sign_flips(found, np.abs(found.difference)))


def gain_p_values(found: Moments) -> Floats:
    """One-sided p-value of "nothing is gained" for each slice, [C]."""
    p_values: Floats = _sign_flips(found, found.difference)
    return p_values


def loss_p_values(values: Values, tolerated: float) -> tuple[Floats, Floats]:
    """One-sided p-value of "no more than a share is lost" for each slice, and how clear it is.

    The mean is studentised and freed of its skewness (Hall, 1992); Student's tail has as many
    degrees of freedom as users differ, by Wallace's transformation to the normal's.

    Args:
        values: Of both sides.
        tolerated: The share of the first side's value.

    Returns:
        P-values, [C]; the statistic, [C]: the lower, the clearer the loss.
    """
    found = moments_of(values, tolerated)
    normal = NormalDist()
    with np.errstate(divide="ignore", invalid="ignore"):
        t = found.difference / found.standard_error
        third = found.skewness / (3 * np.sqrt(found.num_users))
        freed = t + third * t**2 + third**2 * t**3 / 3 + third / 2
        freedom = np.maximum(found.num_changed - 1, 1)
        z = np.sign(freed) * np.sqrt(freedom * np.log1p(freed**2 / freedom))
        z *= (8 * freedom + 1) / (8 * freedom + 3)
    plain = np.where(found.difference < 0, 0.0, 1.0)
    tails = [
        normal.cdf(value) if math.isfinite(value) else float(other)
        for value, other in zip(z, plain, strict=True)
    ]
    return np.array(tails), np.nan_to_num(t)


def _sign_flips(found: Moments, differences: Floats) -> Floats:
    """Tail of the sign-flip test above a difference, [C]; 1 where nothing differs."""
    rows = zip(differences * found.num_users, found.squares, found.fourths, strict=True)
    return np.array([_sign_flip(*row) for row in rows])


def _sign_flip(total: float, squares: float, fourths: float) -> float:
    if not squares > 0:
        return 1.0
    normal = NormalDist()
    z = total / math.sqrt(squares)
    if z < 0:
        return 1 - _sign_flip(-total, squares, fourths)
    # Flipped signs have no skewness, and this excess of kurtosis. As a factor its term keeps the
    # tail above 0.
    excess = -2 * fourths / squares**2
    tail = max(normal.cdf(-z), 1e-300)
    return min(1.0, tail * math.exp(normal.pdf(z) * excess / 24 * (z**3 - 3 * z) / tail))
