"""Exact top-k by inner product: the reference for every index, fast enough for small catalogues.

Ties follow `recsys.data.top_k`: score descending, then item_row ascending; row 0 is never
returned. Works where its tensors are; on CUDA the scores are never written to memory
(``kernels/topk_search``), unless a call says how many may be.

Axes: B queries, N item rows (row 0 included), D width, k list length.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recsys.data.top_k import NO_ROW, ItemMask, TopK, allowed_rows, no_items, select_top_k
from recsys.kernels.choice import runs
from recsys.kernels.topk_search.op import DTYPES, MAX_DIM, MAX_K, fused_top_k, mask_words

FEW_QUERIES, QUERIES_AT_ONCE = 8, 64
SELECTIVE = 32
"""A GPU fetches the allowed items first where they are fewer than one in this many."""


def exact_top_k(
    queries: Tensor,
    items: Tensor,
    k: int,
    mask: ItemMask | None = None,
    *,
    max_scores: int | None = None,
) -> TopK:
    """Find the k items with the greatest inner product for each query.

    Scores are float32 for inputs of any type, and each is rounded as this device's matrix
    product rounds it: equal items tie exactly only where it rounds them equally.

    Args:
        queries: [B, D], finite.
        items: [N, D], on the device of the queries; row 0 is skipped.
    """
    check_queries(queries, items.shape[1])
    if max_scores is None and kernel_takes(queries, items, k) and not is_selective(mask):
        return fused_top_k(queries, items, k, mask_words(mask, items.shape[0], items.device))
    allowed = allowed_rows(mask, items.shape[0]).to(items.device)
    # Few allowed items are best gathered first, many best blanked out after. Measured: fetching
    # an item by its row costs as much as 20 products with it, walking past it as much as 4, or 60
    # where it has to be converted.
    columns: Tensor | None = None
    walk = 4 if items.dtype == torch.float32 else 60
    if int(allowed.sum()) * (20 + len(queries)) < len(allowed) * (walk + len(queries)):
        columns = allowed.nonzero().squeeze(1)
        items, allowed = items.index_select(0, columns), allowed[columns]

    if max_scores is None:
        max_scores = 1 << 23 if queries.device.type == "cpu" else 1 << 28
    item_chunk = max(1, min(items.shape[0], max_scores))
    query_chunk = max(1, max_scores // item_chunk)
    if query_chunk < min(len(queries), FEW_QUERIES):
        # Of ten million items each part is fetched from memory once for all these queries.
        query_chunk = max(1, min(len(queries), QUERIES_AT_ONCE, max_scores))
        item_chunk = max(1, max_scores // query_chunk)
    best = no_items(len(queries), k, queries.device)
    for begin in range(0, len(queries), query_chunk):
        part = queries[begin : begin + query_chunk].float()
        lists = no_items(len(part), k, queries.device)
        for first in range(0, items.shape[0], item_chunk):
            scores = part @ items[first : first + item_chunk].float().T  # [b, n]
            scores.masked_fill_(~allowed[first : first + item_chunk], -torch.inf)
            found = select_top_k(scores, k)
            rows = (found.item_rows + first).masked_fill(found.item_rows == NO_ROW, NO_ROW)
            lists = _merge(lists, TopK(found.scores, rows), k)
        best.scores[begin : begin + query_chunk] = lists.scores
        best.item_rows[begin : begin + query_chunk] = lists.item_rows

    if columns is not None and len(columns):
        rows = columns[best.item_rows.clamp_min(0)]
        best = TopK(best.scores, rows.masked_fill(best.item_rows == NO_ROW, NO_ROW))
    return best


def kernel_takes(queries: Tensor, items: Tensor, k: int) -> bool:
    """Return whether the search can run without scores in memory."""
    alike = runs("topk_search", queries) and queries.is_cuda
    alike = alike and queries.device == items.device and queries.dtype == items.dtype
    fits = 1 <= k <= MAX_K and 1 <= items.shape[1] <= MAX_DIM and len(queries) > 0
    there = alike and runs("topk_search", items)
    return there and fits and items.dtype in DTYPES and items.is_contiguous()


def is_selective(mask: ItemMask | None) -> bool:
    """Return whether fetching the allowed items takes less than walking past all."""
    return mask is not None and mask.count() * SELECTIVE < mask.num_item_rows


def _merge(lower: TopK, upper: TopK, k: int) -> TopK:
    """Best k of two rankings; a stable sort keeps ties right where all of ``lower`` is first."""
    scores, order = torch.cat([lower.scores, upper.scores], dim=1).sort(
        dim=1, descending=True, stable=True
    )
    rows = torch.cat([lower.item_rows, upper.item_rows], dim=1).gather(1, order)
    return TopK(scores[:, :k], rows[:, :k])


def check_queries(queries: Tensor, dim: int) -> None:
    """Refuse query vectors that no index can search for."""
    bad = ~torch.isfinite(queries).all(dim=1)
    if bad.any():
        raise ValueError(
            f"query {int(bad.nonzero()[0])} holds NaN or infinity; query vectors must be finite. "
            "Check the query tower's inputs and weights"
        )
