"""The artefacts of a made-up evaluation, for tests and the benchmark of the report.

Models differ by how high they rank the held-out item; nothing is trained. Equal settings and seeds
give equal bytes.

Axes: U users, M held-out items (one a user), N items, A models.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from pipelines.engine.artifacts import to_json
from pipelines.evaluation.analysis import Analysis
from pipelines.evaluation.per_user import RANK, read_targets
from pipelines.pages.report_data import TRAININGS
from recsys.data.batch import Jagged
from recsys.data.dataset import Sequences
from recsys.evaluation.beyond_accuracy import item_popularity
from recsys.evaluation.bootstrap import bootstrap_intervals
from recsys.evaluation.config import BootstrapConfig
from recsys.evaluation.ranking import per_user_metric
from recsys.evaluation.significance import ComparisonConfig, EvaluatedRun, compare_runs
from recsys.evaluation.slices import (
    Slice,
    category_slices,
    history_length_slices,
    item_popularity_slices,
    slice_metrics,
)

Rows = NDArray[np.int64]
Split = Literal["validation", "test"]
REPORT_READS = ("build_features", "evaluate", "fit_blend", *TRAININGS)
METRICS = ("ndcg@10", "recall@10", "mrr@10")
CUTOFFS = (5, 10, 20, 50, 100)
LISTED = 20
BEYOND = {"coverage@10": 0.31, "gini@10": 0.84, "novelty@10": 3.1, "average_popularity@10": 170.4}
WITH_CATEGORIES = {"category_diversity@10": 0.81, "miscalibration@10": 0.4}


@dataclass(frozen=True, kw_only=True)
class SyntheticEvaluation:
    """What to make up."""

    num_users: int = 60
    num_items: int = 40
    events_per_user: int = 12
    models: tuple[str, ...] = ("popularity", "item_to_item", "two_tower", "blend")
    orders: tuple[str, ...] = ("given",)
    titles: tuple[str, ...] = ()
    """Display texts of the first items; the others are numbered."""
    categories: tuple[str, ...] = ("Drama", "Comedy", "War")
    """Names of categories, given to items in turn; none leaves them out."""
    has_times: bool = True
    num_resamples: int = 200
    warnings: tuple[str, ...] = ()
    quarantined: tuple[tuple[str, int], ...] = ()
    """Reasons and numbers of rows."""
    ranker: bool = True
    seed: int = 0


def write_features(folder: Path, made: SyntheticEvaluation) -> None:
    """Write what a report reads of build_features."""
    rng = np.random.default_rng(made.seed)
    num_events = made.num_users * made.events_per_user
    weights = 1 / np.arange(1, made.num_items + 1)
    items = rng.choice(made.num_items, num_events, p=weights / weights.sum()) + 1
    ends = np.concatenate([[0], np.arange(made.num_users + 1) * made.events_per_user])
    for order in made.orders:
        place = folder / "sequences" / order
        place.mkdir(parents=True)
        lengths = np.concatenate([[0], np.full(made.num_users, made.events_per_user)])
        arrays = {
            "item_rows": items,
            "offsets": ends,
            "train_end": ends[1:] - 2 * (lengths > 0),
            "validation_end": ends[1:] - (lengths > 0),
        }
        for name, values in arrays.items():
            np.save(place / f"{name}.npy", values.astype(np.int64), allow_pickle=False)
    numbered = [f"Title {row}" for row in range(len(made.titles) + 1, made.num_items + 1)]
    texts = [*made.titles[: made.num_items], *numbered]
    rows = pl.Series(range(1, made.num_items + 1), dtype=pl.Int64)
    frame = pl.DataFrame({"item_row": rows, "display_text": texts})
    frame.write_parquet(folder / "items.parquet")
    (folder / "features.json").write_text(to_json({"num_item_rows": made.num_items + 1}))
    aside = dict(made.quarantined)
    report = {
        "rows_in": num_events + sum(aside.values()),
        "events": num_events,
        "users": made.num_users,
        "items": made.num_items,
        "quarantined": aside,
        "filtered": {},
        "duplicates": 0,
        "dropped_by_k_core": 0,
        "over_user_cap": 0,
        "quarantined_in_tables": {},
        "items_without_catalogue": 0,
        "labels": {
            "train": num_events - 3 * made.num_users,
            "validation": made.num_users,
            "test": made.num_users,
        },
        "first_time": "2024-01-02T10:00:00+00:00" if made.has_times else None,
        "last_time": "2024-06-30T21:00:00+00:00" if made.has_times else None,
        "validation_from": None,
        "test_from": None,
        "warnings": list(made.warnings),
    }
    (folder / "report.json").write_text(to_json(report))


def drawn_ranks(made: SyntheticEvaluation, rng: np.random.Generator) -> dict[str, Rows]:
    """Draw each model's rank of each held-out item; later models are better, [M] each."""
    ease = rng.normal(size=made.num_users)
    ranks = {}
    for place, model in enumerate(made.models):
        level = np.log(made.num_items / 3) - 0.4 * place
        noise = rng.normal(size=made.num_users)
        drawn = np.exp(level + 1.1 * ease + 0.6 * noise).astype(np.int64) + 1
        ranks[model] = np.minimum(drawn, made.num_items)
    return ranks


