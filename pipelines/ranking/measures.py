"""Calibration, AUC and expert routing of a ranker on validation.

Axes: U queries, k candidates of each, M candidates, T tasks, E experts.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pipelines.candidates.blends import RANKED
from recsys.evaluation.calibration import (
    area_under_curve,
    expected_calibration_error,
    reliability_curve,
)
from recsys.fitting.blend import paired_difference
from recsys.layers.moe.router import expert_use
from recsys.models.ranker.config import count_flops
from recsys.models.ranker.model import Ranker
from recsys.training.ranker_fit import predict_logits
from recsys.training.ranking_examples import RankingExamples

BLOCK = 64
"""Queries routed at a time."""
MAX_QUERIES = 500
"""Queries whose routing is measured."""
NUM_BINS = 10


def decision(
    values: Tensor, blend_values: Tensor, metric: str, standard_errors: float
) -> dict[str, Any]:
    """Compare the ranker's order with the blend's on validation.

    Args:
        values: Metric of the ranker's order, [U]; NaN without a target.
        standard_errors: Of the paired difference, by which the ranker must be better.
    """
    ahead, error, num_users = paired_difference(values, blend_values)
    low, high = (ahead + sign * standard_errors * error for sign in (-1, 1))
    return {
        "served": low > 0,
        "reason": (
            f"on validation the ranker's order has {ahead:+.4f} {metric} against the blend's "
            f"({standard_errors:g} standard errors: {low:+.4f} to {high:+.4f}, {num_users} users); "
            "it is served only if the whole interval is above 0"
        ),
        "metric": metric,
        "ahead": ahead,
        "standard_error": error,
        "validation": {
            "blend": float(blend_values.nanmean()),
            RANKED: float(values.nanmean()),
        },
    }


def measure_ranker(model: Ranker, examples: RankingExamples) -> dict[str, Any]:
    """Measure each task's probabilities, and routing where the trunk has a router."""
    logits = predict_logits(model, examples, torch.arange(len(examples.labels)))
    labels = examples.labels[examples.candidates.present]
    probabilities = model.calibrated(logits)
    tasks = {
        name: task_measures(logits[:, place], probabilities[:, place], labels[:, place])
        for place, name in enumerate(model.inputs.tasks)
    }
    return {
        "method": "platt",
        "trunk": model.config.trunk,
        "flops": count_flops(model.config, model.inputs)["total"],
        "tasks": tasks,
        "routing": measure_routing(model, examples),
    }


def task_measures(logits: Tensor, probabilities: Tensor, labels: Tensor) -> dict[str, Any]:
    """Measure AUC and calibration of one task over candidates [M]; NaN labels are left out."""
    known = ~labels.isnan()
    own, truth = probabilities[known], labels[known]
    auc = area_under_curve(logits[known], truth)
    return {
        "auc": None if math.isnan(auc) else auc,
        "predicted": float(own.double().mean()),
        "observed": float(truth.double().mean()),
        "calibration_error": expected_calibration_error(
            reliability_curve(own, truth, num_bins=NUM_BINS)
        ),
        "num_labels": int(known.sum()),
    }


def measure_routing(model: Ranker, examples: RankingExamples) -> dict[str, Any] | None:
    """Measure the load of experts; None for a trunk without a router."""
    chosen, parts = torch.arange(len(examples.labels))[:MAX_QUERIES], []
    for part in torch.split(chosen, BLOCK):
        with torch.no_grad():
            routing = model(examples.whole_batch(part)).routing
        if routing is None:
            return None
        parts.append(routing.experts)
    experts, num_experts = torch.cat(parts), model.config.num_experts
    use = expert_use(experts, num_experts)
    return {
        "num_experts": num_experts,
        "top_k": model.config.top_k,
        "num_candidates": len(experts),
        "load": use.load.tolist(),
        "entropy": use.entropy,
        "max_violation": use.max_violation,
        "dead_experts": use.dead_experts,
    }
