"""What a report says of the ranker: whether it is served, its probabilities, trunks, experts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE, TRUNKS = "ranker.json", "trunks.json"
TRUNK_NAMES: Mapping[str, str] = {
    "sparse": "sparse mixture of experts",
    "dense": "dense",
    "shared_bottom": "shared bottom",
}


@dataclass(frozen=True, kw_only=True)
class ToldTask:
    """One task's probabilities over the candidates of validation users."""

    name: str
    auc: float | None
    """None where there is one class only."""
    predicted: float
    observed: float
    calibration_error: float


@dataclass(frozen=True, kw_only=True)
class Routing:
    """Which experts candidates go to."""

    trunk: str
    num_experts: int
    top_k: int
    num_candidates: int
    load: list[float]
    entropy: float
    max_violation: float
    dead_experts: int
    by: list[Mapping[str, Any]]
    """Load of each expert by group, of each way to group candidates."""


@dataclass(frozen=True, kw_only=True)
class ToldTrunk:
    """One trunk, trained and measured on validation."""

    trunk: str
    flops: int
    """Of a candidate."""
    validation: float
    ahead: float
    """Of the ranker."""
    standard_error: float
    tasks: list[ToldTask]
    routing: Routing | None
    examined: list[float]
    """How often each place of a shown list is looked at, the first one's 1; none without lists."""


@dataclass(frozen=True, kw_only=True)
class ToldRanker:
    """The ranker of the released order."""

    num_candidates: int
    served: bool
    reason: str
    metric: str
    tasks: list[str]
    tasks_because: str
    trunks: list[ToldTrunk]
    """The ranker's first; none where there was too little to learn from."""

    @property
    def served_tasks(self) -> list[ToldTask]:
        """Tasks of the ranker."""
        return self.trunks[0].tasks

    @property
    def examined(self) -> list[float]:
        """How often each place of a shown list is looked at."""
        return self.trunks[0].examined if self.trunks else []

    @property
    def routings(self) -> list[Routing]:
        """Routing of each trunk that has a router."""
        return [trunk.routing for trunk in self.trunks if trunk.routing is not None]


def read_ranker(artefact: Path, tie_order: str) -> ToldRanker | None:
    """Read what train_ranker says; None where it is off."""
    path = artefact / tie_order / FILE
    if not path.exists():
        return None
    told: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    trunks = path.parent / TRUNKS
    rows: list[dict[str, Any]] = []
    if trunks.exists():
        rows = json.loads(trunks.read_text(encoding="utf-8"))["trunks"]
    return ToldRanker(
        num_candidates=told["num_candidates"],
        served=told["served"],
        reason=told["reason"],
        metric=told.get("metric", ""),
        tasks=told.get("tasks", []),
        tasks_because=told.get("tasks_because", ""),
        trunks=[_trunk(row) for row in rows],
    )


def _trunk(row: Mapping[str, Any]) -> ToldTrunk:
    task_keys = [name for name in ToldTask.__dataclass_fields__ if name != "name"]
    routing = row["routing"]
    return ToldTrunk(
        trunk=row["trunk"],
        flops=row["flops"],
        validation=row["validation"],
        ahead=row["ahead"],
        standard_error=row["standard_error"],
        tasks=[
            ToldTask(name=name, **{key: told[key] for key in task_keys})
            for name, told in row["tasks"].items()
        ],
        routing=None if routing is None else Routing(trunk=row["trunk"], **routing),
        examined=row.get("examined", []),
    )
