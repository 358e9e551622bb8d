"""Decide whether one run beats another for the same users: paired tests, many at a time.

The test is the paired sign-flip (permutation) test: if two runs are equally good, each user's
difference is as likely to have either sign (Fisher, 1935; for retrieval: Smucker, Allan and
Carterette, CIKM 2007). Equal outcomes count half (the mid-p value, Lancaster, 1961): few users
tell two rankings apart, hit rates take few values, and without it the test rejects 2-3% of equal
runs where it should reject 5%.

Many tests at once find differences by luck, so p-values are adjusted: Holm (1979) bounds the
chance of a single false claim.

Runs are comparable only on the same data, users and targets; anything else is refused.

Axes: U users, M metrics, M' targets in all, R resamples.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from recsys.data.batch import Jagged
from recsys.data.bounds import check_bounds
from recsys.evaluation.bootstrap import Floats, as_table, bootstrap_intervals
from recsys.evaluation.config import BootstrapConfig
from recsys.evaluation.ranking import per_user_metric

_MAX_CELLS = 1 << 22
"""Signs held at once (32 MiB as float64), which bounds memory for any U and R."""


@dataclass(frozen=True, kw_only=True)
class ComparisonConfig:
    """How runs are compared; equal configs and runs give equal p-values."""

    significance_level: float = 0.05
    """Greatest adjusted p-value that is called a difference."""
    num_flips: int = 10_000
    """Sign flips of the test; the smallest p-value it can give is half of one part in these."""
    intervals: BootstrapConfig = field(default_factory=BootstrapConfig)
    """How the interval of each mean difference is drawn; its confidence is not adjusted."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_bounds(self, significance_level="(0, 1)")
        if self.num_flips < 1 / self.significance_level:
            raise ValueError(
                f"num_flips={self.num_flips} cannot give a p-value below "
                f"{self.significance_level}; use at least {int(20 / self.significance_level)}"
            )


@dataclass(frozen=True, kw_only=True, eq=False)
class EvaluatedRun:
    """Per-user metrics of one run and the digests of what it was measured on."""

    name: str
    data_digest: str
    """Digest of the prepared data, as its manifest states it."""
    users_digest: str
    targets_digest: str
    metrics: Mapping[str, Tensor]
    """Metric name to [U] float64, users by user_row; NaN where a user has no value."""

    @classmethod
    def from_ranks(
        cls,
        user_rows: Tensor,
        targets: Jagged,
        ranks: Jagged,
        metrics: Sequence[str],
        *,
        name: str,
        data_digest: str,
    ) -> EvaluatedRun:
        """Take the named metrics of a `RankingResult`, with users in the order of their rows.

        The order in which users were evaluated and a user's targets were listed does not matter.

        Args:
            user_rows: User of each query, [U].
            targets: Held-out item rows of each query.
        """
        order = user_rows.argsort(stable=True)
        return cls(
            name=name,
            data_digest=data_digest,
            users_digest=_digest(user_rows[order]),
            targets_digest=_digest(*_sorted_targets(targets, order)),
            metrics={metric: per_user_metric(ranks, metric)[order] for metric in metrics},
        )


class MetricComparison(NamedTuple):
    """One metric of a candidate against the baseline, over the users that both have it for."""

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


def compare_runs(
    baseline: EvaluatedRun,
    candidates: Sequence[EvaluatedRun],
    config: ComparisonConfig | None = None,
) -> list[MetricComparison]:
    """Compare every candidate with the baseline on every metric of the baseline.

    P-values are adjusted over all of these tests together, so compare all candidates in one call.
    """
    config = config or ComparisonConfig()
    for candidate in candidates:
        _check_comparable(baseline, candidate)

    found = [test for run in candidates for test in _paired_tests(baseline, run, config)]
    adjusted = holm(np.array([test.p_value for test in found]))
    return [
        test._replace(
            adjusted_p_value=float(p_value),
            significant=bool(p_value <= config.significance_level),
        )
        for test, p_value in zip(found, adjusted, strict=True)
    ]


