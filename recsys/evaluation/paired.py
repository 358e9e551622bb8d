"""Judge a challenger against a champion on the same queries: difference, intervals, power, verdict.

Both answer the same queries, so each query's difference is judged. Its mean has two
intervals: over users, each with one query, and over blocks of time, which are few and differ as
weeks do. A claim must hold by both. Where neither "better" nor "worse" can be claimed the
answer is that there is not enough evidence, and the power is given: the
smallest difference that this many users, as spread as they are, find with a given chance.

A protected slice is refused only for a loss beyond a margin that its interval excludes, with Holm's
levels over all slices, so that many slices do not find a loss by luck.

Axes: Q queries, U users, B blocks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from recsys.evaluation.config import PairedConfig
from recsys.evaluation.intervals import (
    Floats,
    Labels,
    group_values,
    mean_intervals,
    student_quantile,
)
from recsys.evaluation.significance import holm, p_value

Decision = Literal["better", "worse", "not enough evidence"]

MIN_BLOCKS = 5
"""Blocks of time below which their spread says too little for an interval."""
MIN_USERS = 2
"""Users without which there is no spread."""
SIGNIFICANCE_LEVEL = 0.05
"""Greatest adjusted p-value that is called a difference."""


class Paired(NamedTuple):
    """Comparison of two systems on the same queries."""

    num_queries: int
    num_users: int
    champion: float
    """Mean over queries."""
    challenger: float
    difference: float
    """Challenger minus champion."""
    low: float
    high: float
    """Interval over users."""
    time_low: float | None
    time_high: float | None
    """Interval over blocks of time; None without at least `MIN_BLOCKS`."""
    standard_error: float
    """Over users."""
    p_value: float
    """Two-sided, of no difference, by the signs of users' differences."""
    detectable: float
    """Smallest difference found with the power of the config, absolute."""
    decision: Decision
    not_worse: bool
    """Whether a loss beyond the margin is excluded by both intervals."""

    @property
    def relative(self) -> float:
        """Difference as a share of the champion's mean; NaN where that is 0."""
        return self._share(self.difference)

    @property
    def relative_interval(self) -> tuple[float, float]:
        """Interval of `relative`: the wider end of both intervals."""
        return self._share(self.widest[0]), self._share(self.widest[1])

    @property
    def relative_detectable(self) -> float:
        """`detectable` as a share of the champion's mean."""
        return self._share(self.detectable)

    @property
    def widest(self) -> tuple[float, float]:
        """Ends that hold by users and by blocks of time."""
        low = self.low if self.time_low is None else min(self.low, self.time_low)
        high = self.high if self.time_high is None else max(self.high, self.time_high)
        return low, high

    def _share(self, value: float) -> float:
        return value / self.champion if self.champion > 0 else math.nan


def paired(
    champion: Tensor | Floats,
    challenger: Tensor | Floats,
    config: PairedConfig | None = None,
    *,
    blocks: Labels | None = None,
) -> Paired:
    """Judge a challenger by the values that both have for the same queries.

    Args:
        champion: One value a query, each another user's, [Q]; NaN where there is none, which
            leaves the query out.
        challenger: The same of the challenger, [Q].
        blocks: Block of time of each query, [Q]; None where there are no times.
    """
    config = config or PairedConfig()
    before, after, blocks = _known(champion, challenger, blocks)
    difference = after - before
    over_users = mean_intervals({"difference": difference}, config.confidence)["difference"]
    error = _standard_error(difference)
    time_low = time_high = None
    smallest = detectable(error, config)
    if blocks is not None:
        of_block = group_values(difference, blocks)
        if (freedom := len(of_block) - 1) >= MIN_BLOCKS - 1:
            of_time = _standard_error(of_block)
            reach = of_time * student_quantile((1 + config.confidence) / 2, freedom)
            time_low, time_high = over_users.mean - reach, over_users.mean + reach
            smallest = detectable(max(error, of_time), config, freedom)
    judged = Paired(
        num_queries=len(before),
        num_users=len(before),
        champion=float(before.mean()),
        challenger=float(after.mean()),
        difference=over_users.mean,
        low=over_users.low,
        high=over_users.high,
        time_low=time_low,
        time_high=time_high,
        standard_error=error,
        p_value=p_value(difference),
        detectable=smallest,
        decision="not enough evidence",
        not_worse=False,
    )
    return decided(judged, config)


def detectable(standard_error: float, config: PairedConfig, freedom: int | None = None) -> float:
    """Smallest true difference whose interval excludes 0 with the power of the config.

    Args:
        freedom: Of the error, one less than the blocks; None for many users.
    """
    normal, claimed = NormalDist(), (1 + config.confidence) / 2
    reach = normal.inv_cdf(claimed) if freedom is None else student_quantile(claimed, freedom)
    return standard_error * (reach + normal.inv_cdf(config.power))


