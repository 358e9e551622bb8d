"""Scored lists of several sources for the same queries, and one list out of them.

What is measured offline in batches and what is served one query at a time come from here: a source
ranks the items that each query's mask allows, and a learned blend merges the lists, each query by
the length of its history and each item by the number of events that the sources were fitted on.

Axes: B queries, N item rows, k list length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from recsys.data.batch import Jagged, JaggedBatch
from recsys.data.item_mask import ItemMask
from recsys.data.top_k import NO_ROW, TopK, allowed_rows, select_top_k
from recsys.retrieval.beam_search import BeamSearch
from recsys.retrieval.blend.fusion import Blended
from recsys.retrieval.blend.learned import LearnedBlend, LearnedBlendConfig

ContextT = TypeVar("ContextT")
ContextT_co = TypeVar("ContextT_co", covariant=True)
StateT = TypeVar("StateT")


class ListSource(Protocol):
    """Ranks items for a batch of queries."""

    def __call__(self, queries: JaggedBatch, masks: Sequence[ItemMask], k: int) -> TopK:
        """Return lists [B, k]; without any item for a query of which it can say nothing.

        Args:
            masks: Items that each query may be shown, B of them.
        """
        ...


class ScoredItems:
    """The best of a model that scores the whole catalogue."""

    def __init__(
        self, score: Callable[[JaggedBatch], Tensor], *, needs_history: bool = True
    ) -> None:
        """Take a model's ``score``: [B, N], -inf for what it knows nothing of.

        Args:
            needs_history: Whether it can say nothing of a query without one.
        """
        self._score = score
        self._needs_history = needs_history

    @torch.no_grad()
    def __call__(self, queries: JaggedBatch, masks: Sequence[ItemMask], k: int) -> TopK:
        scores = self._score(queries).float()
        _check_masks(masks, len(scores))
        allowed = torch.stack([allowed_rows(mask, scores.shape[1]) for mask in masks])
        found = select_top_k(scores.masked_fill(~allowed, -torch.inf), k)
        return _with_history(found, queries) if self._needs_history else found


class Generator(Protocol[ContextT_co]):
    """A model that generates semantic IDs; its ``decode_step`` is in the beam search."""

    def context(self, queries: JaggedBatch) -> ContextT_co:
        """Encode histories as what all beams of a query share."""
        ...


class GeneratedItems(Generic[ContextT, StateT]):
    """Items whose semantic IDs a generative model finds most probable."""

    def __init__(
        self, model: Generator[ContextT], beam_search: BeamSearch[ContextT, StateT]
    ) -> None:
        self._model = model
        self._beam_search = beam_search

    @torch.no_grad()
    def __call__(self, queries: JaggedBatch, masks: Sequence[ItemMask], k: int) -> TopK:
        found = self._beam_search.search(self._model.context(queries), k, masks)
        return _with_history(found, queries)


def source_lists(
    sources: Mapping[str, ListSource], queries: JaggedBatch, masks: Sequence[ItemMask], k: int
) -> dict[str, TopK]:
    """Ask every source, [B, k] each.

    Args:
        queries: ``history`` and whatever else the sources read.
        masks: Items that each query may be shown, B of them.
        k: The same for fitting a blend, for measuring and for serving, because a blend counts
            scores from a list's last place.
    """
    return {name: source(queries, masks, k) for name, source in sources.items()}


def fitted_blend(
    lists: Mapping[str, TopK],
    targets: Jagged,
    history_lengths: Tensor,
    item_counts: Tensor,
    config: LearnedBlendConfig | None = None,
) -> LearnedBlend:
    """Learn weights from lists of queries whose next items are known.

    Args:
        lists: By source, of all queries together, as ``source_lists`` makes them.
        targets: Items each query went on to.
        history_lengths: Of what the sources read, ``queries["history"].lengths()``, [B].
        item_counts: Events of each item that the sources were fitted on, [N].
        config: Kinds, shrinkage, limits.
    """
    return LearnedBlend.fit(
        lists, targets, config, history_lengths=history_lengths, item_values=item_counts.double()
    )


def blended_lists(
    blend: LearnedBlend,
    lists: Mapping[str, TopK],
    history_lengths: Tensor,
    item_counts: Tensor,
    k: int,
) -> Blended:
    """Merge lists by learned weights; arguments as of ``fitted_blend``.

    Items that were appended after the sources were fitted count 0 events; such items have the
    odds that the blend's settings give new ones.
    """
    odds = blend.config.new_item_odds
    return blend.blend(
        lists,
        k,
        history_lengths=history_lengths,
        item_values=item_counts.double(),
        log_odds=None if odds == 1 else (item_counts == 0) * math.log(odds),
    )


def unseen(seen: Jagged, num_item_rows: int) -> list[ItemMask]:
    """Allow each query what it has not seen, B masks."""
    allowed = torch.ones(seen.batch_size, num_item_rows, dtype=torch.bool)
    allowed[seen.segments(), seen.values] = False
    return [ItemMask(one) for one in allowed.numpy()]


def _with_history(found: TopK, queries: JaggedBatch) -> TopK:
    """Empty the lists of queries without a history."""
    empty = (queries["history"].lengths() == 0)[:, None]
    return TopK(
        found.scores.masked_fill(empty, -torch.inf), found.item_rows.masked_fill(empty, NO_ROW)
    )


def _check_masks(masks: Sequence[ItemMask], num_queries: int) -> None:
    if len(masks) != num_queries:
        raise ValueError(f"{len(masks)} item masks for {num_queries} queries; give one for each")
