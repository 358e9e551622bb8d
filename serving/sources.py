"""The sources of a bundle: where candidates come from, see ``recsys.retrieval.sources``.

Axes: k candidates; requests are ranked one by one, so that their scores do not depend on other
requests.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recsys.data.batch import JaggedBatch
from recsys.data.top_k import ItemMask, OneList
from recsys.models import names
from recsys.models.adapted.model import AdaptedRetriever
from recsys.models.content_similarity import ContentSimilarity
from recsys.models.content_similarity import OneContentHistory as OneContent
from recsys.models.sequence.model import SequenceModel
from recsys.models.sequence.one import OneHistory
from recsys.models.two_tower import OneQuery, TwoTower
from recsys.retrieval.exact import exact_top_k
from recsys.retrieval.faiss_index import FaissIndex
from recsys.retrieval.generated import timed_source
from recsys.retrieval.sources import (
    IndexedSource,
    PopularSource,
    Ranking,
    ScoredSource,
    Source,
    SourceQuery,
    WeightsSource,
    one_by_one,
)
from serving.bundle.adapters import NO_ADAPTERS, Adapters
from serving.bundle.content_neighbours import ContentNeighbours
from serving.bundle.history_models import CONTENT_SIMILARITY, ENSEMBLE, SEQUENCE
from serving.bundle.load import Bundle
from serving.settings import ServingOptions
from serving.surfaces import HOME


class AdaptedSource(Source):
    """A retriever's lists; a query of a domain with an adapter is encoded by it."""

    def __init__(self, base: Source, adapted: AdaptedRetriever, index: FaissIndex | None) -> None:
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


def two_tower_source(model: TwoTower, index: FaissIndex) -> IndexedSource:
    """Rank the items nearest to the query's vector, or to the item's own."""
    one = OneQuery(model)
    return IndexedSource(
        model.query_vectors,
        lambda: index,
        encode_one=lambda query: one.query_vector(query.history_tensor, query.categorical),
        item_vector=lambda row: index.vectors(torch.tensor([row]))[0],
    )


def sequence_source(model: SequenceModel, index: FaissIndex | None = None) -> Source:
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


def similarity_source(model: ContentSimilarity, index: FaissIndex | None = None) -> Source:
    """Rank the items whose content is similar to the history's; ``index`` as above."""
    one = OneContent(model)
    if index is None:
        return ScoredSource(model.score, score_one=lambda query: one.scores(query.history_tensor))
    return IndexedSource(
        model.query_vectors,
        lambda: index,
        encode_one=lambda query: one.query_vector(query.history_tensor),
    )


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
        sources[names.TWO_TOWER.source] = two_tower_source(
            bundle.retriever.model, bundle.retriever.index
        )
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
        sources[names.GENERATIVE.source] = timed_source(
            bundle.generative.model,
            bundle.generative.trie,
            HOME.beam_width,
            options.beam_timeout_ms,
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
