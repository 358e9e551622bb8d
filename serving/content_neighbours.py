"""Items with content like an item's, or a history's, found by semantic IDs.

Axes: k candidates, M items with an ID, A appended items with one, F width of content embeddings,
P items of a prefix, S latest items of a history.
"""

from __future__ import annotations

from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from recsys.data.batch import JaggedBatch
from recsys.data.top_k import ItemMask, OneList, TopK, no_items
from recsys.retrieval.sources import Ranking, Source, SourceQuery, one_by_one
from recsys.semantic_ids.codes import NO_CODE, id_keys
from serving.bundle.semantic_ids import ItemSemanticIds

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


class ContentNeighbours:
    """Finds items with content like another's: they share a prefix of codes, ordered by cosine.

    Codes are coarse to fine, so two binary searches find the small part of the catalogue that
    shares a prefix. An item that was just appended has neighbours and is one. Threads may share it.
    """

    def __init__(
        self, semantic_ids: ItemSemanticIds, content: Tensor, num_released_rows: int
    ) -> None:
        """Sort the IDs.

        Args:
            num_released_rows: Item rows of the bundle; later ones were appended by deltas.
        """
        codes = semantic_ids.content_codes
        sizes = semantic_ids.ids.level_sizes[: codes.shape[1]]
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
