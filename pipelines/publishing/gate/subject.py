"""Subject of the checks, and constructors of verdicts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from pipelines.config.release import GateConfig
from recsys.evaluation.paired import Paired
from serving.bundle.load import Bundle
from serving.bundle.manifest import Verdict


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A challenger that is written and loaded, and what it is held against."""

    challenger: Bundle
    champion: Bundle | None = None
    config: GateConfig = field(default_factory=GateConfig)
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    metric: str = "ndcg@10"
    paired: Paired | None = None
    """Difference on the same queries, if both answered enough of them."""
    answered: pl.DataFrame | None = None
    report: dict[str, Any] = field(default_factory=dict)
    workspace: Path | None = None
    now: float = 0.0
    seed: int = 0


Check = Callable[[Subject], Iterator[Verdict]]


def at_least(name: str, value: float, bound: float, reason: str) -> Verdict:
    """Pass if the value reaches the bound; a value that is not a number never does."""
    return _verdict(name, value, bound, value >= bound, reason)


def at_most(name: str, value: float, bound: float, reason: str) -> Verdict:
    """Pass if the value does not exceed the bound; one that is not a number always does."""
    return _verdict(name, value, bound, value <= bound, reason)


def _verdict(name: str, value: float, bound: float, holds: bool, reason: str) -> Verdict:
    finite = math.isfinite(value)
    return Verdict(
        name=name,
        value=float(value) if finite else None,
        bound=float(bound),
        passed=bool(finite and holds),
        reason=reason if finite else f"{reason}; the value is {value}",
    )
