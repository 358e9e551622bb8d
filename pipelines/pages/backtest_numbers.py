"""The numbers of a backtest: lists by policy and step, freshness, cost, leads over peers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from recsys.evaluation.bootstrap import Interval, bootstrap_intervals
from recsys.evaluation.config import BootstrapConfig
from recsys.replay.folder import PEER, SERVED
from recsys.replay.steps import POLICIES

POLICY_NAMES = {
    "full": "retrained before every step",
    "incremental": "updated before every step",
    "never": "never retrained",
}
ALL = ""
"""The slice of all queries."""
STALE = "never"
FRESH = ("full", "incremental")
"""Policies that keep models fresh, the better first."""
SPANS = {1.0: "a day", 7.0: "a week", 30.0: "a month", 91.0: "a quarter", 365.0: "a year"}
"""Names of ages in days."""
NUM_RESAMPLES = 1_000
HOUR = 3_600.0


class At(NamedTuple):
    """A list's quality on one step."""

    step: int
    begin: str
    """Such as 2026-11-22 21:42 (UTC)."""
    value: float
    error: float | None
    """Standard error over queries; None if it is not known, as of slices."""
    age: float
    """Age of the models in days."""
    num_queries: int


@dataclass(frozen=True)
class ReplayResults:
    """The parts of ``backtest.json`` by policy, list and step."""

    document: Mapping[str, Any]

    @property
    def metric(self) -> str:
        """Metric that the page leads with."""
        return str(self.document["metric"])

    @cached_property
    def _by_list(self) -> Mapping[tuple[str, str, str], Mapping[int, Mapping[str, Any]]]:
        """Rows of the document by policy, list and slice, then by step."""
        found: dict[tuple[str, str, str], dict[int, Mapping[str, Any]]] = defaultdict(dict)
        for one in (*self.document["rows"], *self.document["slices"]):
            if "error" not in one:
                found[one["policy"], one["row"], one.get("slice", ALL)][one["step"]] = one
        return found

    @property
    def policies(self) -> tuple[str, ...]:
        """Replayed policies, in the order of their cost."""
        return tuple(name for name in POLICIES if name in self.document["policies"])

    def rows(self, policy: str) -> tuple[str, ...]:
        """List the lists of a policy (or of peers), the served one first."""
        rows = (one["row"] for one in self.document["rows"] if one["policy"] == policy)
        return tuple(sorted(dict.fromkeys(rows), key=lambda row: row != SERVED))

    def line(self, policy: str, row: str = SERVED, slice_: str = ALL) -> list[At]:
        """List a list's quality by step; steps without it are left out."""
        steps = {one["number"]: one for one in self.document["steps"]}
        ages = self._by_list.get((policy, row, ALL), {})
        line = []
        for number, one in sorted(self._by_list.get((policy, row, slice_), {}).items()):
            step, value = steps.get(number), one["metrics"].get(self.metric)
            if step is None or value is None or not np.isfinite(value) or number not in ages:
                continue
            error = one.get("standard_errors", {}).get(self.metric)
            line.append(
                At(
                    step=number,
                    begin=step["begin"],
                    value=float(value),
                    error=error if error is not None and np.isfinite(error) else None,
                    age=float(ages[number]["model_age_days"]),
                    num_queries=int(one.get("num_queries", step["num_queries"])),
                )
            )
        return line


def weighted_mean(line: Sequence[At]) -> float | None:
    """Average steps by their queries; None of none."""
    weights = [float(at.num_queries) for at in line]
    return float(np.average([at.value for at in line], weights=weights)) if line else None


def fit_seconds(document: Mapping[str, Any], policy: str) -> float:
    """Add up the fit times of a policy's models after the first step, which all share."""
    return sum(
        float(row["fit_seconds"])
        for row in document["rows"]
        if row["policy"] == policy and "error" not in row and row["step"] > 1
    )


class Ageing(NamedTuple):
    """Quality by age of the models."""

    measured: tuple[At, ...]
    """Share of the fresh models' quality, by age; the first has the age 0 and all of it."""
    fitted: NDArray[np.float64]
    """The shares that never rise with age and are nearest to those measured, by measured age."""
    fresh: str
    """Policy of the fresh models."""

    @property
    def oldest(self) -> float:
        return self.measured[-1].age

    def kept(self, days: float) -> float:
        """Share that models of an age keep, interpolated between measured ages."""
        return float(np.interp(days, [one.age for one in self.measured], self.fitted))

    def losses(self) -> list[tuple[str, float, float]]:
        """List the name of a span, its days, and the share of quality lost after it."""
        return [
            (name, days, 1 - self.kept(days)) for days, name in SPANS.items() if days <= self.oldest
        ]

    def days_to_lose(self, share: float) -> float | None:
        """Age at which a share is lost; None if it is not within the measured ages."""
        points = list(zip(self.measured, self.fitted.tolist(), strict=True))
        for (young, before), (old, after) in pairwise(points):
            if 1 - after >= share:
                part = (before - (1 - share)) / (before - after) if before > after else 0.0
                return young.age + part * (old.age - young.age)
        return None


