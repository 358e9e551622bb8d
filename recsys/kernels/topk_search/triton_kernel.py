"""Triton kernels of the exact search: group maxima by matrix product, then a few exact scores.

Axes: B queries, N item rows, D width, G groups of 32 neighbouring item rows, C chosen groups.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from recsys.data.top_k import GROUP
from recsys.kernels.choice import config_for, shape_class


@triton.jit
def _split(x):
    """Write rows as p * (high + low / 2048) with fp16 high and low and a power of two p a row."""
    bits = tl.max(tl.abs(x), axis=1).to(tl.int32, bitcast=True) & 0x7F800000
    bits = tl.where((bits == 0) | (bits == 0x7F800000), 0x3F800000, bits)
    power = bits.to(tl.float32, bitcast=True)
    scaled = x / power[:, None]
    high = scaled.to(tl.float16)
    low = ((scaled - high.to(tl.float32)) * 2048.0).to(tl.float16)
    return high, low, power


@triton.jit
def _group_maxima(
    queries,
    items,
    words,
    maxima,
    num_queries,
    num_items,
    num_groups,
    padded_groups,
    word_stride,
    dim: tl.constexpr,
    block_d: tl.constexpr,
    block_q: tl.constexpr,
    block_n: tl.constexpr,
    split: tl.constexpr,
    shared_mask: tl.constexpr,
    widen: tl.constexpr,
    stages: tl.constexpr,
):
    """Score block_q queries with every item tile of this program, keep the best of each group."""
    groups: tl.constexpr = block_n // 32
    q_rows = tl.program_id(0) * block_q + tl.arange(0, block_q)
    d = tl.arange(0, block_d)
    inside = (q_rows[:, None] < num_queries) & (d[None, :] < dim)
    q = tl.load(queries + q_rows.to(tl.int64)[:, None] * dim + d[None, :], mask=inside, other=0.0)
    if split:
        q, q_low, q_power = _split(q)
    if widen:
        q = q.to(tl.float32)
    bit = tl.arange(0, 32)
    tiles = tl.cdiv(padded_groups, groups)
    for tile in tl.range(tl.program_id(1), tiles, tl.num_programs(1), num_stages=stages):
        n_rows = tile * block_n + tl.arange(0, block_n)
        x = tl.load(
            items + n_rows.to(tl.int64)[:, None] * dim + d[None, :],
            mask=(n_rows[:, None] < num_items) & (d[None, :] < dim),
            other=0.0,
        )
        if widen:
            x = x.to(tl.float32)
        if split:
            x, x_low, x_power = _split(x)
            scores = tl.dot(q, tl.trans(x))  # [block_q, block_n] fp32
            small = tl.dot(q, tl.trans(x_low))
            small = tl.dot(q_low, tl.trans(x), small)
            scores = (scores + small * (1.0 / 2048)) * x_power[None, :]
        else:
            scores = tl.dot(q, tl.trans(x))
        scores = tl.reshape(scores, (block_q, groups, 32))
        g = tile * groups + tl.arange(0, groups)
        if shared_mask:
            shared = tl.load(words + g, mask=g < num_groups, other=0)
            allowed = ((shared[:, None] >> bit[None, :]) & 1)[None, :, :]
        else:
            own = tl.load(
                words + q_rows.to(tl.int64)[:, None] * word_stride + g[None, :],
                mask=(q_rows[:, None] < num_queries) & (g[None, :] < num_groups),
                other=0,
            )
            allowed = (own[:, :, None] >> bit[None, None, :]) & 1
        best = tl.max(tl.where(allowed != 0, scores, float("-inf")), axis=2)
        if split:
            best = best * q_power[:, None]
        tl.store(
            maxima + q_rows.to(tl.int64)[:, None] * padded_groups + g[None, :],
            best,
            mask=(q_rows[:, None] < num_queries) & (g[None, :] < padded_groups),
        )


@triton.jit
def _score_groups(
    queries,
    items,
    words,
    chosen,
    scores,
    num_items,
    num_chosen,
    word_stride,
    dim: tl.constexpr,
    block_d: tl.constexpr,
    block_c: tl.constexpr,
):
    """Score the items of block_c chosen groups of one query."""
    query = tl.program_id(0).to(tl.int64)
    places = tl.program_id(1) * block_c + tl.arange(0, block_c)
    there = places < num_chosen
    g = tl.load(chosen + query * num_chosen + places, mask=there, other=0)  # [block_c] int64
    word = tl.load(words + query * word_stride + g, mask=there, other=0)
    bit = tl.arange(0, 32)
    allowed = ((word[:, None] >> bit[None, :]) & 1) != 0
    rows = tl.reshape(g[:, None] * 32 + bit[None, :], (block_c * 32,))
    live = tl.reshape(allowed, (block_c * 32,)) & (rows < num_items)
    d = tl.arange(0, block_d)
    q = tl.load(queries + query * dim + d, mask=d < dim, other=0.0).to(tl.float32)
    x = tl.load(
        items + rows[:, None] * dim + d[None, :], mask=live[:, None] & (d[None, :] < dim), other=0.0
    )
    score = tl.sum(x.to(tl.float32) * q[None, :], axis=1)
    place = tl.reshape(places[:, None] * 32 + bit[None, :], (block_c * 32,))
    tl.store(
        scores + query * num_chosen * 32 + place,
        tl.where(live & (score == score), score, float("-inf")),
        mask=place < num_chosen * 32,
    )


@triton.jit
def _select(
    values,
    parents,
    columns,
    chosen_values,
    width,
    num_places,
    num_parents,
    count,
    through_parents: tl.constexpr,
    values_by_place: tl.constexpr,
    block: tl.constexpr,
):
    """Keep the count greatest values of a row in the order of their columns; see `select`."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, block)
    column = place.to(tl.int64)
    there = place < num_places
    if through_parents:
        parent = tl.load(parents + row * num_parents + place // 32, mask=there, other=0)
        column = parent * 32 + place % 32
        there = there & (column < width)
    at = place.to(tl.int64) if values_by_place else column
    stride = num_places if values_by_place else width
    value = tl.load(values + row * stride + at, mask=there, other=float("-inf"))
    # Adding 0 turns -0 into +0, which must tie with it.
    bits = (value + 0.0).to(tl.int32, bitcast=True)
    order = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    order = tl.where(there, order, -0x80000000)
    # The count-th greatest, bit by bit from the sign down.
    least = tl.where(tl.sum((order >= 0).to(tl.int32)) >= count, 0, -0x80000000)
    for step in range(31):
        candidate = least + (1 << (30 - step))
        least = tl.where(tl.sum((order >= candidate).to(tl.int32)) >= count, candidate, least)
    above = (order > least).to(tl.int32)
    equal = ((order == least) & there).to(tl.int32)
    rest = count - tl.sum(above)
    keep = (above != 0) | ((equal != 0) & (tl.cumsum(equal, 0) <= rest))
    target = row * count + tl.cumsum(keep.to(tl.int32), 0) - 1
    tl.store(columns + target, column, mask=keep)
    tl.store(chosen_values + target, value, mask=keep)


def group_maxima(queries: Tensor, items: Tensor, words: Tensor, *, programs: int) -> Tensor:
    """Find each query's best score in each group of 32 item rows, -inf where none is allowed.

    float32 vectors are split into two fp16 parts and a power of two per row, so three fp16 matrix
    products give their scores to about 22 bits.

    Args:
        queries: [B, D], of the items' type.
        items: [N, D] contiguous fp32, bf16 or fp16.
        words: [W] or [B, W] int32, W = ceil(N / 32); bit i of word g allows row 32 g + i.

    Returns:
        [B, W rounded up to a multiple of 32] float32, -inf beyond W.
    """
    (num_queries, dim), num_items = queries.shape, items.shape[0]
    num_groups = triton.cdiv(num_items, GROUP)
    padded = triton.cdiv(num_groups, GROUP) * GROUP
    maxima = torch.empty(num_queries, padded, dtype=torch.float32, device=items.device)
    block_d = max(16, triton.next_power_of_2(dim))
    single = items.dtype == torch.float32
    stage_bytes = 128 * block_d * items.element_size()
    default = {
        "block_q": min(128, max(16, triton.next_power_of_2(num_queries))),
        "block_n": 128,
        "stages": max(1, min(2 if single else 4, 65536 // stage_bytes)),
        "num_warps": 4,
    }
    shapes = shape_class(dim=dim, queries=num_queries)
    config = config_for("topk_search.group_maxima", shapes, items.dtype, default)
    query_blocks = triton.cdiv(num_queries, config["block_q"])
    tiles = triton.cdiv(padded * GROUP, config["block_n"])
    splits = min(tiles, max(1, programs // query_blocks))
    _group_maxima[(query_blocks, splits)](
        queries,
        items,
        words,
        maxima,
        num_queries,
        num_items,
        num_groups,
        padded,
        words.stride(0) if words.ndim == 2 else 0,
        dim=dim,
        block_d=block_d,
        split=single,
        shared_mask=words.ndim == 1,
        # Triton's interpreter multiplies the bit patterns of bf16 operands.
        widen=items.dtype == torch.bfloat16 and not items.is_cuda,
        **config,
    )
    return maxima


def score_groups(queries: Tensor, items: Tensor, words: Tensor, chosen: Tensor) -> Tensor:
    """Score every item of each query's chosen groups in float32, in one order of additions.

    Args:
        queries: [B, D].
        items: [N, D] contiguous.
        chosen: [B, C] int64 group numbers.

    Returns:
        [B, 32 C] float32, -inf for items that are not allowed.
    """
    (num_queries, dim), num_chosen = queries.shape, chosen.shape[1]
    scores = torch.empty(num_queries, num_chosen * GROUP, dtype=torch.float32, device=items.device)
    block_d = triton.next_power_of_2(dim)
    block_c = max(1, min(4, 128 // block_d))
    _score_groups[(num_queries, triton.cdiv(num_chosen, block_c))](
        queries,
        items,
        words,
        chosen,
        scores,
        items.shape[0],
        num_chosen,
        words.stride(0) if words.ndim == 2 else 0,
        dim=dim,
        block_d=block_d,
        block_c=block_c,
        num_warps=4,
    )
    return scores


def select(
    values: Tensor, count: int, parents: Tensor | None = None, *, width: int | None = None
) -> tuple[Tensor, Tensor]:
    """Find the count greatest values of each row; ties go to the lower column.

    Args:
        values: [B, width] float32. With ``width`` given, [B, 32 C]: the values of the parents'
            children only.
        parents: [B, C] int64, ascending: look at columns 32 p to 32 p + 31 of each p only.

    Returns:
        Columns in ascending order, [B, count] int64, and their values.
    """
    num_rows = values.shape[0]
    num_parents = 0 if parents is None else parents.shape[1]
    num_places = values.shape[1] if parents is None else num_parents * GROUP
    columns = torch.empty(num_rows, count, dtype=torch.int64, device=values.device)
    chosen = torch.empty(num_rows, count, dtype=torch.float32, device=values.device)
    block = triton.next_power_of_2(num_places)
    _select[(num_rows,)](
        values,
        values if parents is None else parents,
        columns,
        chosen,
        width if width is not None else values.shape[1],
        num_places,
        num_parents,
        count,
        through_parents=parents is not None,
        values_by_place=width is not None,
        block=block,
        num_warps=min(32, max(1, block // 512)),
    )
    return columns, chosen
