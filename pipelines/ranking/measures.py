"""Calibration, AUC and expert routing of a ranker on validation.

Axes: U queries, k candidates of each, M candidates, T tasks, E experts, G groups of candidates.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pipelines.candidates.blends import RANKED
from pipelines.evaluation.analyse import item_domains
from recsys.evaluation.calibration import (
    area_under_curve,
    expected_calibration_error,
    reliability_curve,
)
from recsys.fitting.blend import NUM_STANDARD_ERRORS, paired_difference
from recsys.fitting.queries import ModelInputs
from recsys.layers.moe.routing import expert_use, load_by_group
from recsys.models.ranker.config import count_flops
from recsys.models.ranker.model import Ranker
from recsys.training.ranker_fit import predict_logits
from recsys.training.ranking_examples import RankingExamples

BLOCK = 64
"""Queries routed at a time."""
MAX_QUERIES = 500
"""Queries whose routing is measured."""
NUM_BINS = 10
TIERS = ("long tail", "middle", "popular")


class Grouping(NamedTuple):
    """Groups of items."""

    name: str
    groups: tuple[str, ...]
    of_item: Tensor
    """[N] group of each item row, -1 for none."""


def decision(values: Tensor, blend_values: Tensor, metric: str) -> dict[str, Any]:
    """Compare the ranker's order with the blend's on validation.

    Args:
        values: Metric of the ranker's order, [U]; NaN without a target.
    """
    ahead, error, num_users = paired_difference(values, blend_values)
    low, high = (ahead + sign * NUM_STANDARD_ERRORS * error for sign in (-1, 1))
    return {
        "served": low > 0,
        "reason": (
            f"on validation the ranker's order has {ahead:+.4f} {metric} against the blend's (95% "
            f"interval {low:+.4f} to {high:+.4f}, {num_users} users); it is served only if "
            "the whole interval is above 0"
        ),
        "metric": metric,
        "ahead": ahead,
        "standard_error": error,
        "validation": {
            "blend": float(blend_values.nanmean()),
            RANKED: float(values.nanmean()),
        },
    }


def trunk_summary(ranker: Ranker, values: Tensor, measures: dict[str, Any]) -> dict[str, Any]:
    """Summarise the trained ranker on validation; ``values`` are the metric of its order, [U]."""
    return {
        "trunk": ranker.config.trunk,
        "flops": count_flops(ranker.config, ranker.inputs)["total"],
        "parameters": sum(one.numel() for one in ranker.parameters()),
        "validation": float(values.nanmean()),
        "ahead": 0.0,
        "standard_error": 0.0,
        **measures,
    }


def measure_ranker(
    model: Ranker, examples: RankingExamples, inputs: ModelInputs, features: Path
) -> dict[str, Any]:
    """Measure each task's probabilities, and routing where the trunk has a router."""
    everyone = torch.arange(len(examples.labels))
    logits = predict_logits(model, examples, everyone)
    labels = examples.labels[examples.candidates.present]
    probabilities = model.calibrated(logits)
    tasks = {
        name: task_measures(logits[:, place], probabilities[:, place], labels[:, place])
        for place, name in enumerate(model.inputs.tasks)
    }
    counts = inputs.sequences.item_counts(inputs.sequences.train_end, inputs.sizes.num_item_rows)
    groupings = group_items(inputs, counts, features)
    routing = measure_routing(model, examples, everyone[:MAX_QUERIES], groupings)
    return {"method": "platt", "tasks": tasks, "trunk": model.config.trunk, "routing": routing}


def task_measures(logits: Tensor, probabilities: Tensor, labels: Tensor) -> dict[str, Any]:
    """Measure AUC and calibration of one task over candidates [M]; NaN labels are left out."""
    known = ~labels.isnan()
    own, truth = probabilities[known], labels[known]
    curve = reliability_curve(own, truth, num_bins=NUM_BINS)
    auc = area_under_curve(logits[known], truth)
    return {
        "auc": None if math.isnan(auc) else auc,
        "predicted": float(own.double().mean()),
        "observed": float(truth.double().mean()),
        "calibration_error": expected_calibration_error(curve),
        "num_labels": int(known.sum()),
        "bins": [
            {"predicted": float(predicted), "observed": float(observed), "count": int(count)}
            for predicted, observed, count in zip(*curve, strict=True)
        ],
    }


def group_items(inputs: ModelInputs, item_counts: Tensor, features: Path) -> list[Grouping]:
    """Group items by domain, if they have one, and by popularity."""
    found = []
    domains, names = item_domains(features, inputs.sizes.num_item_rows)
    if domains is not None:
        found.append(Grouping("domain", tuple(names[1:]), domains.values - 1))
    ranks = item_counts.argsort(stable=True).argsort(stable=True)
    tiers = (ranks * len(TIERS)) // len(ranks)
    found.append(Grouping("popularity", TIERS, tiers))
    return found


def routed(model: Ranker, examples: RankingExamples, chosen: Tensor) -> Iterator[Tensor]:
    """Yield the experts of the queries' candidates, [M, K]; nothing without a router."""
    for part in torch.split(chosen, BLOCK):
        batch = examples.whole_batch(part)
        with torch.no_grad():
            routing = model(batch).routing
        if routing is None:
            return
        yield routing.experts


def measure_routing(
    model: Ranker, examples: RankingExamples, chosen: Tensor, groupings: Sequence[Grouping]
) -> dict[str, Any] | None:
    """Measure the load of experts, overall and by group; None for a trunk without a router."""
    parts = list(routed(model, examples, chosen))
    if not parts:
        return None
    experts, num_experts = torch.cat(parts), model.config.num_experts
    rows = examples.candidates.item_rows[chosen]
    rows = rows[rows > 0]
    use = expert_use(experts, num_experts)
    by = []
    for one in groupings:
        group = one.of_item[rows]
        known = group >= 0
        load = load_by_group(experts[known], group[known], num_experts, len(one.groups))
        by.append({"name": one.name, "groups": one.groups, "load": load.tolist()})
    return {
        "num_experts": num_experts,
        "top_k": model.config.top_k,
        "num_candidates": len(experts),
        "load": use.load.tolist(),
        "entropy": use.entropy,
        "max_violation": use.max_violation,
        "dead_experts": use.dead_experts,
        "by": by,
    }
