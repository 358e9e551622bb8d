"""The ranker in a report: decision, calibration, trunks, expert routing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipelines.engine.artifacts import read_json

FILE, TRUNKS = "ranker.json", "trunks.json"
TRUNK_NAMES: Mapping[str, str] = {
    "sparse": "sparse mixture of experts",
    "dense": "dense",
    "shared_bottom": "shared bottom",
}


@dataclass(frozen=True, kw_only=True)
class TaskMetrics:
    """AUC and calibration of a task over validation candidates."""

    name: str
    auc: float | None
    """None with one class only."""
    predicted: float
    observed: float
    calibration_error: float


@dataclass(frozen=True, kw_only=True)
class Routing:
    """Load of a trunk's experts."""

    trunk: str
    num_experts: int
    top_k: int
    num_candidates: int
    load: list[float]
    entropy: float
    max_violation: float
    dead_experts: int
    by: list[Mapping[str, Any]]
    """Load of each expert by group of candidates, for each grouping."""
    items: list[list[Mapping[str, Any]]] = field(default_factory=list)
    """Of each expert, the items that go most to it."""


@dataclass(frozen=True, kw_only=True)
class TrunkMetrics:
    """A trunk on validation."""

    trunk: str
    flops: int
    """Per candidate."""
    validation: float
    ahead: float
    """Paired difference to the ranker."""
    standard_error: float
    tasks: list[TaskMetrics]
    routing: Routing | None
    examined: list[float]
    """Examination probability of each slot relative to the first; empty without impressions."""


@dataclass(frozen=True, kw_only=True)
class RankerReport:
    """The ranker of the released tie order."""

    num_candidates: int
    served: bool
    reason: str
    metric: str
    tasks: list[str]
    tasks_reason: str
    trunks: list[TrunkMetrics]
    """The ranker's first; empty if none was trained."""

    @property
    def served_tasks(self) -> list[TaskMetrics]:
        """Tasks of the ranker's own trunk."""
        return self.trunks[0].tasks

    @property
    def examined(self) -> list[float]:
        """Examination probability of each slot relative to the first."""
        return self.trunks[0].examined if self.trunks else []

    @property
    def routings(self) -> list[Routing]:
        """Routing of each trunk that has a router."""
        return [trunk.routing for trunk in self.trunks if trunk.routing is not None]


def read_ranker(artefact: Path, tie_order: str) -> RankerReport | None:
    """Read the artefact of train_ranker; None where it is off."""
    folder = artefact / tie_order
    if not (folder / FILE).exists():
        return None
    rows = read_json(folder / TRUNKS)["trunks"] if (folder / TRUNKS).exists() else []
    document = {"metric": "", "tasks": [], "tasks_reason": "", **read_json(folder / FILE)}
    names = ("num_candidates", "served", "reason", "metric", "tasks", "tasks_reason")
    return RankerReport(
        **{name: document[name] for name in names}, trunks=[_trunk(row) for row in rows]
    )


def _trunk(row: Mapping[str, Any]) -> TrunkMetrics:
    task_keys = [name for name in TaskMetrics.__dataclass_fields__ if name != "name"]
    tasks = [
        TaskMetrics(name=name, **{key: values[key] for key in task_keys})
        for name, values in row["tasks"].items()
    ]
    routing = None if row["routing"] is None else Routing(trunk=row["trunk"], **row["routing"])
    names = ("trunk", "flops", "validation", "ahead", "standard_error")
    return TrunkMetrics(
        **{name: row[name] for name in names},
        tasks=tasks,
        routing=routing,
        examined=row.get("examined", []),
    )
