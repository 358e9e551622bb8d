"""Retrieve: where candidates come from. Each source ranks the items that the mask allows.

Axes: k candidates; a batch is always one query, so that a request's scores do not depend on what
else is asked at the time.
"""

from __future__ import annotations

import time
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from recsys.data.batch import JaggedBatch
from recsys.data.item_mask import ItemMask
from recsys.data.top_k import TopK, no_items
from recsys.layers.codes.decode_step import Beams, Decoded
from recsys.models.adapted.model import AdaptedRetriever
from recsys.models.content_similarity import ContentSimilarity
from recsys.models.generative.history_reader import BeamState, GenerativeContext
from recsys.models.generative.model import GenerativeModel
from recsys.models.item_to_item import ItemToItem
from recsys.models.popularity import Popularity
from recsys.models.sequence.model import SequenceModel
from recsys.retrieval.beam_search import BeamSearch
from recsys.retrieval.blend.source_lists import GeneratedItems, ScoredItems
from recsys.retrieval.exact import exact_top_k
from serving.bundle.adapters import NO_ADAPTERS, Adapters
from serving.bundle.content_neighbours import ContentNeighbours
from serving.bundle.history_models import Generation
from serving.bundle.load import Bundle
from serving.bundle.retriever import Retriever
from serving.query import Query
from serving.settings import ServingOptions
from serving.surfaces import HOME


class CandidateSource(Protocol):
    """Ranks items for a query."""

    def candidates(self, query: Query, mask: ItemMask, k: int) -> TopK | None:
        """Return the best items with their scores, [1, k]; None if it can say nothing.

        Raises:
            LateError: It did not finish in the time it has.
        """
        ...


class LateError(Exception):
    """A source takes longer than a request can wait."""


class TwoTowerSource:
    """Nearest items to the query's vector, or to the item's on surface ``similar``."""

    def __init__(self, retriever: Retriever, adapted: AdaptedRetriever | None = None) -> None:
        self._retriever = retriever
        self._adapted = adapted

    def candidates(self, query: Query, mask: ItemMask, k: int) -> TopK | None:
        model, index = self._retriever.model, self._retriever.index
        domain = query.request.context.domain
        if query.item_row:
            vector = index.vectors(torch.tensor([query.item_row]))  # [1, D]
        elif not query.has_history:
            return None
        elif self._adapted is None or not self._adapted.knows(domain):
            vector = model.query_vectors(query.features)  # [1, D]
        else:
            vector = self._adapted.query_vectors(query.features, [domain])
            if not self._adapted.shares_items(domain):
                # The index is of the base's item vectors.
                return exact_top_k(vector, self._adapted.item_vectors(domain), k, mask)
        return index.search(vector, k, mask)


class ItemToItemSource:
    """Neighbours of the history's items."""

    def __init__(self, model: ItemToItem) -> None:
        self._items = ScoredItems(model.score)

    def candidates(self, query: Query, mask: ItemMask, k: int) -> TopK | None:
        return self._items(query.features, [mask], k) if query.has_history else None


class SequenceSource:
    """Items that come next after the history, exactly, by the sequence model."""

    def __init__(self, model: SequenceModel, adapted: AdaptedRetriever | None = None) -> None:
        self._model = model
        self._adapted = adapted
        # Asked anew, the model would normalise the whole catalogue for each request. For one query
        # a product with columns takes a third to a half of the time of one with rows.
        self._columns = model.all_item_vectors().T.contiguous()  # [D, N]

    def _score(self, queries: JaggedBatch) -> Tensor:
        """Score the catalogue as SequenceModel.score does, [1, N]."""
        return self._model.query_vectors(queries, only_last=True) @ self._columns

    def candidates(self, query: Query, mask: ItemMask, k: int) -> TopK | None:
        if query.item_row or not query.has_history:
            return None
        domain = query.request.context.domain
        if self._adapted is not None and self._adapted.knows(domain):
            adapted = self._adapted
            items = ScoredItems(lambda queries: adapted.score(queries, [domain]))
            return items(query.features, [mask], k)
        # Made here: kept, it and the source would hold each other, and with them the bundle's files
        # open long after a swap.
        return ScoredItems(self._score)(query.features, [mask], k)


class _Timed(NamedTuple):
    """A context with the moment by which the search has to be done."""

    context: GenerativeContext
    deadline: float


class _TimedModel:
    """A generative model that gives up when a request's time is over."""

    def __init__(self, model: GenerativeModel, timeout_ms: float | None) -> None:
        self._model = model
        self._timeout_seconds = float("inf") if timeout_ms is None else timeout_ms / 1_000

    def context(self, queries: JaggedBatch) -> _Timed:
        """Read the history, once for all beams."""
        deadline = time.perf_counter() + self._timeout_seconds
        return _Timed(self._model.context(queries), deadline)

    def decode_step(self, timed: _Timed, beams: Beams[BeamState] | None, /) -> Decoded[BeamState]:
        if time.perf_counter() > timed.deadline:
            raise LateError
        return self._model.decode_step(timed.context, beams)


