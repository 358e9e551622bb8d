"""Read a backtest: its document where it is finished, what its steps say so far where it is not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pipelines.backtest.run import DOCUMENT, FOLDER
from pipelines.dashboard.context import Context
from pipelines.dashboard.replay.find import backtests_of
from pipelines.dashboard.replay.unfinished import measured_so_far
from pipelines.dashboard.runs.documents import (
    UnreadableError,
    changed_at,
    key_of,
    names_in,
    read_table,
)
from pipelines.dashboard.runs.find import is_workspace
from pipelines.pages.backtest.words import SERVED
from pipelines.pages.document import Origin
from recsys.replay.run import DESCRIPTION
from recsys.replay.steps import POLICIES

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
    path: Path
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


def backtests(context: Context) -> list[Found]:
    """List all backtests, the newest first."""
    found = [
        context.cache.get(
            ("backtest", str(path)),
            (path / DOCUMENT, path / DESCRIPTION, path / "steps"),
            partial(_found, path),
        )
        for path in backtests_of(context)
    ]
    return sorted(found, key=lambda one: (str(one.time), one.name), reverse=True)


def _found(path: Path) -> Found:
    whole = path.resolve()
    judged = None
    try:
        description = read_table(path / DESCRIPTION) or {}
        steps = [one for one in description["steps"] if one["number"] > 0]
        judged = (str(description["data_digest"]), steps[0]["begin"], steps[-1]["end"])
    except (UnreadableError, LookupError, TypeError):
        pass
    return Found(
        key=key_of(str(whole)),
        name=f"{whole.parent.name}/{whole.name}" if whole.name == FOLDER else whole.name,
        path=path,
        run=key_of(str(whole.parent)) if is_workspace(set(names_in(whole.parent))) else "",
        time=changed_at(path / DOCUMENT) or changed_at(path / "steps"),
        finished=(path / DOCUMENT).exists(),
        judged=judged,
    )


def read(context: Context, found: Found) -> Backtest:
    """Read the numbers of a backtest; of an unfinished one, measure the steps that there are.

    Nothing is raised: what is wrong is said in `Backtest.problem`.
    """
    path, name = found.path, found.name
    try:
        if found.finished:
            return context.cache.get(
                ("numbers of a backtest", str(path)),
                (path / DOCUMENT,),
                lambda: Backtest(found=found, document=_checked(read_table(path / DOCUMENT) or {})),
            )
        description = read_table(path / DESCRIPTION) or {}
        document = measured_so_far(context, path, description)
        return Backtest(found=found, document=document)
    except UnreadableError as error:
        return Backtest(found=found, problem=f"{name}: {error}")
    except (LookupError, TypeError, AttributeError, ValueError, OSError) as error:
        problem = (
            f"{name} cannot be read: it was written by another version of recsys, or by hand "
            f"({type(error).__name__}: {error}); recsys backtest writes its document anew"
        )
        return Backtest(found=found, problem=problem)


def _checked(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Check that a document has what pages read.

    Raises:
        KeyError: A part is missing.
    """
    for name in ("metric", "policies", "summary", "leads"):
        document[name]
    for names, parts in (
        (("number", "begin", "num_queries"), document["steps"]),
        (("policy", "row", "step"), document["rows"]),
        (("policy", "row", "step", "slice", "metrics"), document["slices"]),
    ):
        for part in parts:
            for name in names:
                part[name]
    for part in document["rows"]:
        if "error" not in part:
            part["metrics"], part["model_age_days"], part["fit_seconds"]
    return document
