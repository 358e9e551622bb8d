"""The sources of candidates as models that were fit on train, and what they answer.

A model's name is its row in the metrics, a source's its name in a blend and in serving.

Axes: B queries of a batch, N item rows, k list length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from recsys.data.batch import JaggedBatch
from recsys.data.item_mask import ItemMask
from recsys.data.top_k import TopK
from recsys.retrieval.blend.source_lists import ScoredItems, unseen
from serving.surfaces import HOME

Score = Callable[[JaggedBatch], Tensor]
SOURCE_OF_MODEL = {
    "popularity": "popular",
    "item_to_item": "item_to_item",
    "content": "content",
    "two_tower": "two_tower",
    "sequence": "sequence",
    "ensemble": "ensemble",
    "generative": "generative",
}


class Answer(NamedTuple):
    """What a model says of a batch of queries."""

    scores: Tensor
    """Of every item, [B, N]; -inf for what it does not rank."""
    top: TopK
    """The list that serving would ask the source for, without what was seen, [B, k]."""


class Source(Protocol):
    """A model that answers queries."""

    def __call__(self, queries: JaggedBatch, masks: Sequence[ItemMask], k: int) -> Answer:
        """Answer a batch; lists hold what the masks allow."""
        ...


class ScoredSource:
    """A model that scores every item."""

    def __init__(
        self,
        score: Score,
        *,
        needs_history: bool = True,
        item_vectors: Callable[[], Tensor] | None = None,
    ) -> None:
        """Take a model's ``score``.

        Args:
            needs_history: Whether it can say nothing of a query without one.
            item_vectors: Gives the model's vectors of all items, [N, F], where a ranker reads them.
        """
        self._score = score
        self._needs_history = needs_history
        self._item_vectors = item_vectors

    @torch.no_grad()
    def item_vectors(self) -> Tensor | None:
        """Give the model's vectors of all items, [N, F]; None where nobody reads them."""
        return None if self._item_vectors is None else self._item_vectors().detach().cpu()

    @torch.no_grad()
    def __call__(self, queries: JaggedBatch, masks: Sequence[ItemMask], k: int) -> Answer:
        scores = self._score(queries).detach()
        listed = ScoredItems(lambda _: scores, needs_history=self._needs_history)
        return Answer(scores, listed(queries, masks, k))


def behaviour_vectors(sources: Mapping[str, Source]) -> Tensor | None:
    """Give items as the sequence model knows them, [N, F]; None without one."""
    source = sources.get("sequence")
    return source.item_vectors() if isinstance(source, ScoredSource) else None


def ask_all(
    sources: Mapping[str, Source], queries: JaggedBatch, num_item_rows: int
) -> dict[str, Answer]:
    """Let every model answer a batch that has ``seen``, by model."""
    masks = unseen(queries["seen"], num_item_rows)
    k = candidates_asked(num_item_rows)
    return {name: source(queries, masks, k) for name, source in sources.items()}


def candidates_asked(num_item_rows: int) -> int:
    """Say how many items serving asks each source for."""
    return max(1, min(HOME.num_candidates, num_item_rows - 1))


def lists_of(answers: Mapping[str, Answer]) -> dict[str, TopK]:
    """Take the lists, by source."""
    return {SOURCE_OF_MODEL[model]: answer.top for model, answer in answers.items()}


CONTENT = "content"
