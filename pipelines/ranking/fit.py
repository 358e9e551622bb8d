"""Build, train, calibrate and measure one ranker.

Axes: U queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pipelines.config.run import RunConfig
from recsys.data.top_k import reranked_places
from recsys.evaluation.ranking import list_ranks, per_user_metric
from recsys.fitting.queries import ModelInputs
from recsys.fitting.spec import TrainingRun, run_training
from recsys.models.ranker.config import RankerInputs
from recsys.models.ranker.model import Ranker
from recsys.retrieval.blend.candidate_features import BASE, feature_names
from recsys.training.loop import TrainResult
from recsys.training.ranker_fit import predict_logits, ranker_loss, score_candidates
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
    values = {name: one for name, one in config.ranker.task_values.items() if name in tasks}
    known = replace(config.ranker, task_values=values)
    return Ranker(known, sizes, inputs.catalogue, item_counts)


def fit_ranker(
    model: Ranker, examples: RankingExamples, config: RunConfig, run: TrainingRun
) -> tuple[Ranker, TrainResult]:
    """Train on nine users of ten; the others select the epoch and calibrate."""
    training = config.ranker_training
    device, metric = run.device, config.evaluation.primary_metric
    split = split_by_user(examples, training.validation_users, config.seed)
    model = model.to(device)
    loss_at = ranker_loss(model, examples, split.train, training, config.seed, device, run.ranks)

    def evaluate(_: nn.Module) -> dict[str, float]:
        return {metric: float(metric_by_query(model, examples, split.held_out, metric).nanmean())}

    steps = replace(training.for_examples(len(split.train)), metric=metric)
    result = run_training(model, loss_at, training, steps, run, evaluate)
    model = model.to("cpu").eval()
    present = examples.candidates.present[split.held_out]
    logits = predict_logits(model, examples, split.held_out)
    model.fit_calibration(logits, examples.labels[split.held_out][present])
    return model, result


def metric_by_query(
    ranker: Ranker, examples: RankingExamples, chosen: Tensor, metric: str
) -> Tensor:
    """Measure a ranker's order of each query's candidates, [U]; NaN without a target."""
    rows = examples.candidates.item_rows[chosen]
    places = reranked_places(score_candidates(ranker, examples, chosen), rows.shape[1])
    ranks = list_ranks(rows.gather(1, places), examples.targets.take(chosen))
    return per_user_metric(ranks, metric)
