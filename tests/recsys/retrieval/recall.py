"""How much of the exact top k an index finds."""

from __future__ import annotations

from torch import Tensor

from recsys.data.top_k import ItemMask
from recsys.retrieval.exact import exact_top_k
from recsys.retrieval.index import overlap
from recsys.retrieval.sources import VectorIndex


def measure_recall(
    index: VectorIndex, queries: Tensor, items: Tensor, k: int = 100, mask: ItemMask | None = None
) -> float:
    """Share of the exact top k that the index finds, mean over queries [B, D].

    Items of equal score at the end of a list count as missed if the index prefers another.
    """
    return overlap(index.search(queries, k, mask), exact_top_k(queries, items, k, mask))
