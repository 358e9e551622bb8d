"""Similar items by content: candidates share a prefix of codes, ordered by cosine.

Codes are coarse to fine, so items that share a prefix are a small part of the catalogue, found by
two binary searches; content embeddings order them. Only text is needed, so an item that was just
appended has neighbours and is one.

Axes: N item rows, M items with an ID, A appended items with one, L levels, F width of content
embeddings, P items of a prefix, S latest items of a history.
"""

from __future__ import annotations

from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from recsys.data.top_k import ItemMask, TopK, no_items
from recsys.semantic_ids.codes import NO_CODE, id_keys
from serving.bundle.semantic_ids import ItemSemanticIds

Rows = NDArray[np.int64]
NUM_SEEDS = 10
"""Latest items of a history that appended items are compared with."""


class ContentNeighbours:
    """Finds similar items; safe to share between threads."""

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