def lists_with(targets: Rows, ranks: Rows, num_items: int) -> Rows:
    """Fill lists with other items and put each target at its rank, [M, K]."""
    width = min(LISTED, num_items - 1)
    # The items that follow the target around the circle of all items do not meet it again.
    lists: Rows = (targets[:, None] - 1 + np.arange(1, width + 1)) % num_items + 1
    hit = np.flatnonzero(ranks <= width)
    lists[hit, ranks[hit] - 1] = targets[hit]
    return lists


def write_per_user(folder: Path, made: SyntheticEvaluation, order: str, split: Split) -> None:
    """Write the per-user table of one split."""
    rng = np.random.default_rng([made.seed, made.orders.index(order), len(split)])
    sequences = Sequences.load(folder.parent / "build_features" / "sequences" / order)
    ends = sequences.validation_end if split == "test" else sequences.train_end
    targets = np.asarray(sequences.item_rows)[ends[1:]]
    ranks = drawn_ranks(made, rng)
    columns: dict[str, Any] = {"user_row": np.arange(1, made.num_users + 1), "item_row": targets}
    columns |= {f"{RANK}{model}": ranks[model] for model in made.models}
    for model in made.models:
        lists = lists_with(targets, ranks[model], made.num_items)
        columns[f"top_k_{model}"] = pl.Series(lists).arr.to_list()
    pl.DataFrame(columns).write_parquet(folder / f"per_user_{order}_{split}.parquet")


def measure_slices(
    table: Path, made: SyntheticEvaluation, sequences: Sequences, targets: Jagged
) -> list[Slice]:
    """Cut a split by history, popularity and category."""
    users, _ = read_targets(table)
    lengths = torch.from_numpy((sequences.validation_end - sequences.offsets[:-1])[users])
    popularity = item_popularity(sequences.histories(sequences.train_end), made.num_items + 1)
    found = [
        *history_length_slices(targets, lengths),
        *item_popularity_slices(targets, popularity),
    ]
    if made.categories:
        turns = torch.arange(made.num_items + 1) % len(made.categories) + 1
        of_items = Jagged.one_each(turns)
        found += category_slices(targets, "category", of_items, ["", *made.categories])
    return found


def analysed(folder: Path, made: SyntheticEvaluation, order: str, split: Split) -> dict[str, Any]:
    """Measure one split as the evaluate stage does, with fewer resamples."""
    table = folder / f"per_user_{order}_{split}.parquet"
    users, targets = read_targets(table)
    sequences = Sequences.load(folder.parent / "build_features" / "sequences" / order)
    slices = measure_slices(table, made, sequences, targets)
    config = BootstrapConfig(num_resamples=made.num_resamples)
    frame = pl.read_parquet(table, columns=[f"{RANK}{model}" for model in made.models])
    models, runs = {}, []
    for model in made.models:
        ranks = Jagged(torch.from_numpy(frame[f"{RANK}{model}"].to_numpy().copy()), targets.offsets)
        values = {metric: per_user_metric(ranks, metric) for metric in METRICS}
        intervals = bootstrap_intervals(values, config)
        models[model] = {
            "intervals": {name: interval._asdict() for name, interval in intervals.items()},
            "beyond_accuracy": BEYOND | (WITH_CATEGORIES if made.categories else {}),
            "slices": [
                part.as_json() for part in slice_metrics(ranks, slices, METRICS[:2], config)
            ],
        }
        runs.append(
            EvaluatedRun.from_ranks(
                torch.from_numpy(users.copy()), targets, ranks, METRICS, name=model, data_digest=""
            )
        )
    flips = ComparisonConfig(num_flips=max(400, made.num_resamples), intervals=config)
    tests = compare_runs(runs[-1], runs[:-1], flips) if len(runs) > 1 else []
    return {
        "num_users": len(users),
        "num_targets": len(targets.values),
        "models": models,
        "comparisons": [test._asdict() for test in tests],
    }


