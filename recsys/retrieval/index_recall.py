"""How much of the exact top k an index finds, and the effort that finds enough.

Axes: B queries, N item rows (row 0 included), D width, k list length.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from recsys.data.top_k import NO_ROW, TopK
from recsys.retrieval.exact import exact_top_k
from recsys.retrieval.faiss_index import FaissIndex, build_index
from recsys.retrieval.faiss_library import FaissIndexConfig

MIN_RECALL = 0.99
FIRST_EFFORT = 4
"""Lists that the first attempt looks into."""
MAX_SHARE = 1 / 8
"""Most of an index's lists that a search looks into: vectors that need more have no
neighbourhoods, as those of a model that has learned nothing."""
ALLOWED_LISTS = 64
"""Lists that a search may look into at any share: they take less than a millisecond."""


def tuned_index(vectors: Tensor, queries: Tensor) -> tuple[FaissIndex, float]:
    """Index vectors for lists of 100 by the fewest probed lists that suffice; and its recall.

    Args:
        vectors: [N, D], finite; row 0 is padding.
        queries: [B, D], like those it will serve; some hundreds are enough.
    """
    vectors = vectors.contiguous()
    index = build_index(vectors, FaissIndexConfig(kind="ivf_sq8", effort=FIRST_EFFORT))
    most = max(ALLOWED_LISTS, int(MAX_SHARE * index.max_effort))
    k = min(100, len(vectors) - 1)
    return index, tune_effort(index, queries, vectors, target=MIN_RECALL, k=k, most=most)


def tune_effort(
    index: FaissIndex,
    queries: Tensor,
    items: Tensor,
    *,
    target: float = 0.99,
    k: int = 100,
    most: int | None = None,
) -> float:
    """Raise the index's effort by doubling until its recall reaches the target.

    Args:
        queries: [B, D], like those it will serve; a thousand are enough.
        items: The exact vectors, [N, D].
    """
    truth = exact_top_k(queries, items, k)
    most = index.max_effort if most is None else min(most, index.max_effort)
    while True:
        recall = overlap(index.search(queries, k), truth)
        if recall >= target or index.effort >= most:
            return recall
        index.effort = min(2 * index.effort, most)


def overlap(found: TopK, truth: TopK) -> float:
    """Compute the share of the true lists that was found, mean over queries."""
    shared = [
        len(np.intersect1d(ours[ours != NO_ROW], theirs)) / max(1, int((theirs != NO_ROW).sum()))
        for ours, theirs in zip(found.item_rows.numpy(), truth.item_rows.numpy(), strict=True)
    ]
    return float(np.mean(shared))
