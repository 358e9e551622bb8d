"""Sources of the trained models, and of items whose content is similar by their semantic IDs.

Axes: k candidates, N item rows, L levels, M items with an ID, A appended items with one, F width of
content embeddings, P items of a prefix, S latest items of a history.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from recsys.data.batch import JaggedBatch
from recsys.data.top_k import ItemMask, OneList, TopK, no_items
from recsys.kernels.one_query.op import Step
from recsys.models.adapted import AdaptedRetriever
from recsys.models.content_similarity import ContentSimilarity
from recsys.models.content_similarity import OneContentHistory as OneContent
from recsys.models.names import MODELS
from recsys.models.sequence.model import SequenceModel
from recsys.models.sequence.one import OneHistory
from recsys.models.two_tower import OneQuery, TwoTower
from recsys.retrieval.exact import exact_top_k
from recsys.retrieval.faiss_index import FaissIndex
from recsys.retrieval.sources import (
    IndexedSource,
    PositiveSource,
    Ranking,
    ScoredSource,
    Source,
    SourceQuery,
    one_by_one,
)
from recsys.semantic_ids.codes import NO_CODE, id_keys


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

    def step(self, query: SourceQuery) -> Step | None:
        return None if self._adapted.knows(query.domain) else self._base.step(query)


def positive_sources(sources: Mapping[str, Source]) -> dict[str, Source]:
    """Hide negative events from the sources, by model, that read no types."""
    reading = {one.name for one in MODELS if one.reads_types}
    return {
        name: source if name in reading else PositiveSource(source)
        for name, source in sources.items()
    }


def two_tower_source(model: TwoTower, index: FaissIndex) -> IndexedSource:
    """Rank the items nearest to the query's vector, or to the item's own."""
    one = OneQuery(model)

    def step_one(query: SourceQuery) -> Step | None:
        if (vectors := index.compared) is None:
            return None
        rows, _, types = query.event_tensors
        return one.step(rows, query.categorical, types, vectors)

    return IndexedSource(
        model.query_vectors,
        lambda: index,
        encode_one=lambda query: one.query_vector(
            query.history_tensor, query.categorical, query.event_tensors[2]
        ),
        item_vector=lambda row: index.vectors(torch.tensor([row]))[0],
        step_one=step_one,
    )


def sequence_source(model: SequenceModel, index: FaissIndex | None = None) -> Source:
    """Rank the items that come next after a history.

    Args:
        index: Of the model's item vectors; None compares all of them.
    """
    one = OneHistory(model)
    if index is None:
        vectors = cache(lambda: model.all_item_vectors().detach().contiguous())
        return ScoredSource(
            model.score,
            encode_one=lambda query: one.query_vector(*query.event_tensors),
            item_vectors=vectors,
            step_one=lambda query: one.step(*query.event_tensors, vectors()),
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
        return ScoredSource(
            model.score,
            list_one=lambda query, mask, k: one.best(query.history_tensor, mask, k),
            step_one=lambda query: one.step(query.history_tensor),
        )
    return IndexedSource(
        model.query_vectors,
        lambda: index,
        encode_one=lambda query: one.query_vector(query.history_tensor),
    )


Rows = NDArray[np.int64]
NUM_SEEDS = 10
"""Latest items of a history that appended items are compared with."""


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

    def step(self, query: SourceQuery) -> Step | None:
        return None if self._similar is None else self._similar.step(query)


class ContentNeighbours:
    """Finds items with content like another's: they share a prefix of codes, ordered by cosine.

    Codes are coarse to fine, so two binary searches find the small part of the catalogue that
    shares a prefix. An item that was just appended has neighbours and is one. Threads may share it.
    """

    def __init__(
        self, codes: Tensor, level_sizes: Sequence[int], content: Tensor, num_released_rows: int
    ) -> None:
        """Sort the IDs.

        Args:
            codes: By item row, [N, L]; -1 without an ID.
            content: Content embeddings, [N, F].
            num_released_rows: Item rows of the release; later ones were appended.
        """
        sizes = level_sizes[: codes.shape[1]]
        rows = (codes[:, 0] != NO_CODE).nonzero().flatten()
        keys, order = id_keys(codes[rows], sizes).sort()
        self._keys, self._item_rows = keys.numpy(), rows[order].numpy()  # [M] each
        self._place = np.full(len(codes), -1)
        self._place[self._item_rows] = np.arange(len(rows))
        self._strides = [prod(sizes[level:]) for level in range(len(sizes), 0, -1)]
        self._content = content
        self._first_codes = codes[:, 0].numpy()
        self._appended = np.sort(self._item_rows[self._item_rows >= num_released_rows])  # [A]

    def nearest(self, item_row: int, k: int, mask: ItemMask) -> TopK | None:
        """List the k best allowed items that share the first code, [1, k]; None without an ID.

        They share the longest prefix with k items, else the first code, and are sorted by cosine,
        then by item row.
        """
        place = self._place[item_row]
        if place < 0:
            return None
        rows = self._item_rows[:0]
        for stride in self._strides:
            rows = self._behind(int(self._keys[place]), stride)
            rows = rows[(rows != item_row) & mask.allows(rows)]
            if len(rows) >= k:
                break
        return self._order_by_cosine(np.sort(rows), np.array([item_row]), k)

    def appended_like(self, history: Rows, k: int, mask: ItemMask) -> TopK | None:
        """List the k best allowed appended items that share a first code with the latest history.

        Sorted by the largest cosine with these; None where nothing was appended.
        """
        if len(self._appended) == 0:
            return None
        seeds = np.unique(history[-NUM_SEEDS:])
        seeds = seeds[self._first_codes[seeds] != NO_CODE]
        rows = self._appended[np.isin(self._first_codes[self._appended], self._first_codes[seeds])]
        return self._order_by_cosine(rows[mask.allows(rows)], seeds, k) if len(seeds) else None

    def _order_by_cosine(self, rows: Rows, seeds: Rows, k: int) -> TopK:
        """Order ascending rows by their largest cosine with any seed, equals by item row."""
        listed = no_items(1, k)
        if len(rows) == 0:
            return listed
        own = functional.normalize(self._content[torch.from_numpy(seeds)], dim=1)  # [S, F]
        found = torch.from_numpy(rows)
        cosines = functional.normalize(self._content[found], dim=1) @ own.T  # [P, S]
        scores, order = cosines.amax(1).sort(descending=True, stable=True)
        number = min(k, len(rows))
        listed.scores[0, :number] = scores[:number]
        listed.item_rows[0, :number] = found[order[:number]]
        return listed

    def _behind(self, key: int, stride: int) -> Rows:
        """Find the item rows of a prefix: the same key after division by ``stride``."""
        first = key // stride * stride
        begin, end = np.searchsorted(self._keys, [first, first + stride])
        return self._item_rows[begin:end]
