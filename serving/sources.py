"""Retrieve: where candidates come from. Each source ranks the items that the mask allows.

Axes: k candidates; a batch is always one query, so that a request's scores do not depend on what
else is requested at the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from recsys.data.batch import JaggedBatch
from recsys.data.item_mask import ItemMask
from recsys.data.top_k import OneList, best_of_one
from recsys.layers.codes.decode_step import Beams, Decoded
from recsys.models import names
from recsys.models.adapted.model import AdaptedRetriever
from recsys.models.content_similarity import ContentSimilarity
from recsys.models.content_similarity import OneHistory as OneContent
from recsys.models.generative.history_reader import BeamState, GenerativeContext
from recsys.models.generative.model import GenerativeModel
from recsys.models.item_weights.model import ItemWeights
from recsys.models.popularity import Popularity
from recsys.models.sequence.model import SequenceModel
from recsys.models.sequence.one import OneHistory
from recsys.models.two_tower_one import OneQuery
from recsys.retrieval.beam_search import BeamSearch
from recsys.retrieval.exact import exact_top_k
from recsys.retrieval.generated import GeneratedSource
from recsys.retrieval.sources import Source
from recsys.retrieval.vector_index import VectorIndex
from serving.bundle.adapters import NO_ADAPTERS, Adapters
from serving.bundle.content_neighbours import ContentNeighbours
from serving.bundle.history_models import CONTENT_SIMILARITY, ENSEMBLE, SEQUENCE, Generation
from serving.bundle.load import Bundle
from serving.bundle.retriever import Retriever
from serving.query import Query
from serving.settings import ServingOptions
from serving.surfaces import HOME


class RequestSource(Protocol):
    """Ranks items for a request, by the sources that also rank offline in batches."""

    def candidates(self, query: Query, mask: ItemMask, k: int) -> OneList | None:
        """Return at most k of the best items with their scores; None if it can say nothing.

        Raises:
            LateError: It did not finish in the time it has.
        """
        ...


class LateError(Exception):
    """A source takes longer than a request can wait."""


class TwoTowerSource:
    """Nearest items to the query's vector, or to the item's on surface ``similar``."""

    def __init__(self, retriever: Retriever, adapted: AdaptedRetriever | None = None) -> None:
        self._model, self._index = OneQuery(retriever.model), retriever.index
        self._adapted = adapted

    def candidates(self, query: Query, mask: ItemMask, k: int) -> OneList | None:
        domain = query.request.context.domain
        if query.item_row:
            vector = self._index.vectors(torch.tensor([query.item_row]))  # [1, D]
        elif not query.has_history:
            return None
        elif self._adapted is None or not self._adapted.knows(domain):
            vector = self._model.query_vector(query.history_tensor, query.categorical)[None]
        else:
            vector = self._adapted.query_vectors(query.features, [domain])
            if not self._adapted.shares_items(domain):
                # The index is of the base's item vectors.
                items = self._adapted.item_vectors(domain)
                return OneList.of(exact_top_k(vector, items, k, mask))
        return self._index.search_one(vector[0], k, mask)


class ScoredSource:
    """A model that scores the whole catalogue for one history."""

    def __init__(self, score: Callable[[Query], Tensor]) -> None:
        """Take what scores a request's history, [N] float32, which may be written into."""
        self._score = score

    def candidates(self, query: Query, mask: ItemMask, k: int) -> OneList | None:
        if not query.has_history or query.item_row:
            return None
        scores = self._score(query)
        mask.blank(scores.numpy())
        return best_of_one(scores, k)


class IndexedSource:
    """Nearest items to the vector of a history, of a large catalogue."""

    def __init__(self, encode: Callable[[Query], Tensor], index: VectorIndex) -> None:
        """Take what encodes a request's history, [D]."""
        self._encode, self._index = encode, index

    def candidates(self, query: Query, mask: ItemMask, k: int) -> OneList | None:
        if not query.has_history or query.item_row:
            return None
        vector = self._encode(query)
        if not bool(vector.any()):
            return None
        found = self._index.search_one(vector, k, mask)
        # An item without a vector has score 0, and is no more like the history than any other.
        there = found.scores != 0
        return found if there.all() else OneList(found.scores[there], found.item_rows[there])


class WeightsSource:
    """Items by their weights from those of the history, or from the item of the request."""

    def __init__(self, model: ItemWeights) -> None:
        self._model = model

    def candidates(self, query: Query, mask: ItemMask, k: int) -> OneList | None:
        if not query.has_history:
            return None
        scores, some = self._model.laid_out_scores(query.history)
        if some is None:
            scores[scores == 0] = -np.inf
            mask.blank(scores)
            return best_of_one(torch.from_numpy(scores), k)
        rows = some[scores[some] != 0]
        allowed = mask.allows(rows)
        rows = rows[allowed]
        return best_of_one(torch.from_numpy(scores[rows]), k, rows)


