"""Decide whether one model beats another for the same users: paired tests, many at a time.

If two models are equally good, each user's difference is as likely to have either sign (Fisher,
1935; for retrieval: Smucker, Allan and Carterette, CIKM 2007). The sum of differences with random
signs is nearly normal: of equal models with 100 to 2,000 users 4.0% to 5.4% are called different
at 5%. If at most twelve users' outcomes differ, all signs are counted; equal sums count half (the
mid-p value, Lancaster, 1961).

Many tests at once find differences by luck, so p-values are adjusted: Holm (1979) bounds the
chance of a single false claim.

Axes: U users, M metrics.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import product
from typing import NamedTuple

import numpy as np
from torch import Tensor

from recsys.evaluation.intervals import Floats, as_table, mean_intervals

SIGNIFICANCE_LEVEL = 0.05
"""Greatest adjusted p-value that is called a difference."""
MOST_COUNTED = 12
"""Users whose signs are all counted, 4,096 ways."""


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
    found = [
        test
        for name in values
        if name != baseline
        for test in _paired_tests(values, baseline, name)
    ]
    adjusted = holm(np.array([test.p_value for test in found]))
    return [
        test._replace(adjusted_p_value=float(one), significant=bool(one <= SIGNIFICANCE_LEVEL))
        for test, one in zip(found, adjusted, strict=True)
    ]


def p_value(differences: Floats) -> float:
    """Return the two-sided p-value of "either sign is as likely", of one value a user, [U]."""
    changed = differences[differences != 0]
    if not len(changed):
        return 1.0
    observed = abs(float(changed.sum()))
    if len(changed) > MOST_COUNTED:
        return math.erfc(observed / math.sqrt(2 * float((changed**2).sum())))
    sums = np.abs(np.array(list(product((-1, 1), repeat=len(changed)))) @ changed)
    equal = np.isclose(sums, observed)
    return float(((sums > observed) & ~equal).mean() + equal.mean() / 2)


def holm(p_values: Floats) -> Floats:
    """Adjust p-values so that the chance of any false claim is bounded (Holm, 1979), [T]."""
    order = np.argsort(p_values, kind="stable")
    steps = np.arange(len(p_values), 0, -1) * p_values[order]
    adjusted = np.empty_like(p_values)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1)
    return adjusted


def _paired_tests(
    values: Mapping[str, Mapping[str, Tensor]], baseline: str, candidate: str
) -> list[MetricComparison]:
    """Test one candidate on every metric; p-values are not adjusted."""
    metrics = list(values[baseline])
    theirs = as_table(values[baseline])  # [U, M]
    ours = as_table({metric: values[candidate][metric] for metric in metrics})
    differences = dict(zip(metrics, (ours - theirs).T, strict=True))
    tests = []
    for m, (metric, interval) in enumerate(mean_intervals(differences).items()):
        both = ~np.isnan(differences[metric])
        found = p_value(differences[metric][both])
        test = MetricComparison(
            metric=metric,
            baseline=baseline,
            candidate=candidate,
            num_users=interval.num_users,
            baseline_mean=float(theirs[both, m].mean()),
            candidate_mean=float(ours[both, m].mean()),
            difference=interval.mean,
            low=interval.low,
            high=interval.high,
            p_value=found,
            adjusted_p_value=found,
            significant=False,
        )
        tests.append(test)
    return tests
