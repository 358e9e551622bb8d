"""The numbers of a backtest: lists by policy and step, freshness, cost, leads over others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipelines.pages.charts import colors_of
from pipelines.pages.document import Origin
from pipelines.pages.wording import model_label
from recsys.evaluation.bootstrap import Interval, bootstrap_intervals
from recsys.evaluation.config import BootstrapConfig
from recsys.replay.folder import PEER, SERVED
from recsys.replay.steps import POLICIES

__all__ = ["PEER", "SERVED"]
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


@dataclass(frozen=True, kw_only=True)
class Backtest:
    """One backtest; its document is empty until it is read."""

    key: str = ""
    name: str
    path: Path | None = None
    """None for a document alone."""
    run: str = ""
    """Key of the run whose workspace it is in; "" for another place."""
    time: datetime | None = None
    """Time of the last change of its files."""
    finished: bool = True
    judged: tuple[str, int, int] | None = None
    """Digest of its data, begin of the first and end of the last judged step (Unix seconds); None
    if its description cannot be read."""
    document: Mapping[str, Any] = field(default_factory=dict)
    """``backtest.json``; of an unfinished one, of the steps that there are."""
    problem: str = ""
    """Reason why it cannot be shown; empty for none."""

    def is_comparable(self, other: Backtest) -> bool:
        """Return True if both judge the same time of the same data."""
        return self.judged is not None and self.judged == other.judged

    @property
    def has_numbers(self) -> bool:
        """True if any step was answered."""
        return not self.problem and bool(self.metrics)

    @property
    def origin(self) -> Origin:
        """The run whose workspace it is in."""
        return Origin(
            run=self.run,
            name=self.name,
            config_digest=self.document.get("config_digest"),
            data_digest=self.document.get("data_digest"),
        )

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

    @property
    def metrics(self) -> tuple[str, ...]:
        """Measured metrics."""
        measured = (one for one in self.document["rows"] if "error" not in one)
        return tuple(next((one["metrics"] for one in measured), ()))

    @property
    def slices(self) -> tuple[str, ...]:
        """Slices that have queries."""
        return tuple(dict.fromkeys(one["slice"] for one in self.document["slices"]))

    def num_queries(self, slice_: str) -> int:
        """Count the queries of a slice over all steps."""
        lines = (self.line(policy, SERVED, self.metrics[0], slice_) for policy in self.policies)
        return max((sum(at.num_queries for at in line) for line in lines), default=0)

    def line(self, policy: str, row: str, metric: str, slice_: str = ALL) -> list[At]:
        """List a list's quality by step; steps without it are left out."""
        steps = {one["number"]: one for one in self.document["steps"]}
        ages = self._by_list.get((policy, row, ALL), {})
        line = []
        for number, one in sorted(self._by_list.get((policy, row, slice_), {}).items()):
            step, value = steps.get(number), one["metrics"].get(metric)
            if step is None or value is None or not np.isfinite(value) or number not in ages:
                continue
            error = one.get("standard_errors", {}).get(metric)
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


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Backtests, metric, policy, list and slice that a page shows."""

    shown: tuple[Backtest, ...]
    """Comparable ones; the first decides what can be chosen."""
    left_out: tuple[Backtest, ...] = ()
    """Chosen ones that are of other data or another time, or cannot be read."""
    problems: tuple[str, ...] = ()
    """Reasons why some cannot be read."""
    metric: str
    policy: str
    row: str = SERVED
    slice: str = ALL

    @property
    def first(self) -> Backtest:
        return self.shown[0]

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of all that were chosen."""
        return (*(one.key for one in self.shown), *(one.key for one in self.left_out))

    @property
    def is_sliced(self) -> bool:
        return self.slice != ALL

    @property
    def list_name(self) -> str:
        """The list that is shown, with the slice."""
        name = "served list" if self.row == SERVED else model_label(self.row)
        return f"{name} ({self.slice})" if self.is_sliced else name

    def name(self, backtest: Backtest, part: str) -> str:
        """Label a line of a chart: by its part alone if there is one backtest."""
        return part if len(self.shown) == 1 else f"{backtest.name} \u00b7 {part}"

    def colors(self) -> dict[str, str]:
        """Assign a colour to every policy of every backtest, the same in all charts."""
        return colors_of([self.name(one, name) for one in self.shown for name in one.policies])

    def line(self, backtest: Backtest, policy: str) -> list[At]:
        """List the quality of the chosen list by step."""
        return backtest.line(policy, self.row, self.metric, self.slice)


def average(line: Sequence[At], *, by_queries: bool = False) -> float | None:
    """Average steps, each of the same weight, or by their queries as slices are; None of none."""
    if not line:
        return None
    weights = [float(at.num_queries) for at in line] if by_queries else None
    return float(np.average([at.value for at in line], weights=weights))


def fit_seconds(document: Mapping[str, Any], policy: str) -> float:
    """Add up the fit times of a policy's models after the first step, which all share."""
    return sum(
        float(row["fit_seconds"])
        for row in document["rows"]
        if row["policy"] == policy and "error" not in row and row["step"] > 1
    )


class Aged(NamedTuple):
    """Quality of models of an age on one step, relative to fresh ones."""

    step: int
    age: float
    """In days."""
    share: float
    error: float | None
    """Standard error of the share; both lists' errors count as independent, so that it is too
    large rather than too small."""
    num_queries: int


