"""Retrieve: where candidates come from. Each source ranks the items that the mask allows.

Axes: k candidates; a batch is always one query, so that a request's scores do not depend on what
else is asked at the time.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recsys.data.item_mask import ItemMask
from recsys.data.top_k import top_k_of_scores
from recsys.models.item_to_item import ItemToItem
from recsys.models.popularity import Popularity
from serving.bundle import Bundle
from serving.content_neighbours import ContentNeighbours
from serving.query import Query
from serving.retriever import Retriever


class CandidateSource(Protocol):
    """Ranks items for a query."""

    def candidates(self, query: Query, mask: ItemMask, k: int) -> Tensor | None:
        """Return item rows best first, [1, k], -1 where short; None if it can say nothing."""
        ...


class TwoTowerSource:
    """Nearest items to the query's vector, or to the item's on surface ``similar``."""

    def __init__(self, retriever: Retriever) -> None:
        self._retriever = retriever

    def candidates(self, query: Query, mask: ItemMask, k: int) -> Tensor | None:
        model, index = self._retriever.model, self._retriever.index
        if query.item_row:
            vector = index.vectors(torch.tensor([query.item_row]))  # [1, D]
        elif query.has_history:
            vector = model.query_vectors(query.features)  # [1, D]
        else:
            return None
        return index.search(vector, k, mask).item_rows


class ItemToItemSource:
    """Neighbours of the history's items."""

    def __init__(self, model: ItemToItem) -> None:
        self._model = model

    def candidates(self, query: Query, mask: ItemMask, k: int) -> Tensor | None:
        if not query.has_history:
            return None
        return top_k_of_scores(self._model.score(query.features), k, mask).item_rows


class ContentSource:
    """Items whose content is like an item's, or appended ones like the history's latest."""

    def __init__(self, neighbours: ContentNeighbours) -> None:
        self._neighbours = neighbours

    def candidates(self, query: Query, mask: ItemMask, k: int) -> Tensor | None:
        if query.item_row:
            rows = self._neighbours.nearest(query.item_row, k, mask)
        else:
            rows = self._neighbours.appended_like(query.history, k, mask)
        return None if rows is None else _padded(rows, k)


class PopularSource:
    """What everyone takes lately; always has a list."""

    def __init__(self, model: Popularity) -> None:
        order = torch.sort(model.item_scores, descending=True, stable=True).indices
        self._by_popularity = order.numpy()

    def candidates(self, query: Query, mask: ItemMask, k: int) -> Tensor:
        return _padded(self._by_popularity[mask.allows(self._by_popularity)][:k], k)


def _padded(rows: NDArray[np.int64], k: int) -> Tensor:
    """Write rows as a list of one query, [1, k]."""
    return torch.from_numpy(np.pad(rows, (0, k - len(rows)), constant_values=-1))[None]


def sources_of(bundle: Bundle) -> dict[str, CandidateSource]:
    """Make the sources that a bundle has the parts for."""
    sources: dict[str, CandidateSource] = {"popular": PopularSource(bundle.popularity)}
    if bundle.item_to_item is not None:
        sources["item_to_item"] = ItemToItemSource(bundle.item_to_item)
    if bundle.retriever is not None:
        sources["two_tower"] = TwoTowerSource(bundle.retriever)
        if bundle.semantic_ids is not None:
            neighbours = ContentNeighbours(
                bundle.semantic_ids, bundle.retriever.content, bundle.num_released_rows
            )
            sources["content"] = ContentSource(neighbours)
    return sources
