"""Retrieve: where candidates come from. Each source ranks the items that the mask allows.

Axes: k candidates; a batch is always one query, so that a request's scores do not depend on what
else is requested at the time.
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
from recsys.models.popularity import Popularity
from recsys.models.sequence.model import SequenceModel
from recsys.retrieval.beam_search import BeamSearch
from recsys.retrieval.exact import exact_top_k
from recsys.retrieval.sources import GeneratedSource, ScoredSource, Source
from serving.bundle.adapters import NO_ADAPTERS, Adapters
from serving.bundle.content_neighbours import ContentNeighbours
from serving.bundle.history_models import Generation
from serving.bundle.load import Bundle
from serving.bundle.retriever import Retriever
from serving.query import Query
from serving.settings import ServingOptions
from serving.surfaces import HOME


class RequestSource(Protocol):
    """Ranks items for a request, by the sources that also rank offline in batches."""

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
        self._retriever, self._adapted = retriever, adapted

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


class HistorySource:
    """What a source ranks for the history of a request."""

    def __init__(self, source: Source, *, for_items: bool = False) -> None:
        """Take a source; ``for_items``: it also ranks for an item, as a history of that one."""
        self._source, self._for_items = source, for_items

    def candidates(self, query: Query, mask: ItemMask, k: int) -> TopK | None:
        if not query.has_history or (query.item_row and not self._for_items):
            return None
        return self._source(query.features, mask.as_bool()[None], k).lists


def sequence_source(model: SequenceModel) -> Source:
    """Rank the items that come next after a history, exactly, as SequenceModel.score does."""
    # The model itself would normalise the whole catalogue for each request. For one query a product
    # with columns takes a third to a half of the time of one with rows.
    columns = model.all_item_vectors().T.contiguous()  # [D, N]
    return ScoredSource(lambda queries: model.query_vectors(queries, only_last=True) @ columns)


class AdaptedSequenceSource:
    """The sequence model, in domains that have an adapter with it."""

    def __init__(self, model: SequenceModel, adapted: AdaptedRetriever) -> None:
        self._base = HistorySource(sequence_source(model))
        self._adapted = adapted

    def candidates(self, query: Query, mask: ItemMask, k: int) -> TopK | None:
        domain, adapted = query.request.context.domain, self._adapted
        if not adapted.knows(domain):
            return self._base.candidates(query, mask, k)
        own = ScoredSource(lambda queries: adapted.score(queries, [domain]))
        return HistorySource(own).candidates(query, mask, k)


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


def generative_source(generation: Generation, beam_width: int, timeout_ms: float | None) -> Source:
    """Rank the items whose semantic IDs the generative model finds most probable.

    Args:
        timeout_ms: How long a search may take; None is as long as it takes. Looked at before each
            level, so a search ends at most a level's time later.
    """
    model = _TimedModel(generation.model, timeout_ms)
    # The bundle's loader has held the released version against the model's.
    search = BeamSearch(
        model.decode_step,
        generation.trie,
        beam_width=beam_width,
        semantic_ids_version=generation.trie.version,
    )
    return GeneratedSource(model, search)


def similar_content_source(similarity: ContentSimilarity) -> Source:
    """Rank items by the similarity of their content to the history's, as its ``score`` does."""
    columns = similarity.vectors.T.contiguous()  # [F, N], as of sequence_source

    def score_one(queries: JaggedBatch) -> Tensor:
        vectors = similarity.query_vectors(queries)  # [1, F]
        known = similarity.has_content & (vectors != 0).any()
        return (vectors @ columns).masked_fill_(~known, -torch.inf)

    return ScoredSource(score_one)


class ContentSource:
    """Items whose content is similar to an item's, or to the history's.

    Without learned weights, it ranks only appended items for a history: co-occurrence knows nothing
    of them.
    """

    def __init__(
        self, neighbours: ContentNeighbours | None, similarity: ContentSimilarity | None = None
    ) -> None:
        self._neighbours = neighbours
        self._similar = (
            None if similarity is None else HistorySource(similar_content_source(similarity))
        )

    def candidates(self, query: Query, mask: ItemMask, k: int) -> TopK | None:
        if not query.item_row and self._similar is not None:
            return self._similar.candidates(query, mask, k)
        if self._neighbours is None:
            return None
        if query.item_row:
            return self._neighbours.nearest(query.item_row, k, mask)
        return self._neighbours.appended_like(query.history, k, mask)


class PopularSource:
    """What is popular lately; always has a list."""

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
) -> dict[str, RequestSource]:
    """Make the sources of a profile that a bundle has the parts for.

    Args:
        learned_content: Whether content ranks every item, as a learned blend weighs it.
    """
    sources: dict[str, RequestSource] = {"popular": PopularSource(bundle.popularity)}
    for name, model in bundle.item_weights.items():
        sources[name] = HistorySource(ScoredSource(model.score), for_items=True)
    neighbours = None
    if bundle.retriever is not None:
        sources["two_tower"] = TwoTowerSource(
            bundle.retriever, adapters.retrievers.get("two_tower")
        )
    if bundle.semantic_ids is not None and bundle.items.content.shape[1]:
        neighbours = ContentNeighbours(
            bundle.semantic_ids, bundle.items.content, bundle.num_released_rows
        )
    if bundle.sequence is not None:
        adapted = adapters.retrievers.get("sequence")
        sources["sequence"] = (
            HistorySource(sequence_source(bundle.sequence))
            if adapted is None
            else AdaptedSequenceSource(bundle.sequence, adapted)
        )
    if bundle.ensemble is not None and options.profile == "full":
        sources["ensemble"] = HistorySource(sequence_source(bundle.ensemble))
    if bundle.generative is not None and options.profile == "full":
        sources["generative"] = HistorySource(
            generative_source(bundle.generative, HOME.beam_width, options.beam_timeout_ms)
        )
    similarity = bundle.content_similarity if learned_content else None
    if neighbours is not None or similarity is not None:
        sources["content"] = ContentSource(neighbours, similarity)
    return sources
