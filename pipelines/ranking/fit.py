"""Build, train, calibrate and measure one ranker.

Axes: U queries, k candidates of each, M candidates, T tasks, E experts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pipelines.candidates.blends import RANKED
from pipelines.config.run import RunConfig
from recsys.evaluation.calibration import (
    area_under_curve,
    expected_calibration_error,
    reliability_curve,
)
from recsys.fitting.blend import paired_difference
from recsys.fitting.queries import ModelInputs
from recsys.fitting.ranker import metric_by_query
from recsys.fitting.spec import TrainingRun, run_training
from recsys.layers.moe.router import expert_use
from recsys.models.ranker.config import RankerConfig, RankerInputs
from recsys.models.ranker.model import Ranker
from recsys.retrieval.blend.candidate_features import BASE, feature_names
from recsys.training.loop import TrainResult
from recsys.training.ranker_fit import predict_logits, ranker_loss
from recsys.training.ranking_examples import RankingExamples

HELD_OUT_ONE_IN = 10
"""One user in this number selects the epoch and calibrates."""


class UserSplit(NamedTuple):
    """Queries by their user."""

    train: Tensor
    held_out: Tensor
    """Select the epoch and calibrate."""


def split_by_user(examples: RankingExamples, limit: int, seed: int) -> UserSplit:
    """Split queries by user; at most ``limit`` are held out."""
    aside = examples.queries["user"].values % HELD_OUT_ONE_IN == 0
    found = torch.zeros(len(aside), dtype=torch.bool)
    found[examples.found()] = True
    held_out = aside.nonzero()[:, 0]
    if len(held_out) > limit:
        drawn = torch.randperm(len(held_out), generator=torch.Generator().manual_seed(seed))
        held_out = held_out[drawn[:limit].sort().values]
    return UserSplit((found & ~aside).nonzero()[:, 0], held_out)


def has_both_classes(examples: RankingExamples, config: RunConfig) -> list[bool]:
    """Check of each task whether the queries that calibrate have both classes."""
    limit = config.ranker_training.validation_users
    held_out = split_by_user(examples, limit, config.seed).held_out
    labels = examples.labels[held_out].flatten(0, 1)
    positives = (labels == 1).sum(0)
    known = (~labels.isnan()).sum(0)
    return [0 < one < both for one, both in zip(positives.tolist(), known.tolist(), strict=True)]


def make_ranker(
    inputs: ModelInputs,
    item_counts: Tensor,
    config: RunConfig,
    ranker: RankerConfig,
    tasks: Sequence[str],
    sources: Sequence[str],
) -> Ranker:
    """Build an untrained ranker of the run's features."""
    sizes = RankerInputs(
        num_item_rows=inputs.sizes.num_item_rows,
        tasks=tuple(tasks),
        content_dim=inputs.sizes.content_dim,
        num_categories=inputs.sizes.num_categories,
        user_features=inputs.sizes.user_features,
        context_features=inputs.sizes.context_features,
        candidate_dense=feature_names(sources),
        base_feature=BASE,
    )
    torch.manual_seed(config.seed)
    # The data may lack a task that has a value.
    values = {name: one for name, one in ranker.task_values.items() if name in tasks}
    known = replace(ranker, task_values=values)
    return Ranker(known, sizes, inputs.catalogue, item_counts)


def fit_ranker(
    model: Ranker, examples: RankingExamples, split: UserSplit, config: RunConfig, run: TrainingRun
) -> tuple[Ranker, TrainResult]:
    """Train on nine users of ten; the others select the epoch."""
    training = config.ranker_training
    device, metric = run.device, config.evaluation.primary_metric
    model = model.to(device)
    # Captured steps of one GPU are faster than launched ones of two.
    run = replace(run, ranks=run.ranks.copies())
    loss_at = ranker_loss(model, examples, split.train, training, config.seed, device)

    def evaluate(_: nn.Module) -> dict[str, float]:
        return {metric: float(metric_by_query(model, examples, split.held_out, metric).nanmean())}

    steps = replace(training.for_examples(len(split.train)), metric=metric)
    result = run_training(model, loss_at, training, steps, run, evaluate)
    return model.to("cpu").eval(), result


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
        "validation": {"blend": float(blend_values.nanmean()), RANKED: float(values.nanmean())},
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
