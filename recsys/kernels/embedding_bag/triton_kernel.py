"""Triton kernels of the lookup, and of listing the work of an update.

Axes: F features, B batch, M ids, D width. A program of the lookup handles ``block_b`` bags of one
feature; ``unroll`` rows of each bag are loaded before the first is used.

After the stable sort, ids of one key are a run. A run of one id goes to the list of singles, one of
up to ``short`` ids to the list of short runs; other runs are items. A run is long if it meets three
or more aligned chunks of ``chunk`` sorted ids; its part in each chunk is an item of its own, a
piece, and its first id goes to the list of long runs. Which list an id belongs to is read off its
neighbours. Places in a list are drawn by atomic counters, so the order of the lists varies; every
entry is worked on alone, so no result does.

``work`` is one int32 tensor: sorted places, singles and items of ``stride`` each, then long runs.
Short runs fill the space of items from its end, for the two together never fill it.
"""

from __future__ import annotations

import math
from functools import lru_cache

import triton
import triton.language as tl
from torch import Tensor

from recsys.kernels.choice import Config, config_for, shape_class
from recsys.kernels.embedding_bag.launch import Arguments, Kernel
from recsys.kernels.embedding_bag.layout import TableLayout

ITEMS, SHORT, LONG = tl.constexpr(1), tl.constexpr(16), tl.constexpr(32)


@triton.jit(
    do_not_specialize=[
        "batch", "num_features", "num_bags", "num_ids", "num_words", "total_rows", "steps",
    ]
)  # fmt: skip
def _key_ids(
    ids, offsets, feature_data, keys, places, words, batch: tl.int32, num_features: tl.int32,
    num_bags: tl.int32, num_ids: tl.int32, num_words: tl.int32, total_rows: tl.int64,
    steps: tl.int32, block: tl.constexpr,
):  # fmt: skip
    """Write key and place of each id and clear the words; an id of no bag has the last key.

    A bag is guessed as if all were as long, else found by halving, ``steps`` times; so unordered
    offsets do no harm.
    """
    m = tl.program_id(0) * block + tl.arange(0, block)
    inside = m < num_ids
    for done in range(0, num_words, tl.num_programs(0) * block):
        tl.store(words + done + m, 0, mask=done + m < num_words)
    low = m // ((num_ids + num_bags - 1) // tl.maximum(num_bags, 1)) + 1
    try_it = inside & (low <= num_bags)
    begin = tl.load(offsets + low - 1, mask=try_it, other=1)
    end = tl.load(offsets + low, mask=try_it, other=0)
    hit = (begin <= m) & (m < end)
    if tl.min((hit | (inside == 0)).to(tl.int32), 0) == 0:
        low = tl.where(hit, low, 0)
        high = tl.where(hit, low, num_bags + 1)
        for _ in range(steps):
            middle = low + (high - low) // 2
            active = low < high
            right = tl.load(offsets + middle, mask=active & inside, other=0) <= m
            low = tl.where(active & right, middle + 1, low)
            high = tl.where(active & (right == 0), middle, high)
    covered = (low >= 1) & (low <= num_bags)
    bag = tl.maximum(tl.minimum(low, num_bags) - 1, 0)
    feature = bag // batch
    first = tl.load(feature_data + feature, mask=inside, other=0)
    num_rows = tl.load(feature_data + num_features + feature, mask=inside, other=0)
    row = tl.load(ids + m, mask=inside, other=0).to(tl.int64)
    key = tl.where(covered & (row >= 0) & (row < num_rows), first + row, total_rows)
    tl.store(keys + m, key.to(keys.dtype.element_ty), mask=inside)
    place = (bag - feature * batch) * num_features + feature
    tl.store(places + m, place, mask=inside)


