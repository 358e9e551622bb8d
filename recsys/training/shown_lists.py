"""Train a ranker with position bias on impressions: logged lists with slots and feedback.

Axes: U lists, k candidates of each, I impressions, T tasks, B lists of a step, S slots.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from recsys.data.batch import Jagged, JaggedBatch
from recsys.data.windows import BatchOrder
from recsys.models.ranker.batch import Candidates, Feedback
from recsys.models.ranker.model import Ranker
from recsys.training.passes import RankerFitConfig
from recsys.training.ranker_fit import minimise
from recsys.training.ranking_examples import NOT_SHOWN, UNOBSERVED, RankingExamples
from recsys.training.ranks import ALONE, Ranks


class Impressions(NamedTuple):
    """Items of shown lists and their feedback."""

    item_rows: Jagged
    """Item rows of each list, I in all."""
    slots: Tensor
    """[I] int64 from 0, the top."""
    labels: Tensor
    """[I, T], 0 or 1; NaN where it is not known."""


def impression_examples(
    queries: JaggedBatch, targets: Jagged, candidates: Candidates, impressions: Impressions
) -> RankingExamples:
    """Label the candidates that were shown, NaN for others; impressions of no candidate are lost.

    Args:
        targets: Items that followed each list.
    """
    rows = candidates.item_rows
    lists = impressions.item_rows.segments()
    item, place = (rows[lists] == impressions.item_rows.values[:, None]).nonzero(as_tuple=True)
    slots = torch.full(rows.shape, NOT_SHOWN)
    slots[lists[item], place] = impressions.slots[item]
    labels = torch.full((*rows.shape, impressions.labels.shape[1]), UNOBSERVED)
    labels[lists[item], place] = impressions.labels[item]
    return RankingExamples(queries, targets, candidates, labels, slots)


def shown_places(examples: RankingExamples) -> Tensor:
    """Mark the candidates that were shown, [U, k]."""
    assert examples.slots is not None
    return examples.slots != NOT_SHOWN


def usable(examples: RankingExamples) -> Tensor:
    """Select the lists with an impression among the candidates, ascending."""
    return shown_places(examples).any(1).nonzero()[:, 0]


def fit_examination(model: Ranker, examples: RankingExamples, chosen: Tensor) -> None:
    """Fit the examination probability of each slot, before the network is trained with it.

    Relevance is modelled by a linear function of the candidates' features and a bias of each item,
    both discarded afterwards. The logging policy puts good items high; learned together with a
    network that knows items less well than the policy did, the curve would absorb their relevance.
    The same item in several slots separates the two.

    Args:
        chosen: Lists to learn from, [U].
    """
    examination, level, correction = model.examination, model.shown_level, model.correction
    if examination is None or level is None or correction is None:
        raise ValueError(
            f"the ranker has num_slots = {model.inputs.num_slots} and base_feature = "
            f"{model.inputs.base_feature!r}; learning from shown lists needs both"
        )
    assert examples.slots is not None
    query, place = shown_places(examples)[chosen].nonzero(as_tuple=True)
    at = (chosen[query], place)
    labels = examples.labels[at].to(level.device)  # [I, T]
    slots = examples.slots[at].to(level.device)
    given = examples.candidates.features[at][None].to(level.device)
    rows, item = torch.unique(examples.candidates.item_rows[at], return_inverse=True)
    observed = ~labels.isnan()
    truth = torch.where(observed, labels, 0.0)
    with torch.no_grad():
        base = correction.base(given)[0]
        features = correction.standardised(given)[0]  # [I, F]
    num_tasks = labels.shape[1]
    line = torch.zeros(features.shape[1], num_tasks, device=level.device, requires_grad=True)
    of_item = torch.zeros(len(rows), num_tasks, device=level.device, requires_grad=True)
    item = item.to(level.device)
    fitted = [examination.odds, level, line, of_item]

    def mean_loss() -> Tensor:
        logits = base + features @ line + of_item[item] + level
        loss = (examination(logits, slots, truth) * observed).sum()
        total: Tensor = (loss + line.square().sum() + of_item.square().sum()) / observed.sum()
        return total

    minimise(mean_loss, fitted, max_iter=200)
    examination.odds.requires_grad_(False)


def shown_losses(
    model: Ranker,
    examples: RankingExamples,
    chosen: Tensor,
    config: RankerFitConfig,
    seed: int,
    device: torch.device,
    ranks: Ranks = ALONE,
) -> Callable[[int], Tensor]:
    """Return the loss of a step's shown lists, a scalar and a function of the step alone.

    Args:
        chosen: Lists to learn from, [U].
    """
    assert examples.slots is not None
    all_slots = examples.slots
    order = BatchOrder(len(chosen), min(config.batch_size, len(chosen)), seed)

    def loss_at(step: int) -> Tensor:
        queries = chosen[torch.from_numpy(ranks.part(order.indices(step)))]
        slots = all_slots[queries]
        longest = int((slots != NOT_SHOWN).sum(1).max())
        # Shown candidates first, in the order of the blend.
        places = (slots == NOT_SHOWN).sort(dim=1, stable=True).indices[:, :longest]  # [B, S]
        batch = examples.batch(queries, places)
        labels = examples.labels[queries[:, None], places].flatten(0, 1)
        own = slots.gather(1, places).clamp(min=0).flatten()
        ranked = model(batch.to(device))
        feedback = Feedback(labels.to(device), own.to(device))
        return model.loss_of(ranked, feedback, ranks.share(step, seed))

    return loss_at
