"""Exact inner-product search on the GPU that never writes the scores to memory.

Two passes. The first multiplies queries with items tile by tile and keeps the best score of each
group of 32 neighbouring rows, a 32nd of the scores. The best k items are in the k groups with the
best maxima: an item of any other group is beaten by one item of each of those k. The second pass
scores these groups' items again, in float32 and one order of additions, and ranks them.

Axes: B queries, N item rows (row 0 is padding), D width, W = ceil(N / 32) mask words.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recsys.data.top_k import GROUP, NO_ROW, ItemMask, TopK

MAX_ITEM_ROWS = 1 << 32
MAX_DIM = 512
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_MAXIMA = 1 << 29
"""Group maxima in memory at a time (2 GiB); more queries are worked off in parts."""
SELECTED_AT_ONCE = 1 << 12
"""Columns that are ranked directly; more are narrowed down by maxima of maxima first."""
PROGRAMS_PER_MULTIPROCESSOR = 2
MIN_SPARE_GROUPS = 12
MAX_K = 1_024


def mask_words(mask: ItemMask | None, num_item_rows: int, device: torch.device | str) -> Tensor:
    """Pack a mask as the kernel reads it, [W] int32; None allows all but row 0."""
    num_words = -(-num_item_rows // GROUP)
    if mask is None:
        words = torch.full((num_words,), -1, dtype=torch.int32, device=device)
        words[0] = -2
        if rest := num_item_rows % GROUP:
            words[-1] &= (1 << rest) - 1
        return words
    if mask.num_item_rows != num_item_rows:
        raise ValueError(
            f"the item mask covers {mask.num_item_rows} item rows, the catalogue has "
            f"{num_item_rows}; build the mask from the same bundle"
        )
    packed, known = torch.zeros(num_words * 4, dtype=torch.uint8), mask.bytes
    packed[: len(known)] = torch.from_numpy(known)
    return packed.view(torch.int32).to(device)


def fused_top_k(
    queries: Tensor,
    items: Tensor,
    k: int,
    words: Tensor | None = None,
    *,
    halves: Tensor | None = None,
) -> TopK:
    """Find the k allowed items with the greatest inner product for each query.

    Scores are float32 sums of the inputs' products. The lists are those of a float64 ranking, up
    to items whose scores differ by less than float32 rounding.

    Args:
        queries: [B, D], finite.
        items: [N, D] contiguous fp32, bf16 or fp16, on the queries' device and of their type.
        words: Which rows may be shown, from `mask_words`: [W] for all queries, or [B, W].
        halves: Half-precision copies of fp32 items, [N, D], by which groups are chosen: half of
            the memory traffic.
    """
    _check(queries, items, k)
    if halves is not None and (halves.shape != items.shape or not halves.is_contiguous()):
        raise ValueError(
            f"halves must be contiguous copies of the items, {tuple(items.shape)}, got "
            f"{tuple(halves.shape)} with strides {halves.stride()}"
        )
    if words is None:
        words = mask_words(None, items.shape[0], items.device)
    _check_words(words, queries, items)
    num_words = words.shape[-1]
    part = max(1, MAX_MAXIMA // num_words)
    found = [
        _search(
            queries[begin : begin + part].contiguous(),
            items,
            k,
            words if words.ndim == 1 else words[begin : begin + part].contiguous(),
            halves,
        )
        for begin in range(0, len(queries), part)
    ]
    if len(found) == 1:
        return found[0]
    if not found:
        empty = torch.empty(0, k, device=items.device)
        return TopK(empty, empty.long())
    return TopK(torch.cat([one.scores for one in found]), torch.cat([one[1] for one in found]))


def _search(
    queries: Tensor, items: Tensor, k: int, words: Tensor, halves: Tensor | None = None
) -> TopK:
    from recsys.kernels.topk_search.triton_kernel import group_maxima, score_groups, select

    programs = 8
    if items.is_cuda:
        properties = torch.cuda.get_device_properties(items.device)
        programs = PROGRAMS_PER_MULTIPROCESSOR * properties.multi_processor_count
    # The two passes round differently, so a few groups more than k are looked at.
    spare = max(MIN_SPARE_GROUPS, k // 8)
    if halves is None:
        maxima = group_maxima(queries, items, words, programs=programs)
    else:
        # A query's scale changes no order; this one suits half precision.
        scale = queries.abs().amax(1, keepdim=True).clamp_min(1e-30)
        maxima = group_maxima((queries / scale).to(halves.dtype), halves, words, programs=programs)
        spare = max(2 * MIN_SPARE_GROUPS, k // 4)
    num_groups = -(-items.shape[0] // GROUP)
    groups = best_groups(maxima, min(num_groups, k + spare))
    scores = score_groups(queries, items, words, groups)  # [B, 32 C]
    taken = min(k, items.shape[0])
    rows, scores = select(scores, taken, groups, width=items.shape[0])
    # Rows are in ascending order, so a stable sort leaves ties with the lower row first.
    scores, order = scores.sort(dim=1, descending=True, stable=True)
    rows = rows.gather(1, order).masked_fill(scores == -torch.inf, NO_ROW)
    if short := k - taken:
        scores = torch.nn.functional.pad(scores, (0, short), value=-torch.inf)
        rows = torch.nn.functional.pad(rows, (0, short), value=NO_ROW)
    return TopK(scores, rows)


def best_groups(maxima: Tensor, count: int) -> Tensor:
    """Find the groups with the greatest maxima; ties go to the lower group.

    Many groups are narrowed down through maxima of 32 maxima, by the same argument that lets the
    items be narrowed down through groups.

    Args:
        maxima: [B, W] float32.

    Returns:
        Group numbers in ascending order, [B, count] int64.
    """
    from recsys.kernels.topk_search.triton_kernel import select

    width = maxima.shape[1]
    if width <= max(SELECTED_AT_ONCE, GROUP * count):
        return select(maxima, count)[0]
    if rest := -width % GROUP:
        maxima = torch.nn.functional.pad(maxima, (0, rest), value=-torch.inf)
    outer = best_groups(maxima.view(len(maxima), -1, GROUP).amax(dim=2), count)
    return select(maxima, count, outer)[0]


def _check(queries: Tensor, items: Tensor, k: int) -> None:
    if items.ndim != 2 or not 0 < items.shape[0] < MAX_ITEM_ROWS or not items.is_contiguous():
        raise ValueError(
            f"items must be contiguous [N, D] with 1 <= N < {MAX_ITEM_ROWS}, got "
            f"{tuple(items.shape)} with strides {items.stride()}"
        )
    if queries.ndim != 2 or queries.shape[1] != items.shape[1]:
        raise ValueError(
            f"queries must be [B, {items.shape[1]}] like the items, got {tuple(queries.shape)}"
        )
    if not 1 <= items.shape[1] <= MAX_DIM:
        raise ValueError(f"vectors must be 1 to {MAX_DIM} wide, got {items.shape[1]}")
    if queries.dtype != items.dtype or items.dtype not in DTYPES:
        raise ValueError(
            f"queries and items must be of one type of {[str(one) for one in DTYPES]}, got "
            f"{queries.dtype} and {items.dtype}; cast the queries to the index's type"
        )
    if queries.device != items.device:
        raise ValueError(f"queries are on {queries.device}, items on {items.device}; move one")
    if not 1 <= k <= MAX_K:
        raise ValueError(
            f"k, the list length, must be 1 to {MAX_K}, got {k}; exact_top_k has no limit"
        )


def _check_words(words: Tensor, queries: Tensor, items: Tensor) -> None:
    num_words = -(-items.shape[0] // GROUP)
    shapes = ((num_words,), (len(queries), num_words))
    if words.dtype != torch.int32 or tuple(words.shape) not in shapes:
        raise ValueError(
            f"the mask words must be int32 of shape {shapes[0]} or {shapes[1]}, got {words.dtype} "
            f"{tuple(words.shape)}; make them with mask_words"
        )
    if words.device != items.device:
        raise ValueError(f"the mask words are on {words.device}, items on {items.device}; move one")