@triton.jit(do_not_specialize=["num_ids", "stride", "total_rows"])
def _list_work(
    sorted_keys, order, places, sample_weights, sorted_scales, work, counts, num_ids: tl.int32,
    stride: tl.int64, total_rows: tl.int64, chunk: tl.constexpr, short: tl.constexpr,
    block: tl.constexpr,
):  # fmt: skip
    """Bring places and factors into sorted order and fill the four lists."""
    stride = stride // 16 * 16
    i = tl.program_id(0) * block + tl.arange(0, block)
    inside = i < num_ids
    key = tl.load(sorted_keys + i, mask=inside, other=0)
    before = tl.load(sorted_keys + i - 1, mask=inside & (i > 0), other=-1)
    after = tl.load(sorted_keys + i + 1, mask=i + 1 < num_ids, other=-1)
    m = tl.load(order + i, mask=inside, other=0)
    tl.store(work + i, tl.load(places + m, mask=inside, other=0), mask=inside)
    if sorted_scales is not None:
        scale = tl.load(sample_weights + m, mask=inside, other=0.0)
        tl.store(sorted_scales + i, scale, mask=inside)
    known = inside & (key < total_rows)
    starts, ends = known & (key != before), known & (key != after)
    single = starts & ends
    # From here on, only runs of two ids or more.
    starts = starts & (ends == 0)
    aligned = known & (i % chunk == 0) & (key == before)
    beyond = (i // chunk + tl.where(aligned, 1, 2)) * chunk
    far = tl.load(sorted_keys + beyond, mask=(starts | aligned) & (beyond < num_ids), other=-1)
    back = tl.load(sorted_keys + i - chunk - 1, mask=aligned & (i > chunk), other=-1)
    long = (starts & (far == key)) | (aligned & ((far == key) | (back == key)))
    past = tl.load(sorted_keys + i + short, mask=starts & (i + short < num_ids), other=-1)
    few = starts & (past != key)
    item = (starts & (few == 0)) | long
    # One sum for three lists: singles in 11 bits, items and short runs, two ids each, in 10.
    flags = single.to(tl.int32) + (item.to(tl.int32) << 11) + (few.to(tl.int32) << 21)
    ranks = tl.cumsum(flags, 0)
    found = tl.max(ranks, 0).to(tl.int64)
    counter = counts.to(tl.pointer_type(tl.int64), bitcast=True)
    base = tl.atomic_add(counter, (found & 0x7FF) + (((found >> 11) & 0x3FF) << 32))
    singles = work + stride + (base & 0xFFFFFFFF)
    tl.store(singles + (ranks & 0x7FF) - 1, i, mask=single)
    items = work + 2 * stride + (base >> 32)
    tl.store(items + ((ranks >> 11) & 0x3FF) - 1, tl.where(long, -1 - i, i), mask=item)
    num_few = (found >> 21).to(tl.int32)
    if num_few > 0:
        base_few = tl.atomic_add(counts + SHORT, num_few)
        tl.store(work + 3 * stride - base_few - (ranks >> 21), i, mask=few)
    runs = starts & long
    num_runs = tl.sum(runs.to(tl.int32), 0)
    if num_runs > 0:
        base_run = tl.atomic_add(counts + LONG, num_runs)
        tl.store(work + 3 * stride + base_run + tl.cumsum(runs.to(tl.int32), 0) - 1, i, mask=runs)


@triton.jit(
    do_not_specialize=["batch", "num_features", "before", "out_stride", "first_key", "start"]
)
def _forward(
    weights, feature_data, ids, offsets, sample_weights, out, batch: tl.int32,
    num_features: tl.int32, before: tl.int32, out_stride: tl.int64, first_key: tl.int64,
    start: tl.int64, dim: tl.constexpr, block_d: tl.constexpr, block_b: tl.constexpr,
    unroll: tl.constexpr, aligned: tl.constexpr,
):  # fmt: skip
    """Pool block_b bags of one feature of this width, the first of which is ``before``."""
    blocks = tl.cdiv(batch, block_b)
    feature = tl.load(feature_data + 3 * num_features + before + tl.program_id(0) // blocks)
    start = start // 16 * 16
    b = (tl.program_id(0) % blocks) * block_b + tl.arange(0, block_b)
    inside = b < batch
    key = tl.load(feature_data + feature)
    num_rows = tl.load(feature_data + num_features + feature)
    column = tl.load(feature_data + 2 * num_features + feature)
    if aligned:
        column = tl.multiple_of(column, 8)
        out_stride = out_stride // 8 * 8
    bag = feature * batch + b
    begin = tl.load(offsets + bag, mask=inside, other=0)
    length = (tl.load(offsets + bag + 1, mask=inside, other=0) - begin).to(tl.int32)
    d = tl.arange(0, block_d)
    wide = d[None, :] < dim
    table = weights + start + (key - first_key) * dim
    if aligned:
        table = tl.multiple_of(table, 16)
    acc = tl.zeros((block_b, block_d), tl.float32)
    for done in range(0, tl.max(length, 0), unroll):
        for u in tl.static_range(unroll):
            l = done + u
            live = l < length
            row = tl.load(ids + begin + l, mask=live, other=0).to(tl.int64)
            known = live & (row >= 0) & (row < num_rows)
            x = tl.load(
                table + row[:, None] * dim + d[None, :], mask=known[:, None] & wide, other=0
            ).to(tl.float32)
            if sample_weights is not None:
                x *= tl.load(sample_weights + begin + l, mask=live, other=0.0)[:, None]
            acc += x
    place = b.to(tl.int64)[:, None] * out_stride + column + d[None, :]
    tl.store(out + place, acc, mask=inside[:, None] & wide)


@lru_cache(maxsize=1024)
def _tile(dim: int, length: int, element_size: int) -> tuple[str, Config]:
    """Name the class of a lookup, and choose a tile so that a thread asks for 16 bytes at a time.

    ``length`` is the mean of the bags', rounded up. A bag's rows are added one after the other
    whatever the tile, so tuning changes no bit of a result.
    """
    threads = max(1, triton.next_power_of_2(dim) * element_size // 16)
    warps = 1 if length > 4 else 2
    block_b, unroll = max(1, warps * 32 // threads), 1
    if length > 4:
        # The fewest rows that are loaded in vain, at the mean length.
        unroll = min((8, 5, 4), key=lambda many: -(-length // many) * many)
    else:
        block_b *= 4
    default = {"block_b": min(block_b, 64), "unroll": unroll, "num_warps": warps}
    return shape_class(dim=dim, length=length), default


@lru_cache(maxsize=1024)
def _lookup_kernel(dim: int, block_b: int, unroll: int, num_warps: int, aligned: bool) -> Kernel:
    constants = {
        "dim": dim, "block_d": triton.next_power_of_2(dim), "block_b": block_b, "unroll": unroll,
        "aligned": aligned,
    }  # fmt: skip
    return Kernel(_forward, constants, num_warps=num_warps)


def forward(
    layout: TableLayout,
    weights: Tensor,
    feature_data: Tensor,
    ids: Tensor,
    offsets: Tensor,
    sample_weights: Tensor | None,
    out: Tensor,
) -> Tensor:
    """Fill ``out`` [B, sum of D_f] with the lookups; empty bags and unknown ids give zeros."""
    num_features = len(layout.feature_tables)
    num_bags = offsets.shape[0] - 1
    batch = num_bags // num_features
    mean_length = math.ceil(ids.shape[0] / max(1, num_bags))
    before, out_stride = 0, out.stride(0)
    for one in layout.classes:
        shapes, default = _tile(one.dim, mean_length, weights.element_size())
        chosen = config_for("embedding_bag.forward", shapes, weights.dtype, default)
        block_b, unroll, num_warps = chosen["block_b"], chosen["unroll"], chosen["num_warps"]
        blocks = -(-batch // block_b) * len(one.features)
        if blocks:
            kernel = _lookup_kernel(one.dim, block_b, unroll, num_warps, layout.aligned)
            tensors = (weights, feature_data, ids, offsets, sample_weights, out)
            numbers = (batch, num_features, before, out_stride, one.first_key, one.start)
            kernel.launch(blocks, Arguments(tensors, numbers))
        before += len(one.features)
    return out