def falling(values: Sequence[float], weights: Sequence[float]) -> NDArray[np.float64]:
    """Fit values that never rise, by least squares."""
    from scipy.optimize import isotonic_regression

    fit = isotonic_regression(values, weights=weights, increasing=False)
    return np.asarray(fit.x, np.float64)


def measure_ageing(results: ReplayResults) -> Ageing | None:
    """Compare models that were never retrained with fresh ones; None if either is missing."""
    fresh = next((name for name in FRESH if name in results.policies), None)
    if fresh is None or STALE not in results.policies:
        return None
    other = {at.step: at for at in results.line(fresh)}
    measured = []
    for at in results.line(STALE):
        new = other.get(at.step)
        if new is None or new.value <= 0 or at.age <= 0:
            continue
        share, error = at.value / new.value, None
        if at.error is not None and new.error is not None:
            # As if both lists' errors were independent: too large rather than too small.
            error = float(np.hypot(at.error, share * new.error) / new.value)
        measured.append(at._replace(value=share, error=error))
    if not measured:
        return None
    measured.sort(key=lambda one: one.age)
    # Models of no age are the fresh ones themselves.
    weights = [1e9, *(float(max(1, one.num_queries)) for one in measured)]
    fitted = falling([1.0, *(one.value for one in measured)], weights)
    return Ageing((At(1, "", 1.0, 0.0, 0.0, 0), *measured), fitted, fresh)


class Earned(NamedTuple):
    """Quality and training time of a policy."""

    policy: str
    models: str
    """How the policy keeps its models."""
    seconds: float
    """Training time after the first step, which all policies share."""
    value: float
    low: float
    high: float
    relative: float | None
    """Share of the most expensive policy's quality."""
    cost: float | None
    """Share of the most expensive policy's cost."""
    per_hour: float | None
    """Quality gained over models that are never retrained, by hour of training."""


def _over_steps(lines: Mapping[str, Sequence[At]]) -> dict[str, Interval]:
    """Average lines, with the intervals that other steps would give; no line is empty."""
    steps = sorted({at.step for line in lines.values() for at in line})
    table = {name: np.full(len(steps), np.nan) for name in lines}
    for name, line in lines.items():
        table[name][np.searchsorted(steps, [at.step for at in line])] = [at.value for at in line]
    config = BootstrapConfig(num_resamples=NUM_RESAMPLES)
    return bootstrap_intervals(table, config) if table else {}


def earned(results: ReplayResults) -> list[Earned]:
    """List the policies by their cost."""
    lines = {policy: line for policy in results.policies if (line := results.line(policy))}
    means = {name: float(np.mean([at.value for at in line])) for name, line in lines.items()}
    seconds = {policy: fit_seconds(results.document, policy) for policy in lines}
    most = max(lines, key=lambda policy: seconds[policy], default="")
    found = []
    for policy, spread in _over_steps(lines).items():
        value, hours = means[policy], seconds[policy] / HOUR
        gains = STALE in means and policy != STALE and hours
        found.append(
            Earned(
                policy=policy,
                models=POLICY_NAMES[policy],
                seconds=seconds[policy],
                value=value,
                low=value + spread.low - spread.mean,
                high=value + spread.high - spread.mean,
                relative=value / means[most] if means[most] else None,
                cost=seconds[policy] / seconds[most] if seconds[most] else None,
                per_hour=(value - means[STALE]) / hours if gains else None,
            )
        )
    return sorted(found, key=lambda one: -one.seconds)


class PeerGap(NamedTuple):
    """Lead of the served list over a peer."""

    peer: str
    value: float
    difference: float
    low: float
    high: float
    num_steps: int


def peer_gaps(results: ReplayResults, policy: str) -> list[PeerGap]:
    """Compare the served list of a policy with peers on the same queries, best first."""
    served = {at.step: at.value for at in results.line(policy)}
    lines = {
        peer: line
        for peer in results.rows(PEER)
        if (line := [at for at in results.line(PEER, peer) if at.step in served])
    }
    gaps = {
        peer: [at._replace(value=served[at.step] - at.value) for at in line]
        for peer, line in lines.items()
    }
    found = []
    for peer, gap in _over_steps(gaps).items():
        value = float(np.mean([at.value for at in lines[peer]]))
        found.append(PeerGap(peer, value, gap.mean, gap.low, gap.high, len(gaps[peer])))
    return sorted(found, key=lambda one: -one.value)


def failures(results: ReplayResults) -> list[str]:
    """Describe why peers have no lists, by the last line of the reason."""
    steps: dict[tuple[str, str], list[int]] = defaultdict(list)
    for one in results.document["rows"]:
        if "error" in one:
            lines = str(one["error"]).strip().splitlines() or [""]
            steps[str(one["row"]), lines[-1][:200]].append(int(one["step"]))
    return [
        f"{row} failed on step {', '.join(map(str, numbers))}: {text}"
        for (row, text), numbers in steps.items()
    ]