class GenerativeSource:
    """Items whose semantic IDs the generative model finds most probable, by beam search."""

    def __init__(self, generation: Generation, beam_width: int, timeout_ms: float | None) -> None:
        """Prepare the search.

        Args:
            timeout_ms: How long a search may take; None is as long as it takes. Looked at before
                each level, so a search ends at most a level's time later.
        """
        model = _TimedModel(generation.model, timeout_ms)
        # The bundle's loader has held the released version against the model's.
        search = BeamSearch(
            model.decode_step,
            generation.trie,
            beam_width=beam_width,
            semantic_ids_version=generation.trie.version,
        )
        self._items = GeneratedItems(model, search)

    def candidates(self, query: Query, mask: ItemMask, k: int) -> TopK | None:
        if query.item_row or not query.has_history:
            return None
        return self._items(query.features, [mask], k)


class SimilarItems:
    """Items whose content is like the history's, exactly."""

    def __init__(self, similarity: ContentSimilarity) -> None:
        self._similarity = similarity
        self._columns = similarity.vectors.T.contiguous()  # [F, N], as in SequenceSource

    def _score_one(self, queries: JaggedBatch) -> Tensor:
        """Score the catalogue as ContentSimilarity.score does, [1, N]."""
        asked = self._similarity.query_vectors(queries)  # [1, F]
        known = self._similarity.has_content & (asked != 0).any()
        return (asked @ self._columns).masked_fill_(~known, -torch.inf)

    def candidates(self, query: Query, mask: ItemMask, k: int) -> TopK | None:
        if not query.has_history:
            return None
        return ScoredItems(self._score_one)(query.features, [mask], k)  # as in SequenceSource


class ContentSource:
    """Items whose content is like an item's, or like the history's.

    Without learned weights, only appended items speak for a history: co-occurrence knows nothing
    of them.
    """

    def __init__(
        self, neighbours: ContentNeighbours | None, similarity: ContentSimilarity | None = None
    ) -> None:
        self._neighbours = neighbours
        self._similar = None if similarity is None else SimilarItems(similarity)

    def candidates(self, query: Query, mask: ItemMask, k: int) -> TopK | None:
        if not query.item_row and self._similar is not None:
            return self._similar.candidates(query, mask, k)
        if self._neighbours is None:
            return None
        if query.item_row:
            return self._neighbours.nearest(query.item_row, k, mask)
        return self._neighbours.appended_like(query.history, k, mask)


class PopularSource:
    """What everyone takes lately; always has a list."""

    def __init__(self, model: Popularity) -> None:
        scores, order = torch.sort(model.item_scores, descending=True, stable=True)
        self._scores, self._by_popularity = scores.numpy(), order.numpy()

    def candidates(self, query: Query, mask: ItemMask, k: int) -> TopK:
        places = np.flatnonzero(mask.allows(self._by_popularity))[:k]
        listed = no_items(1, k)
        listed.scores[0, : len(places)] = torch.from_numpy(self._scores[places])
        listed.item_rows[0, : len(places)] = torch.from_numpy(self._by_popularity[places])
        return listed


def sources_of(
    bundle: Bundle,
    options: ServingOptions,
    adapters: Adapters = NO_ADAPTERS,
    *,
    learned_content: bool = False,
) -> dict[str, CandidateSource]:
    """Make the sources of a profile that a bundle has the parts for.

    Args:
        learned_content: Whether content speaks for every item, as a learned blend weighs it.
    """
    sources: dict[str, CandidateSource] = {"popular": PopularSource(bundle.popularity)}
    if bundle.item_to_item is not None:
        sources["item_to_item"] = ItemToItemSource(bundle.item_to_item)
    neighbours = None
    if bundle.retriever is not None:
        sources["two_tower"] = TwoTowerSource(
            bundle.retriever, adapters.retrievers.get("two_tower")
        )
        if bundle.semantic_ids is not None:
            neighbours = ContentNeighbours(
                bundle.semantic_ids, bundle.retriever.content, bundle.num_released_rows
            )
    if bundle.sequence is not None:
        sources["sequence"] = SequenceSource(bundle.sequence, adapters.retrievers.get("sequence"))
    if bundle.ensemble is not None and options.profile == "full":
        sources["ensemble"] = SequenceSource(bundle.ensemble)
    if bundle.generative is not None and options.profile == "full":
        sources["generative"] = GenerativeSource(
            bundle.generative, HOME.beam_width, options.beam_timeout_ms
        )
    similarity = bundle.content_similarity if learned_content else None
    if neighbours is not None or similarity is not None:
        sources["content"] = ContentSource(neighbours, similarity)
    return sources
