"""Folders of runs and bundles written by hand, for tests that need many or strange ones."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pipelines.engine.artifacts import FORMAT

Metrics = Mapping[str, Mapping[str, Mapping[str, float]]]
"""By split, model and metric."""
METRICS: Metrics = {
    split: {
        "popularity": {"ndcg@10": 0.05, "recall@10": 0.1},
        "blend_fast": {"ndcg@10": 0.12, "recall@10": 0.2},
        "blend": {"ndcg@10": 0.13, "recall@10": 0.22},
    }
    for split in ("test", "validation")
}
SETTINGS = """seed = 0
[data]
dataset = "{dataset}"
[two_tower]
embedding_dim = {width}
"""
BEGAN = datetime(2026, 11, 1, 12, tzinfo=UTC)
STAGES = ("build_features", "train_two_tower", "evaluate")


def write_json(path: Path, value: Any) -> None:
    """Write a value; NaN as Python writes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def write_stage(
    stage: Path,
    *,
    began: datetime = BEGAN,
    seconds: float = 10.0,
    memory: int = 1 << 30,
    **manifest: Any,
) -> None:
    """Write the manifest of a stage, and what it took."""
    document = {
        "stage": stage.name,
        "inputs": {},
        "config": {},
        "versions": {"code": "c", "torch": "2.13.0"},
        "rows": {"in": 1, "out": 1},
        "files": {},
        "format": FORMAT,
    }
    run = {"seconds": seconds, "peak_memory_bytes": memory, "started": began.isoformat()}
    write_json(stage / "run.json", run)
    write_json(stage / "manifest.json", document | manifest)


def write_run(
    workspace: Path,
    metrics: Metrics = METRICS,
    *,
    began: datetime = BEGAN,
    seconds: float = 10.0,
    dataset: str = "movielens-100k",
    width: int = 64,
    settings: str | None = None,
    stages: Sequence[str] = STAGES,
    data: str = "d" * 64,
) -> Path:
    """Write a workspace with a complete run.

    Args:
        seconds: Of each stage.
        settings: The TOML; by default three settings.
        data: Digest of the one file of its features.
    """
    text = SETTINGS.format(dataset=dataset, width=width) if settings is None else settings
    workspace.mkdir(parents=True, exist_ok=True)
    (workspace / "config.toml").write_text(text, encoding="utf-8")
    write_json(workspace / "evaluate" / "metrics.json", {"given": metrics})
    for number, stage in enumerate(stages):
        more = {"files": {"events.parquet": data}} if stage == "build_features" else {}
        start = began + number * timedelta(seconds=seconds)
        write_stage(workspace / stage, began=start, seconds=seconds, **more)
    return workspace


def write_bundle(
    folder: Path,
    version: str,
    metrics: Mapping[str, Mapping[str, float]] = METRICS["test"],
    *,
    outcome: str | None = "released",
    time: datetime = BEGAN,
    **manifest: Any,
) -> Path:
    """Write the manifest of a bundle into a folder of bundles, and the decision on it."""
    document = {
        "schema_version": 3,
        "kind": "bundle",
        "version": version,
        "profile": "fast",
        "metrics": metrics,
        "config_digest": "c" * 64,
        "files": {},
    }
    path = folder / f"bundle-{version}"
    write_json(path / "manifest.json", document | manifest)
    if outcome is not None:
        decision = {"challenger": version, "outcome": outcome, "time": time.isoformat()}
        whole = {**decision, "champion": None, "challenger_digest": None}
        with (folder / "releases.jsonl").open("a") as file:
            file.write(json.dumps(whole) + "\n")
    return path
