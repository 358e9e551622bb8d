"""Training curves: how loss and validation went, thinned to what a chart can show."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.engine.artifacts import read_json

MAX_POINTS = 200


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One training of one model."""

    model: str
    tie_order: str
    num_steps: int
    best_step: int | None
    """None where no validation chose a step."""
    stopped_early: bool
    stopped_by_time: bool
    loss: list[tuple[int, float]]
    """Step and training loss."""
    validation: list[tuple[int, float]]
    """Step and ``metric`` on the validation split."""
    metric: str


def thinned(points: list[tuple[int, float]], most: int = MAX_POINTS) -> list[tuple[int, float]]:
    """Keep at most so many points, evenly spread, the first and the last among them."""
    if len(points) <= most:
        return points
    step = (len(points) - 1) / (most - 1)
    return [points[round(place * step)] for place in range(most)]


def series(rows: list[dict[str, Any]], name: str) -> list[tuple[int, float]]:
    """Collect a number by step, where it was recorded and finite."""
    points = [(int(row["step"]), float(row[name])) for row in rows if row.get(name) is not None]
    return thinned([(step, value) for step, value in points if abs(value) < float("inf")])


def read_curves(artefact: Path, model: str, metric: str) -> list[Curve]:
    """Read the curve of each tie order from a training stage's artefact.

    Args:
        metric: Which validation metric to show; where it was not measured, the first that was.
    """
    found = []
    for path in sorted(artefact.glob("*/curve.jsonl")):
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        ending = read_json(path.parent / "training.json")
        measured = sorted({name for row in rows for name in row if "@" in name})
        shown = metric if metric in measured or not measured else measured[0]
        found.append(
            Curve(
                model=model,
                tie_order=path.parent.name,
                num_steps=int(ending["num_steps"]),
                best_step=ending.get("best_step"),
                stopped_early=bool(ending.get("stopped_early", False)),
                stopped_by_time=bool(ending.get("stopped_by_time", False)),
                loss=series(rows, "loss"),
                validation=series(rows, shown),
                metric=shown,
            )
        )
    return found