def metrics_of(table: Path, models: Sequence[str]) -> Mapping[str, Mapping[str, float]]:
    """Compute the metrics of each model from its ranks, one target a user."""
    frame = pl.read_parquet(table, columns=[f"{RANK}{model}" for model in models])
    return {
        model: {
            f"{name}@{k}": float((frame[f"{RANK}{model}"].to_numpy() <= k).mean())
            for name in ("hit_rate", "recall")
            for k in CUTOFFS
        }
        for model in models
    }


def write_curves(folder: Path, made: SyntheticEvaluation) -> None:
    """Write a training that got better."""
    for order in made.orders:
        place = folder / order
        place.mkdir(parents=True)
        rows: list[dict[str, float]] = []
        for step in range(50, 2001, 50):
            rows.append({"step": step, "loss": 7 - step / 1000})
            if step % 200 == 0:
                rows.append({"step": step, "ndcg@10": 0.1 - 1 / (step + 20)})
        (place / "curve.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        ending = {"num_steps": 2000, "best_step": 2000, "stopped_early": False}
        (place / "training.json").write_text(to_json(ending))


def write_ranker(folder: Path, made: SyntheticEvaluation) -> None:
    """Write a ranker of two tasks, one of which has one class only, and a rival with a router."""
    folder.mkdir(parents=True)
    task = {"predicted": 0.003, "observed": 0.004, "calibration_error": 0.001}
    groups = made.categories or ("long tail", "popular")
    row: dict[str, Any] = {
        "flops": 31_000,
        "validation": 0.15,
        "ahead": -0.001,
        "standard_error": 0.002,
        "examined": [1.0, 0.7, 0.4],
        "tasks": {"next": {"auc": 0.88, **task}, "like": {"auc": None, **task}},
    }
    routing = {
        "num_experts": 4,
        "top_k": 2,
        "num_candidates": 100_000,
        "load": [0.4, 0.3, 0.3, 0.0],
        "entropy": 0.79,
        "max_violation": 0.6,
        "dead_experts": 1,
        "by": [{"name": "category", "groups": groups, "load": [[0.5, 0.5, 0, 0]] * len(groups)}],
    }
    trunks = [{"trunk": "dense", **row, "routing": None}, {"trunk": "sparse", **row}]
    trunks[1]["routing"] = routing
    (folder / "trunks.json").write_text(to_json({"trunks": trunks}))
    told = {
        "num_candidates": 200,
        "served": True,
        "reason": "the ranker's order has +0.0100 ndcg@10 against the blend's",
        "metric": "ndcg@10",
        "tasks": ["next", "like"],
        "tasks_reason": "half of the held-out events are likes",
    }
    (folder / "ranker.json").write_text(to_json(told))


def write_synthetic_evaluation(folder: Path, made: SyntheticEvaluation) -> dict[str, Path]:
    """Write the artefacts that a report is read from; return where they are."""
    places = {stage: folder / stage for stage in REPORT_READS}
    places["evaluate"].mkdir(parents=True)
    write_features(places["build_features"], made)
    if "two_tower" in made.models:
        write_curves(places["train_two_tower"], made)
    if made.ranker:
        write_ranker(places["train_ranker"] / made.orders[0], made)
    analysis: dict[str, Any] = {}
    metrics: dict[str, Any] = {}
    splits: tuple[Split, ...] = ("validation", "test")
    for order in made.orders:
        analysis[order], metrics[order] = {}, {}
        for split in splits:
            write_per_user(places["evaluate"], made, order, split)
            table = places["evaluate"] / f"per_user_{order}_{split}.parquet"
            metrics[order][split] = metrics_of(table, made.models)
            analysis[order][split] = analysed(places["evaluate"], made, order, split)
    whole = {"orders": analysis, "data_digest": "", "protocol": "", "primary_metric": "ndcg@10"}
    Analysis.from_json(whole).save(places["evaluate"])
    (places["evaluate"] / "metrics.json").write_text(to_json(metrics))
    return places
