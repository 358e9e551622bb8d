"""The sources of a bundle: where candidates come from, see ``recsys.retrieval.sources``.

Axes: k candidates; requests are ranked one by one, so that their scores do not depend on other
requests.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import torch
from torch import Tensor

from recsys.data.batch import JaggedBatch
from recsys.data.item_mask import ItemMask
from recsys.data.top_k import OneList
from recsys.layers.codes.decode_step import Beams, Decoded
from recsys.models import names
from recsys.models.adapted.model import AdaptedRetriever
from recsys.models.content_similarity import ContentSimilarity
from recsys.models.content_similarity import OneContentHistory as OneContent
from recsys.models.generative.history_reader import BeamState, GenerativeContext
from recsys.models.generative.model import GenerativeModel
from recsys.models.sequence.model import SequenceModel
from recsys.models.sequence.one import OneHistory
from recsys.models.two_tower import OneQuery
from recsys.retrieval.beam_search import BeamSearch
from recsys.retrieval.exact import exact_top_k
from recsys.retrieval.generated import GeneratedSource
from recsys.retrieval.sources import (
    IndexedSource,
    LateError,
    PopularSource,
    Ranking,
    ScoredSource,
    Source,
    SourceQuery,
    WeightsSource,
    one_by_one,
)
from recsys.retrieval.vector_index import VectorIndex
from serving.bundle.adapters import NO_ADAPTERS, Adapters
from serving.bundle.content_neighbours import ContentNeighbours
from serving.bundle.history_models import CONTENT_SIMILARITY, ENSEMBLE, SEQUENCE, Generation
from serving.bundle.load import Bundle
from serving.bundle.retriever import Retriever
from serving.settings import ServingOptions
from serving.surfaces import HOME


class AdaptedSource(Source):
    """A retriever's lists; a query of a domain with an adapter is encoded by it."""

    def __init__(self, base: Source, adapted: AdaptedRetriever, index: VectorIndex | None) -> None:
        """Take the base's index, or None to compare the vectors of all items."""
        self._base, self._adapted, self._index = base, adapted, index

    def __call__(self, queries: JaggedBatch, allowed: Tensor, k: int) -> Ranking:
        return self._base(queries, allowed, k)

    def one(self, query: SourceQuery, mask: ItemMask, k: int) -> OneList | None:
        domain, adapted = query.domain, self._adapted
        if query.item_row or not query.has_history or not adapted.knows(domain):
            return self._base.one(query, mask, k)
        vector = adapted.query_vectors(query.features, [domain])
        if self._index is not None and adapted.shares_items(domain):
            return self._index.search_one(vector[0], k, mask)
        return OneList.of(exact_top_k(vector, adapted.item_vectors(domain), k, mask))


def two_tower_source(retriever: Retriever) -> IndexedSource:
    """Rank the items nearest to the query's vector, or to the item's own."""
    model, one = retriever.model, OneQuery(retriever.model)
    return IndexedSource(
        model.query_vectors,
        lambda: retriever.index,
        encode_one=lambda query: one.query_vector(query.history_tensor, query.categorical),
        item_vector=lambda row: retriever.index.vectors(torch.tensor([row]))[0],
    )


def sequence_source(model: SequenceModel, index: VectorIndex | None = None) -> Source:
    """Rank the items that come next after a history.

    Args:
        index: Of the model's item vectors; None compares all of them.
    """
    one = OneHistory(model)
    if index is None:
        return ScoredSource(
            model.score,
            score_one=lambda query: one.scores(query.history_tensor, query.times_tensor),
        )
    return IndexedSource(
        model.query_vectors,
        lambda: index,
        encode_one=lambda query: one.query_vector(query.history_tensor, query.times_tensor),
    )


def similarity_source(model: ContentSimilarity, index: VectorIndex | None = None) -> Source:
    """Rank the items whose content is similar to the history's; ``index`` as above."""
    one = OneContent(model)
    if index is None:
        return ScoredSource(model.score, score_one=lambda query: one.scores(query.history_tensor))
    return IndexedSource(
        model.query_vectors,
        lambda: index,
        encode_one=lambda query: one.query_vector(query.history_tensor),
    )


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


class SimilarContentSource(Source):
    """Items whose content is similar to an item's, or to the history's.

    Without learned weights, it ranks only appended items for a history: co-occurrence knows nothing
    of them.
    """

    def __init__(self, neighbours: ContentNeighbours | None, similar: Source | None) -> None:
        """Take the neighbours of an item, and the source for a history if weights are learned."""
        self._neighbours, self._similar = neighbours, similar

    def __call__(self, queries: JaggedBatch, allowed: Tensor, k: int) -> Ranking:
        if self._similar is not None:
            return self._similar(queries, allowed, k)
        return one_by_one(self, queries, allowed, k)

    def one(self, query: SourceQuery, mask: ItemMask, k: int) -> OneList | None:
        if not query.item_row and self._similar is not None:
            return self._similar.one(query, mask, k)
        if self._neighbours is None:
            return None
        if query.item_row:
            found = self._neighbours.nearest(query.item_row, k, mask)
        else:
            found = self._neighbours.appended_like(query.history, k, mask)
        return None if found is None else OneList.of(found)


def sources_of(
    bundle: Bundle,
    options: ServingOptions,
    adapters: Adapters = NO_ADAPTERS,
    *,
    learned_content: bool = False,
) -> dict[str, Source]:
    """Make the sources of a profile that a bundle has the parts for.

    Args:
        learned_content: Whether content ranks every item, as a learned blend weighs it.
    """
    sources: dict[str, Source] = {
        names.POPULARITY.source: PopularSource(bundle.popularity.item_scores),
        **{name: WeightsSource(model) for name, model in bundle.item_weights.items()},
        **{name: ScoredSource(one.model.score) for name, one in bundle.outside.items()},
    }
    if bundle.retriever is not None:
        sources[names.TWO_TOWER.source] = two_tower_source(bundle.retriever)
    full = options.profile == "full"
    for name, model, part in (
        (names.SEQUENCE, bundle.sequence, SEQUENCE),
        (names.ENSEMBLE, bundle.ensemble if full else None, ENSEMBLE),
    ):
        if model is not None:
            sources[name.source] = sequence_source(model, bundle.indexes.get(part))
    for base, adapted in adapters.retrievers.items():
        of_base = names.source_name(base)
        two_tower = bundle.retriever if base == names.TWO_TOWER.name else None
        index = None if two_tower is None else two_tower.index
        sources[of_base] = AdaptedSource(sources[of_base], adapted, index)
    if bundle.generative is not None and full:
        sources[names.GENERATIVE.source] = generative_source(
            bundle.generative, HOME.beam_width, options.beam_timeout_ms
        )
    if (content := _content_source(bundle, learned_content)) is not None:
        sources[names.CONTENT.source] = content
    return sources


def _content_source(bundle: Bundle, learned: bool) -> Source | None:
    neighbours = similar = None
    if bundle.semantic_ids is not None and bundle.items.content.shape[1]:
        neighbours = ContentNeighbours(
            bundle.semantic_ids, bundle.items.content, bundle.num_released_rows
        )
    if learned and bundle.content_similarity is not None:
        index = bundle.indexes.get(CONTENT_SIMILARITY)
        similar = similarity_source(bundle.content_similarity, index)
    if neighbours is None and similar is None:
        return None
    return SimilarContentSource(neighbours, similar)
