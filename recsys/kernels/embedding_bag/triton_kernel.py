"""Triton kernels of the lookup: pooled, unpooled, int8, and the gradient of sample weights.

Axes: F features, B batch, M ids, D width. Programs handle ``block_b`` bags of one feature;
``unroll`` rows of each bag are asked for before the first is used.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from recsys.kernels.embedding_bag.layout import TableLayout, WidthClass

MEAN, UNPOOLED = tl.constexpr(1), tl.constexpr(2)


@triton.jit
def _forward(
    weights,
    scale_offset,
    feature_data,
    class_features,
    ids,
    offsets,
    sample_weights,
    out,
    batch,
    num_features,
    out_stride,
    first_key,
    start,
    dim: tl.constexpr,
    block_d: tl.constexpr,
    block_b: tl.constexpr,
    unroll: tl.constexpr,
    pooling: tl.constexpr,
    quantized: tl.constexpr,
    aligned: tl.constexpr,
):
    """Pool block_b bags of one feature; see `forward`."""
    blocks = tl.cdiv(batch, block_b)
    feature = tl.load(class_features + tl.program_id(0) // blocks)
    b = (tl.program_id(0) % blocks) * block_b + tl.arange(0, block_b)
    inside = b < batch
    key = tl.load(feature_data + feature)
    num_rows = tl.load(feature_data + num_features + feature)
    column = tl.load(feature_data + 2 * num_features + feature)
    if aligned:
        column = tl.multiple_of(column, 8)
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
            if quantized:
                pair = scale_offset + (key + row) * 2
                scale = tl.load(pair, mask=known, other=0.0)
                low = tl.load(pair + 1, mask=known, other=0.0)
                x = x * scale[:, None] + low[:, None]
            if sample_weights is not None:
                x *= tl.load(sample_weights + begin + l, mask=live, other=0.0)[:, None]
            if pooling == UNPOOLED:
                place = (begin + l).to(tl.int64)[:, None] * out_stride + d[None, :]
                tl.store(out + place, x, mask=live[:, None] & wide)
            else:
                acc += x
    if pooling != UNPOOLED:
        if pooling == MEAN:
            acc = acc / tl.maximum(length, 1).to(tl.float32)[:, None]
        place = b.to(tl.int64)[:, None] * out_stride + column + d[None, :]
        tl.store(out + place, acc, mask=inside[:, None] & wide)


@triton.jit
def _sample_weight_gradient(
    weights,
    feature_data,
    keys,
    places,
    grad,
    offsets,
    out,
    batch,
    num_ids,
    num_features,
    grad_stride,
    first_key,
    end_key,
    start,
    dim: tl.constexpr,
    block_d: tl.constexpr,
    block_m: tl.constexpr,
    pooling: tl.constexpr,
):
    """Multiply the rows of block_m ids with their bags' gradients; keys and places by id."""
    m = tl.program_id(0).to(tl.int64) * block_m + tl.arange(0, block_m)
    inside = m < num_ids
    key = tl.load(keys + m, mask=inside, other=-1).to(tl.int64)
    live = (key >= first_key) & (key < end_key)
    place = tl.load(places + m, mask=live, other=0).to(tl.int64)
    d = tl.arange(0, block_d)
    mask = live[:, None] & (d[None, :] < dim)
    scale = tl.full((block_m,), 1.0, tl.float32)
    if pooling == UNPOOLED:
        at = place * grad_stride
    else:
        b, feature = place // num_features, place % num_features
        at = b * grad_stride + tl.load(feature_data + 2 * num_features + feature, mask=live)
        if pooling == MEAN:
            bag = feature * batch + b
            begin = tl.load(offsets + bag, mask=live, other=0)
            length = tl.load(offsets + bag + 1, mask=live, other=1) - begin
            scale = 1.0 / length.to(tl.float32)
    g = tl.load(grad + at[:, None] + d[None, :], mask=mask, other=0.0).to(tl.float32)
    row = weights + start + (key - first_key)[:, None] * dim + d[None, :]
    x = tl.load(row, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + m, tl.sum(g * x, axis=1) * scale, mask=live)


def _tile(dim: int, mean_length: float, element_size: int) -> tuple[int, int, int, int]:
    """Choose block_d, block_b, unroll and warps so that a thread asks for 16 bytes at a time."""
    block_d = triton.next_power_of_2(dim)
    threads = max(1, block_d * element_size // 16)
    warps = 1 if mean_length > 4 else 2
    block_b = max(1, warps * 32 // threads)
    unroll = 8 if mean_length > 4 else 1
    if unroll == 1:
        block_b *= 4
    return block_d, min(block_b, 64), unroll, warps


def forward(
    layout: TableLayout,
    weights: Tensor,
    scale_offset: Tensor | None,
    feature_data: Tensor,
    ids: Tensor,
    offsets: Tensor,
    sample_weights: Tensor | None,
    pooling: int,
    out: Tensor,
) -> Tensor:
    """Fill ``out`` [B, sum of D_f] or [M, D] with the lookups; see `reference.forward`."""
    num_features = len(layout.feature_tables)
    batch = (len(offsets) - 1) // num_features
    mean_length = len(ids) / max(1, len(offsets) - 1)
    aligned = all(dim % 8 == 0 for dim in layout.dims)
    for one in layout.classes:
        if not one.features or not batch:
            continue
        block_d, block_b, unroll, warps = _tile(one.dim, mean_length, weights.element_size())
        blocks = triton.cdiv(batch, block_b)
        _forward[(blocks * len(one.features),)](
            weights,
            scale_offset,
            feature_data,
            class_features(layout, one, feature_data),
            ids,
            offsets,
            sample_weights,
            out,
            batch,
            num_features,
            out.stride(0),
            one.first_key,
            one.start,
            dim=one.dim,
            block_d=block_d,
            block_b=block_b,
            unroll=unroll,
            pooling=pooling,
            quantized=scale_offset is not None,
            aligned=aligned,
            num_warps=warps,
        )
    return out


def class_features(layout: TableLayout, one: WidthClass, feature_data: Tensor) -> Tensor:
    """Read the numbers of a width's features off row 3 of the feature data."""
    before = sum(len(other.features) for other in layout.classes if other.dim < one.dim)
    return feature_data[3, before : before + len(one.features)]


def sample_weight_gradient(
    layout: TableLayout,
    weights: Tensor,
    feature_data: Tensor,
    keys: Tensor,
    places: Tensor,
    offsets: Tensor,
    grad: Tensor,
    pooling: int,
    out: Tensor,
) -> Tensor:
    """Fill ``out`` [M] where keys are in range; see `reference.sample_weight_gradient`."""
    num_features = len(layout.feature_tables)
    for one in layout.classes:
        block_d = triton.next_power_of_2(one.dim)
        block_m = max(1, 1024 // block_d)
        _sample_weight_gradient[(triton.cdiv(len(keys), block_m),)](
            weights,
            feature_data,
            keys,
            places,
            grad,
            offsets,
            out,
            (len(offsets) - 1) // num_features,
            len(keys),
            num_features,
            grad.stride(0),
            one.first_key,
            one.end_key,
            one.start,
            dim=one.dim,
            block_d=block_d,
            block_m=block_m,
            pooling=pooling,
            num_warps=4,
        )
    return out
