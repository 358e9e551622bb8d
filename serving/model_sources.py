"""Sources of the trained models: what a request is encoded to, and the items nearest to that."""

from __future__ import annotations

import torch
from torch import Tensor

from recsys.data.batch import JaggedBatch
from recsys.data.top_k import ItemMask, OneList
from recsys.models.adapted import AdaptedRetriever
from recsys.models.content_similarity import ContentSimilarity
from recsys.models.content_similarity import OneContentHistory as OneContent
from recsys.models.sequence.model import SequenceModel
from recsys.models.sequence.one import OneHistory
from recsys.models.two_tower import OneQuery, TwoTower
from recsys.retrieval.exact import exact_top_k
from recsys.retrieval.faiss_index import FaissIndex
from recsys.retrieval.sources import IndexedSource, Ranking, ScoredSource, Source, SourceQuery


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
        vector = adapted.query_vectors(query.features, domain)
        if self._index is not None and adapted.shares_items(domain):
            return self._index.search_one(vector[0], k, mask)
        return OneList.of(exact_top_k(vector, adapted.item_vectors(domain), k, mask))


def two_tower_source(model: TwoTower, index: FaissIndex) -> IndexedSource:
    """Rank the items nearest to the query's vector, or to the item's own."""
    one = OneQuery(model)
    return IndexedSource(
        model.query_vectors,
        lambda: index,
        encode_one=lambda query: one.query_vector(
            query.history_tensor, query.categorical, query.event_tensors[2]
        ),
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
            encode_one=lambda query: one.query_vector(*query.event_tensors),
            item_vectors=model.all_item_vectors,
        )
    return IndexedSource(
        model.query_vectors,
        lambda: index,
        encode_one=lambda query: one.query_vector(*query.event_tensors),
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
