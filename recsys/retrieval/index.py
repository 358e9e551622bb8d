"""One way to search vectors of any model on any device, and how much of the exact top k it finds.

Sequence, two-tower and content vectors are searched through `VectorIndex`: exactly while that
is faster, by IVF lists beyond on a CPU, and on a GPU exactly while they fit its
memory. A GPU compares ten million vectors with 64 queries in .6 ms, and IVF-SQ8 takes more of its
memory (8-bit codes, ids and half-precision copies) than the half-precision vectors alone, so what
does not fit there is searched on the host.

Axes: B queries, N item rows (row 0 included), D width, k list length.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from recsys.data.top_k import NO_ROW, ItemMask, OneList, TopK, best_of_one
from recsys.kernels.one_query.op import nearest
from recsys.kernels.topk_search.op import fused_top_k, mask_words
from recsys.retrieval.exact import check_queries, exact_top_k, is_selective, kernel_takes
from recsys.retrieval.faiss_index import FaissIndex, build_index
from recsys.retrieval.faiss_library import FaissIndexConfig
from recsys.retrieval.sources import VectorIndex

GPU_SHARE = 0.5
"""Share of a GPU's free memory for item vectors; models and group maxima need the rest."""

LEAST_SHARE = 1e-2
"""Least ratio of each vector's largest number to the largest of all, for half precision to
tell the shortest vectors' scores apart."""


class ExactIndex:
    """All vectors on one device, each compared with every query."""

    def __init__(self, vectors: Tensor, *, halves: bool = False) -> None:
        """Take [N, D]; half precision is for GPUs, whose kernels add up in float32.

        Args:
            vectors: [N, D]; row 0 is padding.
        """
        # A sum over rows shows any that is not finite, without a copy of all of them.
        bad = ~torch.isfinite(vectors[1:].sum(1, dtype=torch.float32))
        if bad.any():
            raise ValueError(
                f"the vector of item row {int(bad.nonzero()[0]) + 1} holds NaN or infinity; check "
                "the item tower's inputs and weights"
            )
        self._vectors = vectors.detach().contiguous()
        self._halves = copy_halves(self._vectors) if halves and vectors.is_cuda else None

    @property
    def dim(self) -> int:
        return self._vectors.shape[1]

    @property
    def num_item_rows(self) -> int:
        return len(self._vectors)

    @property
    def device(self) -> torch.device:
        return self._vectors.device

    def search(self, queries: Tensor, k: int, mask: ItemMask | None = None) -> TopK:
        """Compare every item; lists come back on the queries' device.

        Args:
            queries: [B, D], finite; rounded to the vectors' type.
        """
        there = queries.detach().to(self.device, self._vectors.dtype)
        if kernel_takes(there, self._vectors, k) and not is_selective(mask):
            # On the host, where a query mostly comes from, it is checked without a wait.
            check_queries(queries, self.dim)
            words = self._every if mask is None else self._words(mask)
            found = fused_top_k(there, self._vectors, k, words, halves=self._halves)
        else:
            found = exact_top_k(there, self._vectors, k, mask)
        return TopK(*(part.to(queries.device) for part in found))

    @cached_property
    def _every(self) -> Tensor:
        return self._words(None)

    def _words(self, mask: ItemMask | None) -> Tensor:
        return mask_words(mask, self.num_item_rows, self.device)

    def search_one(self, query: Tensor, k: int, mask: ItemMask) -> OneList:
        """Compare every item with one query [D] on the host."""
        if self.device.type != "cpu" or self._vectors.dtype != torch.float32:
            return OneList.of(self.search(query[None], k, mask))
        if (found := nearest(self._vectors, query, mask, k)) is not None:
            return found
        if query.shape != (self.dim,) or not math.isfinite(float(query.sum())):
            check_queries(query[None], self.dim)
        scores = self._vectors @ query
        mask.blank(scores.numpy())
        return best_of_one(scores, k)


def index_of(vectors: Tensor) -> VectorIndex:
    """Choose how vectors [N, D] are searched where they are, by their number and free memory."""
    if vectors.is_cuda:
        free, _ = torch.cuda.mem_get_info(vectors.device)
        # The vectors' own memory counts as free.
        room = int(GPU_SHARE * free) + vectors.nbytes
        dtype, halves = gpu_layout(len(vectors), vectors.shape[1], room)
        if dtype is not None:
            return ExactIndex(vectors.to(dtype), halves=halves)
    if FaissIndexConfig().kind_for(len(vectors)) == "flat":
        return ExactIndex(vectors.detach().cpu().float())
    return build_index(vectors)


def gpu_layout(num_rows: int, dim: int, num_bytes: int) -> tuple[torch.dtype | None, bool]:
    """Choose the type in which vectors fit this many bytes, and whether to keep half copies too.

    None where nothing fits. Half precision alone misses items by its rounding.
    """
    for dtype, halves in ((torch.float32, True), (torch.float32, False), (torch.float16, False)):
        width = dtype.itemsize + (torch.float16.itemsize if halves else 0)
        if num_rows * dim * width <= num_bytes:
            return dtype, halves
    return None, False


def copy_halves(vectors: Tensor) -> Tensor | None:
    """Copy vectors [N, D] in half precision, scaled to it; None where it cannot hold them."""
    longest = vectors[1:].abs().amax(1)
    largest = longest.amax()
    if vectors.dtype != torch.float32 or not float(largest) > 0:
        return None
    if float(longest[longest > 0].amin() / largest) < LEAST_SHARE:
        return None
    # A power of two changes no order and rounds nothing.
    scale = 2.0 ** -math.ceil(math.log2(float(largest)))
    return (vectors * scale).half()


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