class HistorySource:
    """What a source that ranks batches has for the history of a request."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def candidates(self, query: Query, mask: ItemMask, k: int) -> OneList | None:
        if not query.has_history or query.item_row:
            return None
        return OneList.of(self._source(query.features, mask.as_bool()[None], k).lists)


def sequence_source(model: SequenceModel, index: VectorIndex | None = None) -> RequestSource:
    """Rank the items that come next after a history, as SequenceModel.score does.

    Args:
        index: Of its item vectors; None compares all of them.
    """
    one = OneHistory(model)
    if index is not None:
        return IndexedSource(lambda q: one.query_vector(q.history_tensor, q.times_tensor), index)
    return ScoredSource(lambda query: one.scores(query.history_tensor, query.times_tensor))


class AdaptedSequenceSource:
    """The sequence model, in domains that have an adapter with it."""

    def __init__(self, base: RequestSource, adapted: AdaptedRetriever) -> None:
        self._base = base
        self._adapted = adapted

    def candidates(self, query: Query, mask: ItemMask, k: int) -> OneList | None:
        domain, adapted = query.request.context.domain, self._adapted
        if not adapted.knows(domain):
            return self._base.candidates(query, mask, k)
        own = ScoredSource(lambda query: adapted.score(query.features, [domain])[0])
        return own.candidates(query, mask, k)


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


class ContentSource:
    """Items whose content is similar to an item's, or to the history's.

    Without learned weights, it ranks only appended items for a history: co-occurrence knows nothing
    of them.
    """

    def __init__(
        self,
        neighbours: ContentNeighbours | None,
        similarity: ContentSimilarity | None = None,
        index: VectorIndex | None = None,
    ) -> None:
        self._neighbours = neighbours
        self._similar: RequestSource | None = None
        if similarity is not None:
            one = OneContent(similarity)
            self._similar = (
                ScoredSource(lambda query: one.scores(query.history_tensor))
                if index is None
                else IndexedSource(lambda query: one.query_vector(query.history_tensor), index)
            )

    def candidates(self, query: Query, mask: ItemMask, k: int) -> OneList | None:
        if not query.item_row and self._similar is not None:
            return self._similar.candidates(query, mask, k)
        if self._neighbours is None:
            return None
        if query.item_row:
            found = self._neighbours.nearest(query.item_row, k, mask)
        else:
            found = self._neighbours.appended_like(query.history, k, mask)
        return None if found is None else OneList.of(found)


class PopularSource:
    """What is popular lately; always has a list."""

    def __init__(self, model: Popularity) -> None:
        scores, order = torch.sort(model.item_scores, descending=True, stable=True)
        self._scores, self._by_popularity = scores.numpy(), order.numpy()

    def candidates(self, query: Query, mask: ItemMask, k: int) -> OneList:
        looked_at = 2 * k + len(query.seen)
        while True:
            places = np.flatnonzero(mask.allows(self._by_popularity[:looked_at]))[:k]
            if len(places) == k or looked_at >= len(self._scores):
                return OneList(self._scores[places], self._by_popularity[places])
            looked_at *= 4


def outside_scores(model: Any, num_item_rows: int, query: Query) -> Tensor:
    """Score every item for a request by a model of another package, [N]; appended items -inf."""
    scores: Tensor = model.score(query.features)[0].float()
    missing = num_item_rows - len(scores)
    # A copy: it is written into.
    return functional.pad(scores, (0, missing), value=-torch.inf) if missing else scores.clone()


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
    sources: dict[str, RequestSource] = {names.POPULARITY.source: PopularSource(bundle.popularity)}
    for name, model in bundle.item_weights.items():
        sources[name] = WeightsSource(model)
    neighbours = None
    if bundle.retriever is not None:
        sources[names.TWO_TOWER.source] = TwoTowerSource(
            bundle.retriever, adapters.retrievers.get(names.TWO_TOWER.name)
        )
    if bundle.semantic_ids is not None and bundle.items.content.shape[1]:
        neighbours = ContentNeighbours(
            bundle.semantic_ids, bundle.items.content, bundle.num_released_rows
        )
    if bundle.sequence is not None:
        found = sequence_source(bundle.sequence, bundle.indexes.get(SEQUENCE))
        if (adapted := adapters.retrievers.get(names.SEQUENCE.name)) is not None:
            found = AdaptedSequenceSource(found, adapted)
        sources[names.SEQUENCE.source] = found
    if bundle.ensemble is not None and options.profile == "full":
        index = bundle.indexes.get(ENSEMBLE)
        sources[names.ENSEMBLE.source] = sequence_source(bundle.ensemble, index)
    if bundle.generative is not None and options.profile == "full":
        sources[names.GENERATIVE.source] = HistorySource(
            generative_source(bundle.generative, HOME.beam_width, options.beam_timeout_ms)
        )
    for name, outside in bundle.outside.items():
        sources[name] = ScoredSource(partial(outside_scores, outside.model, bundle.num_item_rows))
    similarity = bundle.content_similarity if learned_content else None
    if neighbours is not None or similarity is not None:
        sources[names.CONTENT.source] = ContentSource(
            neighbours, similarity, bundle.indexes.get(CONTENT_SIMILARITY)
        )
    return sources