class Ageing(NamedTuple):
    """Quality by age of the models."""

    measured: tuple[Aged, ...]
    """By age; the first has the age 0 and all of the quality."""
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
        for place in range(1, len(self.measured)):
            before, after = self.fitted[place - 1], self.fitted[place]
            if 1 - after >= share:
                young, old = self.measured[place - 1].age, self.measured[place].age
                part = (before - (1 - share)) / (before - after) if before > after else 0.0
                return young + float(part) * (old - young)
        return None


def falling(values: Sequence[float], weights: Sequence[float]) -> NDArray[np.float64]:
    """Fit values that never rise, by least squares."""
    from scipy.optimize import isotonic_regression

    fit = isotonic_regression(values, weights=weights, increasing=False)
    return np.asarray(fit.x, np.float64)


def measure_ageing(
    backtest: Backtest, metric: str, row: str = SERVED, slice_: str = ALL
) -> Ageing | None:
    """Compare models that were never retrained with fresh ones; None if either is missing."""
    fresh = next((name for name in FRESH if name in backtest.policies), None)
    if fresh is None or STALE not in backtest.policies:
        return None
    other = {at.step: at for at in backtest.line(fresh, row, metric, slice_)}
    measured = []
    for at in backtest.line(STALE, row, metric, slice_):
        new = other.get(at.step)
        if new is None or new.value <= 0 or at.age <= 0:
            continue
        share, error = at.value / new.value, None
        if at.error is not None and new.error is not None:
            error = float(np.hypot(at.error, share * new.error) / new.value)
        measured.append(Aged(at.step, at.age, share, error, at.num_queries))
    if not measured:
        return None
    measured.sort(key=lambda one: one.age)
    # Models of no age are the fresh ones themselves.
    weights = [1e9, *(float(max(1, one.num_queries)) for one in measured)]
    fitted = falling([1.0, *(one.share for one in measured)], weights)
    return Ageing((Aged(1, 0.0, 1.0, 0.0, 0), *measured), fitted, fresh)


class Earned(NamedTuple):
    """Quality and training time of a policy."""

    name: str
    value: float
    low: float
    high: float
    relative: float | None
    """Share of the most expensive policy's quality."""
    seconds: float
    """Training time after the first step, which all policies share."""
    cost: float | None
    """Share of the most expensive policy's cost."""
    per_hour: float | None
    """Quality gained over models that are never retrained, by hour of training."""
    policy: str


def _over_steps(values: Mapping[str, Mapping[int, float]]) -> dict[str, Interval]:
    """Average values by step, with the intervals that other steps would give.

    Args:
        values: By name and step; a name may lack steps, but not all.
    """
    steps = sorted({step for line in values.values() for step in line})
    table = {
        name: np.array([line.get(step, np.nan) for step in steps]) for name, line in values.items()
    }
    return bootstrap_intervals(table, BootstrapConfig(num_resamples=NUM_RESAMPLES))


def _values(line: Sequence[At]) -> dict[int, float]:
    return {at.step: at.value for at in line}


def earned(choice: Choice) -> list[Earned]:
    """List the policies of every backtest by their cost."""
    found = []
    for backtest in choice.shown:
        lines = {policy: choice.line(backtest, policy) for policy in backtest.policies}
        lines = {policy: line for policy, line in lines.items() if line}
        if not lines:
            continue
        means = {
            name: average(line, by_queries=choice.is_sliced) or 0.0 for name, line in lines.items()
        }
        seconds = {policy: fit_seconds(backtest.document, policy) for policy in lines}
        spreads = _over_steps({name: _values(line) for name, line in lines.items()})
        most = max(seconds, key=lambda policy: seconds[policy])
        for policy, value in means.items():
            spread, hours = spreads[policy], seconds[policy] / HOUR
            gains = STALE in means and policy != STALE and hours
            found.append(
                Earned(
                    name=choice.name(backtest, policy),
                    policy=policy,
                    value=value,
                    low=value + spread.low - spread.mean,
                    high=value + spread.high - spread.mean,
                    seconds=seconds[policy],
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


def peer_gaps(choice: Choice) -> list[PeerGap]:
    """Compare the served list of the chosen policy with peers on the same queries, best first."""
    first, metric, slice_ = choice.first, choice.metric, choice.slice
    served = _values(first.line(choice.policy, SERVED, metric, slice_))
    lines = {peer: _values(first.line(PEER, peer, metric, slice_)) for peer in first.rows(PEER)}
    gaps = {
        peer: {step: served[step] - value for step, value in line.items() if step in served}
        for peer, line in lines.items()
    }
    gaps = {peer: line for peer, line in gaps.items() if line}
    found = [
        PeerGap(
            peer,
            float(np.mean([lines[peer][step] for step in gaps[peer]])),
            *(gap.mean, gap.low, gap.high),
            num_steps=len(gaps[peer]),
        )
        for peer, gap in (_over_steps(gaps) if gaps else {}).items()
    ]
    return sorted(found, key=lambda one: -one.value)


def failures(backtest: Backtest) -> list[str]:
    """Describe why peers have no lists, by the last line of the reason."""
    steps: dict[tuple[str, str], list[int]] = defaultdict(list)
    for one in backtest.document["rows"]:
        if "error" in one:
            lines = str(one["error"]).strip().splitlines() or [""]
            steps[str(one["row"]), lines[-1][:200]].append(int(one["step"]))
    return [
        f"{row} failed on step {', '.join(map(str, numbers))}: {text}"
        for (row, text), numbers in steps.items()
    ]