def sign_flip_p_values(differences: Floats, *, num_flips: int = 10_000, seed: int = 0) -> Floats:
    """Two-sided mid-p value of "the mean difference is 0" for each column, [M].

    All columns share the flips. Users whose difference is 0 or NaN in every column cannot change
    the outcome and are left out; with none left, every p-value is 1.

    Args:
        differences: One run minus the other for each user, [U, M].
    """
    known = np.nan_to_num(differences, nan=0.0)
    known = known[(known != 0).any(axis=1)]
    observed = np.abs(known.sum(axis=0))  # [M]
    # Sums of the same numbers in another order differ by rounding; they are still equal outcomes.
    slack = 1e-9 * np.abs(known).sum(axis=0)
    draw = np.random.default_rng(seed)
    beyond = np.full(differences.shape[1], 0.5)
    step = max(1, _MAX_CELLS // max(1, len(known)))
    for begin in range(0, num_flips, step):
        shape = (min(step, num_flips - begin), len(known))
        flips = _random_bits(draw, shape)
        sums = np.abs(known.sum(axis=0) - 2 * (flips @ known))  # [r, M]
        beyond += (sums > observed + slack).sum(axis=0)
        beyond += (np.abs(sums - observed) <= slack).sum(axis=0) / 2
    if len(known) == 0:
        return np.ones(differences.shape[1])
    # A column without any difference has only equal outcomes, and tells nothing.
    return np.where(slack > 0, beyond / (num_flips + 1), 1.0)


def holm(p_values: Floats) -> Floats:
    """Adjust p-values so that the chance of any false claim is bounded (Holm, 1979), [T]."""
    order = np.argsort(p_values, kind="stable")
    steps = np.arange(len(p_values), 0, -1) * p_values[order]
    adjusted = np.empty_like(p_values)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1)
    return adjusted


def _paired_tests(
    baseline: EvaluatedRun, candidate: EvaluatedRun, config: ComparisonConfig
) -> list[MetricComparison]:
    """Test one candidate on every metric; p-values are not adjusted."""
    theirs = as_table(baseline.metrics)  # [U, M]
    ours = as_table({metric: candidate.metrics[metric] for metric in baseline.metrics})
    differences = ours - theirs
    intervals = bootstrap_intervals(
        {metric: differences[:, m] for m, metric in enumerate(baseline.metrics)},
        config.intervals,
    )
    p_values = sign_flip_p_values(differences, num_flips=config.num_flips, seed=config.seed)
    tests = []
    for m, (metric, interval) in enumerate(intervals.items()):
        both = ~np.isnan(differences[:, m])
        test = MetricComparison(
            metric=metric,
            baseline=baseline.name,
            candidate=candidate.name,
            num_users=interval.num_users,
            baseline_mean=float(theirs[both, m].mean()),
            candidate_mean=float(ours[both, m].mean()),
            difference=interval.mean,
            low=interval.low,
            high=interval.high,
            p_value=float(p_values[m]),
            adjusted_p_value=float(p_values[m]),
            significant=False,
        )
        tests.append(test)
    return tests


def _random_bits(draw: np.random.Generator, shape: tuple[int, int]) -> Floats:
    num_bits = shape[0] * shape[1]
    packed = np.frombuffer(draw.bytes(-(-num_bits // 8)), dtype=np.uint8)
    return np.unpackbits(packed, count=num_bits).reshape(shape).astype(np.float64)


def _sorted_targets(targets: Jagged, order: Tensor) -> tuple[Tensor, Tensor]:
    """Targets by user in the given order, by row within a user, and how many each has."""
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    by_row = targets.values.argsort(stable=True)
    by_user = place[targets.segments()[by_row]].argsort(stable=True)
    return targets.values[by_row[by_user]], targets.lengths()[order]


def _digest(*arrays: Tensor) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(len(array).to_bytes(8, "little"))
        digest.update(array.to(torch.int64).numpy().astype("<i8").tobytes())
    return digest.hexdigest()


def _check_comparable(baseline: EvaluatedRun, candidate: EvaluatedRun) -> None:
    for what in ("data", "users", "targets"):
        theirs, ours = (getattr(run, f"{what}_digest") for run in (baseline, candidate))
        if theirs != ours:
            raise ValueError(
                f"runs {baseline.name!r} and {candidate.name!r} were measured on different {what}: "
                f"digest {theirs} against {ours}; evaluate both on the same {what} before "
                "comparing them"
            )
    missing = [metric for metric in baseline.metrics if metric not in candidate.metrics]
    if missing:
        raise ValueError(
            f"run {candidate.name!r} lacks {missing}, which {baseline.name!r} has; it has "
            f"{sorted(candidate.metrics)}. Evaluate both with the same metrics"
        )
