"""A backtest as its page reads it: lists by policy, source and step, and what of them is shown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pipelines.pages.charts.style import color_of
from pipelines.pages.document import Origin
from pipelines.pages.wording import model_label
from recsys.replay.folder import PEER, SERVED
from recsys.replay.steps import POLICIES

__all__ = ["PEER", "SERVED"]
TWO_SIDED = 1.96
POLICY_NAMES = {
    "full": "retrained before every step",
    "incremental": "updated before every step",
    "never": "never retrained",
}
ALL = ""
"""The slice of all queries."""


class At(NamedTuple):
    """A list's quality on one step."""

    step: int
    begin: str
    """Such as 2026-11-22 21:42 (UTC)."""
    value: float
    error: float | None
    """Standard error over queries; None where it is not known, as of slices."""
    age: float
    """Of the models, in days."""
    num_queries: int


@dataclass(frozen=True, kw_only=True)
class Found:
    """A backtest as its folder says, its numbers not read yet."""

    key: str
    name: str
    path: Path | None
    """None for a document alone."""
    run: str
    """Key of the run whose workspace it lies in; "" of one that lies elsewhere."""
    time: datetime | None
    """When it last got on."""
    finished: bool
    judged: tuple[str, int, int] | None
    """Digest of its data, begin of the first and end of the last judged step (Unix seconds); None
    where its description cannot be read."""

    def is_comparable(self, other: Found) -> bool:
        """Whether both judge the same time of the same data."""
        return self.judged is not None and self.judged == other.judged


@dataclass(frozen=True, kw_only=True)
class Backtest:
    """One backtest with its numbers."""

    found: Found
    document: Mapping[str, Any] = field(default_factory=dict)
    """As ``backtest.json``; of an unfinished one, of the steps that there are."""
    problem: str = ""
    """Why it cannot be shown, in words."""

    @property
    def key(self) -> str:
        return self.found.key

    @property
    def name(self) -> str:
        return self.found.name

    @property
    def finished(self) -> bool:
        return self.found.finished

    @property
    def has_numbers(self) -> bool:
        """Whether any step was answered."""
        return not self.problem and bool(self.metrics)

    @property
    def origin(self) -> Origin:
        """What its numbers are of: the run whose workspace it lies in."""
        return Origin(
            run=self.found.run,
            name=self.name,
            config_digest=self.document.get("config_digest"),
            data_digest=self.document.get("data_digest"),
        )

    @cached_property
    def _by_list(self) -> Mapping[tuple[str, str, str], Mapping[int, Mapping[str, Any]]]:
        """Lines of the document by policy, row and slice, then by step."""
        found: dict[tuple[str, str, str], dict[int, Mapping[str, Any]]] = defaultdict(dict)
        for one in (*self.document["rows"], *self.document["slices"]):
            if "error" not in one:
                found[one["policy"], one["row"], one.get("slice", ALL)][one["step"]] = one
        return found

    @property
    def policies(self) -> tuple[str, ...]:
        """Those that were replayed, in the order of their cost."""
        return tuple(name for name in POLICIES if name in self.document["policies"])

    def rows(self, policy: str) -> tuple[str, ...]:
        """Name the lists of a policy (or of peers), the served one first."""
        rows = (one["row"] for one in self.document["rows"] if one["policy"] == policy)
        return tuple(sorted(dict.fromkeys(rows), key=lambda row: row != SERVED))

    @property
    def metrics(self) -> tuple[str, ...]:
        """Those that were measured."""
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
        found = self._by_list.get((policy, row, slice_), {})
        line = []
        for number, one in sorted(found.items()):
            step, value = steps.get(number), one["metrics"].get(metric)
            if step is None or value is None or not np.isfinite(value) or number not in ages:
                continue
            line.append(
                At(
                    step=number,
                    begin=step["begin"],
                    value=float(value),
                    error=_finite(one.get("standard_errors", {}).get(metric)),
                    age=float(ages[number]["model_age_days"]),
                    num_queries=int(one.get("num_queries", step["num_queries"])),
                )
            )
        return line


def _finite(value: float | None) -> float | None:
    return value if value is not None and np.isfinite(value) else None


def mean_of(line: Sequence[At], *, by_queries: bool = False) -> float | None:
    """Average steps, each of the same weight, or by their queries as slices are; None of none."""
    if not line:
        return None
    weights = [float(at.num_queries) for at in line] if by_queries else None
    return float(np.average([at.value for at in line], weights=weights))


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What is shown."""

    shown: tuple[Backtest, ...]
    """Comparable ones; the first decides what can be chosen."""
    left_out: tuple[Found, ...]
    """Chosen ones that are of other data or another time, or cannot be read."""
    problems: tuple[str, ...]
    """Why some cannot be read."""
    metric: str
    policy: str
    row: str
    slice: str

    @property
    def is_empty(self) -> bool:
        """Whether nothing can be shown yet."""
        return not self.first.has_numbers

    @property
    def first(self) -> Backtest:
        return self.shown[0]

    @property
    def keys(self) -> tuple[str, ...]:
        """Of all that were chosen."""
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
        """Name a line of a chart: by its part alone where there is one backtest."""
        return part if len(self.shown) == 1 else f"{backtest.name} \u00b7 {part}"

    def colors(self) -> dict[str, str]:
        """Colour every policy of every backtest, the same in all charts."""
        names = [self.name(one, policy) for one in self.shown for policy in one.policies]
        return {name: color_of(place) for place, name in enumerate(names)}


def fit_seconds(document: Mapping[str, Any], policy: str) -> float:
    """Add up what the models of a policy took to fit after the first step, which all share."""
    return sum(
        float(row["fit_seconds"])
        for row in document["rows"]
        if row["policy"] == policy and "error" not in row and row["step"] > 1
    )
