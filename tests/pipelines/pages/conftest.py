"""A made-up evaluation, whose later models are better, read as a report's data."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.engine.artifacts import to_json
from pipelines.evaluation.analysis import Analysis
from pipelines.pages.report_data import TRAININGS, Provenance, ReportData, read_report_data

Reported = Callable[..., ReportData]
METRICS = ("ndcg@10", "recall@10", "mrr@10")
TASK = {"predicted": 0.003, "observed": 0.004, "calibration_error": 0.001}
SLICES = {"history_length": ("1-5", "6-20"), "item_popularity": ("head", "torso", "tail", "cold")}
NUM_USERS = 60
FEATURES: dict[str, Any] = {
    "rows_in": 720,
    "events": 720,
    "users": NUM_USERS,
    "items": 40,
    "quarantined": {},
    "filtered": {},
    "duplicates": 0,
    "dropped_by_k_core": 0,
    "over_user_cap": 0,
    "quarantined_in_tables": {},
    "items_without_catalogue": 0,
    "labels": {"train": 540, "validation": NUM_USERS, "test": NUM_USERS},
    "first_time": "2024-01-02T10:00:00+00:00",
    "last_time": "2024-06-30T21:00:00+00:00",
    "validation_from": None,
    "test_from": None,
    "warnings": [],
}
ROUTING: dict[str, Any] = {
    "num_experts": 4,
    "top_k": 2,
    "num_candidates": 100_000,
    "load": [0.4, 0.3, 0.3, 0.0],
    "entropy": 0.79,
    "max_violation": 0.6,
    "dead_experts": 1,
}


def split(models: Sequence[str], categories: Sequence[str], seed: int) -> dict[str, Any]:
    """Make up one split: intervals, measures, slices, and tests of the last model."""
    draw = np.random.default_rng(seed)

    def intervals(place: int, num_users: int = NUM_USERS) -> dict[str, dict[str, float]]:
        means = 0.1 + 0.02 * place + 0.01 * draw.random(len(METRICS))
        ends = zip(METRICS, means.tolist(), strict=True)
        return {
            name: {"mean": mean, "low": mean - 0.02, "high": mean + 0.02, "num_users": num_users}
            for name, mean in ends
        }

    groups = {**SLICES, **({"category": categories} if categories else {})}
    sizes = {group: [NUM_USERS - 20 * n for n in range(len(own))] for group, own in groups.items()}
    found = {}
    for place, model in enumerate(models):
        slices = [
            {
                **{"group": group, "name": name, "num_users": max(size, 0)},
                **{"num_targets": max(size, 0)},
                "metrics": intervals(place, size) if size > 0 else {},
            }
            for group, names in groups.items()
            for name, size in zip(names, sizes[group], strict=True)
        ]
        beyond = {"coverage@10": 0.31, "gini@10": 0.84}
        found[model] = {"intervals": intervals(place), "beyond_accuracy": beyond, "slices": slices}
    means = [found[model]["intervals"]["ndcg@10"]["mean"] for model in models]
    tests = [
        {
            **{"metric": "ndcg@10", "baseline": models[-1], "candidate": model},
            **{"num_users": NUM_USERS, "baseline_mean": means[-1], "candidate_mean": mean},
            **{"difference": mean - means[-1], "low": -0.1, "high": 0.0},
            **{"p_value": 0.01, "adjusted_p_value": 0.02, "significant": True},
        }
        for model, mean in zip(models[:-1], means[:-1], strict=True)
    ]
    users = {"num_users": NUM_USERS, "num_targets": NUM_USERS}
    return {**users, "models": found, "comparisons": tests}


def write_evaluation(
    folder: Path,
    models: Sequence[str] = ("popularity", "item_to_item", "two_tower", "blend"),
    categories: Sequence[str] = ("Drama", "Comedy", "War"),
    **facts: Any,
) -> dict[str, Path]:
    """Write the artefacts that a report is read from; return where they are."""
    stages = ("build_features", "evaluate", "fit_blend", *TRAININGS)
    places = {stage: folder / stage for stage in stages}
    files: dict[Path, Any] = {
        places["build_features"] / "report.json": FEATURES | facts,
        places["build_features"] / "features.json": {"num_item_rows": 41},
    }
    splits = {name: split(models, categories, len(name)) for name in ("validation", "test")}
    values = {"validation": {}, "test": {}}
    for name, own in splits.items():
        for model, one in own["models"].items():
            means = {metric: value["mean"] for metric, value in one["intervals"].items()}
            values[name][model] = {**means, "hit_rate@10": means["recall@10"]}
    files[places["evaluate"] / "metrics.json"] = {"given": values}
    training = places["train_two_tower"] / "given"
    files[training / "training.json"] = {"num_steps": 20, "best_step": 20, "stopped_early": False}
    tasks = {"next": {"auc": 0.88, **TASK}, "like": {"auc": None, **TASK}}
    measured = {"trunk": "sparse", "tasks": tasks, "routing": ROUTING}
    ranker = {"num_candidates": 200, "served": True, "reason": "it is ahead by 0.01"}
    ranker |= {"metric": "ndcg@10", "tasks": [*tasks], "tasks_reason": "half are likes"}
    files[places["train_ranker"] / "given" / "ranker" / "calibration.json"] = measured
    files[places["train_ranker"] / "given" / "ranker.json"] = ranker
    for path, value in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(to_json(value))
    curve = [{"step": step, "loss": 1.0, "ndcg@10": step / 100} for step in (10, 20)]
    (training / "curve.jsonl").write_text("".join(json.dumps(row) + "\n" for row in curve))
    whole = {"orders": {"given": splits}, "data_digest": "", "protocol": ""}
    Analysis.from_json({**whole, "primary_metric": "ndcg@10"}).save(places["evaluate"])
    return places


def read(folder: Path, title: str = "shop", **options: Any) -> ReportData:
    made = Provenance(
        data_digest="d" * 64,
        raw_files={"items": "f" * 64},
        versions={"torch": "2.13.0"},
        settings='seed = 0\n\n[data]\nseparator = "<"\n',
        num_test_looks=1,
    )
    places = write_evaluation(folder, **options)
    about = {"title": title, "split_kind": "leave_one_out", "excludes_history": True}
    return read_report_data(places, **about, provenance=made)


@pytest.fixture
def reported(tmp_path: Path) -> Reported:
    """Write a made-up evaluation and read its report's data: reported(title="a")."""
    return lambda **options: read(tmp_path / str(len(list(tmp_path.iterdir()))), **options)


@pytest.fixture(scope="session")
def plain_report(tmp_path_factory: pytest.TempPathFactory) -> ReportData:
    return read(tmp_path_factory.mktemp("evaluation"))
