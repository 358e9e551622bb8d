"""Triton kernel of the lookup.

Axes: F features, B batch, M ids, D width. Programs handle ``block_b`` bags of one feature;
``unroll`` rows of each bag are loaded before the first is used.
"""

from __future__ import annotations

import math
from functools import lru_cache

import triton
import triton.language as tl
from torch import Tensor

from recsys.kernels.embedding_bag.launch import Arguments, Kernel
from recsys.kernels.embedding_bag.layout import TableLayout
from recsys.kernels.tuning import Config, config_for, shape_class


@triton.jit(
    do_not_specialize=["batch", "num_features", "before", "out_stride", "first_key", "start"]
)
def _forward(
    weights,
    feature_data,
    ids,
    offsets,
    sample_weights,
    out,
    batch: tl.int32,
    num_features: tl.int32,
    before: tl.int32,
    out_stride: tl.int64,
    first_key: tl.int64,
    start: tl.int64,
    dim: tl.constexpr,
    block_d: tl.constexpr,
    block_b: tl.constexpr,
    unroll: tl.constexpr,
    aligned: tl.constexpr,
):
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
