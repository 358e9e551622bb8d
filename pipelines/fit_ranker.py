"""Train one ranker on the candidates of users of whom it is known what they took.

Axes: U users, k candidates of each, T tasks, B users of a step, C candidates of a step, M held-out
events or candidates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from pipelines.blends import ProfileBlend
from pipelines.config import RunConfig
from pipelines.fit_blend import Examples
from pipelines.model_inputs import HeldOut, ModelInputs
from pipelines.rankers import scores_as_served
from pipelines.ranking_data import (
    Drawn,
    RankingExamples,
    candidates_of,
    draw_places,
    labels_of,
)
from pipelines.training import TrainingRun, fit, training_device
from recsys.data.order import BatchOrder
from recsys.models.ranker import Ranker
from recsys.models.ranker_config import RankerInputs
from recsys.models.ranking_batch import Feedback, RankingBatch
from recsys.retrieval.candidate_numbers import number_names

BLOCK = 256
"""Users scored at a time."""
NEVER = -1e4
"""Logit of what is no candidate."""


class Tasks(NamedTuple):
    """What is predicted."""

    names: tuple[str, ...]
    why: str
    values: Tensor
    """Of each held-out event, [M]."""


class Setting:
    """What every ranker of a tie order is trained with."""

    def __init__(self, inputs: ModelInputs, found: Examples, config: RunConfig) -> None:
        self.inputs, self.found, self.config = inputs, found, config
        held_out = validation_users(inputs, config)
        self.targets = held_out.targets
        self.queries = inputs.queries(held_out.positions, max_history=config.ranker.max_history)

    def examples(self, blend: ProfileBlend, fold: int | None, tasks: Tasks) -> RankingExamples:
        """Give everyone the candidates of a blend: the served one, or the one without a half."""
        weights = blend.served if fold is None else blend.folds[fold]
        training = self.config.ranker_training
        made = candidates_of(self.found, weights, training.num_candidates)
        labels = labels_of(
            made.top.item_rows, self.targets, tasks.values, tasks.names, training.like_from
        )
        return RankingExamples(self.queries, made, labels)


def validation_users(inputs: ModelInputs, config: RunConfig) -> HeldOut:
    """Name the users that fit_blend asked about."""
    return HeldOut.of(inputs.sequences, "validation").sample(config.blend.max_queries, config.seed)


def make_ranker(
    setting: Setting, tasks: Sequence[str], sources: Sequence[str], device: torch.device
) -> Ranker:
    """Build an untrained ranker of the run's features."""
    inputs, config = setting.inputs, setting.config
    sizes = RankerInputs(
        num_item_rows=inputs.sizes.num_item_rows,
        tasks=tuple(tasks),
        content_dim=inputs.sizes.content_dim,
        num_categories=inputs.sizes.num_categories,
        user_features=inputs.sizes.user_features,
        context_features=inputs.sizes.context_features,
        candidate_dense=number_names(sources),
    )
    torch.manual_seed(config.seed)
    known = replace(
        config.ranker,
        task_weights=_of_tasks(config.ranker.task_weights, tasks),
        task_values=_of_tasks(config.ranker.task_values, tasks),
    )
    return Ranker(known, sizes, inputs.catalogue, setting.found.item_counts).to(device)


def _of_tasks(numbers: Mapping[str, float], tasks: Sequence[str]) -> dict[str, float]:
    """Leave out numbers of tasks that the data does not have."""
    return {name: value for name, value in numbers.items() if name in tasks}


def listwise_loss(logits: Tensor, drawn: Drawn, scores: Tensor, blend_share: float) -> Tensor:
    """Cross entropy of the one taken candidate, the first, among those of its user, a scalar.

    The blend's weights were fitted by the same loss, so a softmax of its scores is what it holds
    probable; ``blend_share`` of the loss is cross entropy with that.

    Args:
        logits: [B, C].
        drawn: The candidates; those without a label are none of the list.
        scores: Of the blend, [B, C].
    """
    absent = drawn.labels[:, :, 0].isnan()
    # Finite, so that a share of 0 of it is 0.
    among = (logits + drawn.log_weights).masked_fill(absent, NEVER).log_softmax(1)
    believed = (scores + drawn.log_weights).masked_fill(absent, NEVER).softmax(1)
    taken = -among[:, 0].mean()
    return (1 - blend_share) * taken - blend_share * (believed * among).sum(1).mean()


def fit_ranker(
    setting: Setting, examples: RankingExamples, users: Tensor, tasks: Tasks, run: TrainingRun
) -> Ranker:
    """Train on users [U] of which each took one of its candidates."""
    config, training = setting.config, setting.config.ranker_training
    device = training_device(training)
    model = make_ranker(setting, tasks.names, tuple(setting.found.lists), device)
    order = BatchOrder(len(users), training.batch_size, config.seed)

    def loss_at(step: int) -> Tensor:
        chosen = users[torch.from_numpy(order.indices(step))]
        generator = torch.Generator().manual_seed(config.seed * 1_000_003 + step)
        drawn = draw_places(examples.labels[chosen], training, generator)
        scores = examples.candidates.top.scores[chosen[:, None], drawn.places].to(device)
        ranked = model(on_device(examples.batch(chosen, drawn.places), device))
        drawn = Drawn(*(part.to(device) for part in drawn))
        first = ranked.logits[:, 0].view(scores.shape)
        listwise = listwise_loss(first, drawn, scores, training.blend_share)
        return listwise + model.loss_of(ranked, Feedback(drawn.labels.flatten(0, 1)))

    fit(model, loss_at, training, training.for_examples(len(users)), run, None)
    return model.to("cpu").eval()


def on_device(batch: RankingBatch, device: torch.device) -> RankingBatch:
    """Move a batch."""
    numbers = batch.candidate_dense
    return RankingBatch(
        batch.queries.to(device),
        batch.candidates.to(device),
        None,
        None if numbers is None else numbers.to(device),
    )


def logits_of(ranker: Ranker, examples: RankingExamples, users: Tensor) -> Tensor:
    """Predict every candidate of users as they are served, [M, T]."""
    parts = [ranker.logits(examples.whole_batch(part)) for part in torch.split(users, BLOCK)]
    return torch.cat(parts)


def scores_of(ranker: Ranker, examples: RankingExamples, users: Tensor) -> Tensor:
    """Score every candidate of users as they are served, [U, k]; -inf at holes."""
    parts = [
        scores_as_served(
            ranker, examples.whole_batch(part), examples.candidates.top.item_rows[part] > 0
        )
        for part in torch.split(users, BLOCK)
    ]
    return torch.cat(parts)
