"""Train one ranker on events of which it is known what was taken.

Axes: U user rows, M held-out events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pipelines.candidates.blends import taken
from pipelines.config.run import RunConfig
from pipelines.ranking.artefact import reordered
from pipelines.training.run import TrainingRun, fit, training_device
from recsys.data.batch import Jagged
from recsys.evaluation.ranking import list_ranks, per_user_metric
from recsys.fitting.inputs import ModelInputs
from recsys.models.ranker.config import RankerInputs
from recsys.models.ranker.model import Ranker
from recsys.retrieval.blend.candidate_features import BASE, number_names
from recsys.training.loop import TrainResult
from recsys.training.ranker_fit import logits_of, ranker_loss, scores_of
from recsys.training.ranking_examples import RankingExamples
from recsys.training.shown_lists import ShownLists, fit_examination, shown_losses

ONE_IN = 10
"""Of so many users, one picks the pass and calibrates."""


class Parts(NamedTuple):
    """Queries by what they are for."""

    learned_from: Tensor
    """With a taken candidate."""
    held: Tensor
    """Of users that nothing is learned from."""


def parts_of(examples: RankingExamples, limit: int, seed: int) -> Parts:
    """Cut queries by their user; at most ``limit`` are held."""
    users = examples.queries["user"].values
    aside = users % ONE_IN == 0
    found = torch.zeros(len(users), dtype=torch.bool)
    found[examples.found()] = True
    held = aside.nonzero()[:, 0]
    if len(held) > limit:
        drawn = torch.randperm(len(held), generator=torch.Generator().manual_seed(seed))
        held = held[drawn[:limit].sort().values]
    return Parts((found & ~aside).nonzero()[:, 0], held)


def can_be_calibrated(examples: RankingExamples, config: RunConfig) -> list[bool]:
    """Say of each task whether those that calibrate have both of its classes."""
    held = parts_of(examples, config.ranker_training.validation_users, config.seed).held
    labels = examples.labels[held].flatten(0, 1)
    positive = (labels == 1).sum(0)
    known = (~labels.isnan()).sum(0)
    return [0 < yes < all_ for yes, all_ in zip(positive.tolist(), known.tolist(), strict=True)]


def learned_lists(shown: ShownLists) -> Tensor:
    """Choose the shown lists of users that are not held."""
    usable = shown.usable()
    return usable[shown.examples.queries["user"].values[usable] % ONE_IN != 0]


def make_ranker(
    inputs: ModelInputs,
    item_counts: Tensor,
    config: RunConfig,
    tasks: Sequence[str],
    sources: Sequence[str],
    num_slots: int = 0,
) -> Ranker:
    """Build an untrained ranker of the run's features, for lists of so many slots."""
    sizes = RankerInputs(
        num_item_rows=inputs.sizes.num_item_rows,
        tasks=tuple(tasks),
        content_dim=inputs.sizes.content_dim,
        num_categories=inputs.sizes.num_categories,
        user_features=inputs.sizes.user_features,
        context_features=inputs.sizes.context_features,
        candidate_dense=number_names(sources),
        base_number=BASE,
        num_slots=num_slots,
    )
    torch.manual_seed(config.seed)
    known = replace(
        config.ranker,
        task_weights=_of_tasks(config.ranker.task_weights, tasks),
        task_values=_of_tasks(config.ranker.task_values, tasks),
    )
    return Ranker(known, sizes, inputs.catalogue, item_counts)


def _of_tasks(numbers: Mapping[str, float], tasks: Sequence[str]) -> dict[str, float]:
    """Leave out numbers of tasks that the data does not have."""
    return {name: value for name, value in numbers.items() if name in tasks}


def fit_ranker(
    model: Ranker,
    examples: RankingExamples,
    targets: Jagged,
    shown: ShownLists | None,
    config: RunConfig,
    run: TrainingRun,
) -> tuple[Ranker, TrainResult]:
    """Train on nine users of ten; the tenth pick the pass and calibrate.

    Args:
        model: Untrained.
        examples: Events with their candidates.
        targets: What was taken.
        shown: Lists that it learns from beside these events.
        config: The run's.
        run: Where it goes on after a kill.

    Raises:
        ValueError: If a task has one class only among those that calibrate.
    """
    training = config.ranker_training
    device, metric = training_device(training), config.evaluation.primary_metric
    parts = parts_of(examples, training.validation_users, config.seed)
    model = model.to(device)
    of_events = ranker_loss(model, examples, parts.learned_from, training, config.seed, device)
    of_lists = None
    if shown is not None and len(chosen := learned_lists(shown)):
        fit_examination(model, shown, chosen)
        of_lists = shown_losses(model, shown, chosen, training, config.seed, device)

    def loss_at(step: int) -> Tensor:
        loss = of_events(step)
        return loss if of_lists is None else loss + training.shown_share * of_lists(step)

    def evaluate(_: nn.Module) -> dict[str, float]:
        values = values_of(model, examples, targets, parts.held, metric)
        return {metric: float(values.nanmean())}

    steps = replace(training.for_examples(len(parts.learned_from)), metric=metric)
    result = fit(model, loss_at, training, steps, run, evaluate)
    model = model.to("cpu").eval()
    there = examples.candidates.top.item_rows[parts.held] > 0
    logits = logits_of(model, examples, parts.held)
    model.fit_calibration(logits, examples.labels[parts.held][there], "platt")
    return model, result


def values_of(
    ranker: Ranker, examples: RankingExamples, targets: Jagged, chosen: Tensor, metric: str
) -> Tensor:
    """Measure a ranker's order of each query's candidates, [U]; NaN without a target."""
    top = examples.candidates.top
    scores = scores_of(ranker, examples, chosen)
    order = reordered(taken(top, chosen), scores)
    return per_user_metric(list_ranks(order.item_rows, targets.take(chosen)), metric)