class MetricComparison(NamedTuple):
    """One metric of a candidate against the baseline, over the users that both have it for.

    The interval of the difference is not adjusted for the number of tests.
    """

    metric: str
    baseline: str
    candidate: str
    num_users: int
    baseline_mean: float
    candidate_mean: float
    difference: float
    """Candidate minus baseline."""
    low: float
    high: float
    p_value: float
    adjusted_p_value: float
    """Corrected for all tests of the same call."""
    significant: bool


def compare_models(
    values: Mapping[str, Mapping[str, Tensor]], baseline: str
) -> list[MetricComparison]:
    """Compare every other model with the baseline on each metric of the baseline.

    P-values are adjusted over all of these tests together, so compare all models in one call.

    Args:
        values: By model and metric, one value for each of the same users, [U]; NaN without one.
    """
    rule = PairedConfig(confidence=1 - SIGNIFICANCE_LEVEL)
    tests = [
        (metric, name, paired(theirs, values[name][metric], rule))
        for name in values
        if name != baseline
        for metric, theirs in values[baseline].items()
    ]
    adjusted = holm(np.array([found.p_value for *_, found in tests]))
    return [
        MetricComparison(
            metric=metric,
            baseline=baseline,
            candidate=name,
            num_users=found.num_users,
            baseline_mean=found.champion,
            candidate_mean=found.challenger,
            difference=found.difference,
            low=found.low,
            high=found.high,
            p_value=found.p_value,
            adjusted_p_value=float(one),
            significant=bool(one <= SIGNIFICANCE_LEVEL),
        )
        for (metric, name, found), one in zip(tests, adjusted, strict=True)
    ]


class SliceLoss(NamedTuple):
    """Whether one protected slice lost more than is tolerated."""

    name: str
    found: Paired
    p_value: float
    """P-value of no loss beyond the margin, by Holm's levels over all slices."""
    harmed: bool
    gained: bool
    """Whether any gain is shown, by the same levels."""


def slice_losses(
    champion: Floats,
    challenger: Floats,
    slices: Mapping[str, NDArray[np.bool_]],
    config: PairedConfig | None = None,
    *,
    min_users: int = 100,
) -> list[SliceLoss]:
    """Test each slice for a loss beyond ``config.slice_margin`` and for a gain, one-sided.

    Args:
        champion: One value a query, [Q].
        challenger: The same of the challenger, [Q].
        slices: Which queries, each another user's, are in each slice, [Q].
    """
    config = config or PairedConfig()
    tests: list[tuple[str, Paired]] = []
    for name, inside in slices.items():
        if not inside.any():
            continue
        found = paired(champion[inside], challenger[inside], config)
        if found.num_users >= min_users:
            tests.append((name, found))
    if not tests:
        return []
    margin = config.slice_margin
    losses = [_tail(one.difference + margin * one.champion, one) for _, one in tests]
    gains = [_tail(-one.difference, one) for _, one in tests]
    error = config.slice_error
    return [
        SliceLoss(name, found, float(loss), bool(loss <= error), bool(gain <= error))
        for (name, found), loss, gain in zip(
            tests, holm(np.array(losses)), holm(np.array(gains)), strict=True
        )
    ]


def _tail(above: float, found: Paired) -> float:
    """Return the chance of a value as low as this where the true one is 0."""
    if found.standard_error == 0:
        return 0.0 if above < 0 else 1.0
    return NormalDist().cdf(above / found.standard_error)


def decided(found: Paired, config: PairedConfig) -> Paired:
    """Add the decision that the intervals allow."""
    low, high = found.widest
    if found.num_users < MIN_USERS:
        return found
    decision: Decision = "not enough evidence"
    if low > 0:
        decision = "better"
    elif high < 0:
        decision = "worse"
    # Equal in every query is not worse, whatever the margin.
    kept = low >= -config.margin * found.champion
    return found._replace(decision=decision, not_worse=bool(kept))


def _known(
    champion: Tensor | Floats, challenger: Tensor | Floats, blocks: Labels | None
) -> tuple[Floats, Floats, Labels | None]:
    """Keep the queries that both have a value for."""
    before, after = (np.asarray(one, np.float64) for one in (champion, challenger))
    shapes = {one.shape for one in (before, after, blocks) if one is not None}
    if len(shapes) != 1 or before.ndim != 1:
        raise ValueError(
            f"champion, challenger and blocks need one value for each of the same queries, "
            f"[Q]; got the shapes {sorted(shapes)}"
        )
    both = ~(np.isnan(before) | np.isnan(after))
    if not both.any():
        raise ValueError(
            "no query has a value of both systems, so there is nothing to compare; give queries "
            "with held-out items that both answered"
        )
    return before[both], after[both], None if blocks is None else blocks[both]


def _standard_error(values: Floats) -> float:
    if len(values) < MIN_USERS:
        return 0.0
    return float(values.std(ddof=1) / math.sqrt(len(values)))
