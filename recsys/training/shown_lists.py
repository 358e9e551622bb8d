"""Lists that were shown, with their slots: a ranker learns from what was seen there and left.

Axes: U lists, k candidates of each, I shown items of all, T tasks, B lists of a step, S slots.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from recsys.data.batch import Jagged, JaggedBatch
from recsys.data.order import BatchOrder
from recsys.models.ranker.batch import Feedback
from recsys.models.ranker.model import Ranker
from recsys.training.ranker_fit import RankerFitConfig, on_device
from recsys.training.ranking_examples import UNOBSERVED, Candidates, RankingExamples

NOT_SHOWN = -1


class Shown(NamedTuple):
    """What stood in some lists and what came of it."""

    item_rows: Jagged
    """Of each list, I in all."""
    slots: Tensor
    """[I] int64 from 0, the top."""
    labels: Tensor
    """[I, T], 0 or 1; NaN where it is not known."""


class ShownLists(NamedTuple):
    """Queries with candidates, some of which were shown."""

    examples: RankingExamples
    """Labels are NaN at candidates that were not shown."""
    slots: Tensor
    """[U, k] int64, ``NOT_SHOWN`` where they were not."""

    @classmethod
    def of(cls, queries: JaggedBatch, candidates: Candidates, shown: Shown) -> ShownLists:
        """Find what was shown among the candidates; what is no candidate is left out."""
        rows = candidates.top.item_rows
        lists = shown.item_rows.segments()
        item, place = (rows[lists] == shown.item_rows.values[:, None]).nonzero(as_tuple=True)
        slots = torch.full(rows.shape, NOT_SHOWN)
        slots[lists[item], place] = shown.slots[item]
        labels = torch.full((*rows.shape, shown.labels.shape[1]), UNOBSERVED)
        labels[lists[item], place] = shown.labels[item]
        return cls(RankingExamples(queries, candidates, labels), slots)

    def usable(self) -> Tensor:
        """Number the lists of which anything is a candidate, ascending."""
        return (self.slots != NOT_SHOWN).any(1).nonzero()[:, 0]


def fit_examination(model: Ranker, lists: ShownLists, chosen: Tensor) -> None:
    """Fit how often each slot is looked at, once, before the network learns with it.

    Relevance is for the while a straight line over the numbers of candidates and one number an
    item, thrown away after. Good items stand high, so a curve learned beside a network that knows
    them less well than the logging policy did would take their part for the slot's; the same item
    in several slots tells the two apart.

    Args:
        model: A correction of a base number, built with ``num_slots``, whose scales are fitted; its
            curve and the level of shown lists are set, and the curve is not trained further.
        lists: On the host.
        chosen: Lists to learn from, [U].
    """
    examination, level, correction = model.examination, model.shown_level, model.correction
    if examination is None or level is None or correction is None:
        raise ValueError(
            f"the ranker has num_slots = {model.inputs.num_slots} and base_number = "
            f"{model.inputs.base_number!r}; learning from shown lists needs both"
        )
    query, place = (lists.slots[chosen] != NOT_SHOWN).nonzero(as_tuple=True)
    at = (chosen[query], place)
    labels = lists.examples.labels[at].to(level.device)  # [I, T]
    slots = lists.slots[at].to(level.device)
    given = lists.examples.candidates.numbers[at][None].to(level.device)
    rows, item = torch.unique(lists.examples.candidates.top.item_rows[at], return_inverse=True)
    observed = ~labels.isnan()
    truth = torch.where(observed, labels, 0.0)
    with torch.no_grad():
        base = correction.base(given)[0]
        numbers = correction.standardised(given)[0]  # [I, F]
    num_tasks = labels.shape[1]
    line = torch.zeros(numbers.shape[1], num_tasks, device=level.device, requires_grad=True)
    of_item = torch.zeros(len(rows), num_tasks, device=level.device, requires_grad=True)
    item = item.to(level.device)
    fitted = [examination.odds, level, line, of_item]
    optimizer = torch.optim.LBFGS(fitted, max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        logits = base + numbers @ line + of_item[item] + level
        loss = (examination(logits, slots, truth) * observed).sum()
        total: Tensor = (loss + line.square().sum() + of_item.square().sum()) / observed.sum()
        total.backward()  # type: ignore[no-untyped-call]
        return total

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    examination.odds.requires_grad_(False)


def shown_losses(
    model: Ranker,
    lists: ShownLists,
    chosen: Tensor,
    config: RankerFitConfig,
    seed: int,
    device: torch.device,
) -> Callable[[int], Tensor]:
    """Give the loss of a step's shown lists, a scalar; it depends on the step alone.

    Args:
        model: On ``device``, built with ``num_slots``.
        lists: On the host.
        chosen: Lists to learn from, [U].
        config: Size of a step.
        seed: Of the order.
        device: Where a step's candidates go.
    """
    order = BatchOrder(len(chosen), min(config.batch_size, len(chosen)), seed)

    def loss_at(step: int) -> Tensor:
        queries = chosen[torch.from_numpy(order.indices(step))]
        slots = lists.slots[queries]
        longest = int((slots != NOT_SHOWN).sum(1).max())
        # Those that were shown stand first, in the order of the candidates.
        places = (slots == NOT_SHOWN).sort(dim=1, stable=True).indices[:, :longest]  # [B, S]
        batch = lists.examples.batch(queries, places)
        labels = lists.examples.labels[queries[:, None], places].flatten(0, 1)
        own = slots.gather(1, places).clamp(min=0).flatten()
        ranked = model(on_device(batch, device))
        return model.loss_of(ranked, Feedback(labels.to(device), own.to(device)))

    return loss_at
