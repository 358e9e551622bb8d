"""Runs of workspaces, read from their artefacts."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from pipelines.dashboard.runs.run import Run
from pipelines.engine.artifacts import read_json


def key_of(place: str) -> str:
    """Name a place in 12 hexadecimal digits."""
    return hashlib.sha256(place.encode()).hexdigest()[:12]


def read_workspaces(roots: Sequence[Path]) -> Sequence[Run]:
    """Read every workspace below folders, the newest first."""
    found = [_read(path) for root in roots for path in _workspaces_below(root)]
    return sorted(found, key=lambda run: str(run.time), reverse=True)


def _workspaces_below(root: Path) -> Iterator[Path]:
    for path in sorted(root.rglob("evaluate/metrics.json")):
        yield path.parent.parent


def _read(path: Path) -> Run:
    evaluate = path / "evaluate"
    orders = read_json(evaluate / "metrics.json")
    metrics = flat(next(iter(orders.values())))
    seconds = datetime.fromtimestamp((evaluate / "metrics.json").stat().st_mtime, UTC)
    return Run(
        key=key_of(str(path.resolve())),
        name=path.name,
        kind="workspace",
        status="complete",
        time=seconds,
        path=path,
        metrics=metrics,
    )


def flat(splits: Mapping[str, Mapping[str, Mapping[str, float]]]) -> dict[str, float]:
    """Name metrics by split, model and metric; values that are no numbers are left out."""
    return {
        f"{split}/{model}/{name}": value
        for split, models in splits.items()
        for model, values in models.items()
        for name, value in values.items()
        if math.isfinite(value)
    }
