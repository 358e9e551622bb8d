"""Triton kernel that updates a tile of rows at a time: rows that occur once, or a few times.

It reads the numbers of the next tile while the rows of this one are on their way.

Axes: F features, B batch, M ids, D width, R rows of a tile.
"""

from __future__ import annotations

import triton
import triton.language as tl

from recsys.kernels.embedding_bag.triton_backward import SIZES, _apply, _gradients, _row_state
from recsys.kernels.embedding_bag.triton_kernel import SHORT


@triton.jit
def _fetch(sorted_keys, work, stride, tile, count, block_r: tl.constexpr):
    """Read place in the order, key and place of a tile of singles; the key is -1 beyond them."""
    r = tile * block_r + tl.arange(0, block_r)
    i = tl.load(work + stride + r, mask=r < count, other=0)
    key = tl.load(sorted_keys + i, mask=r < count, other=-1)
    return i, key.to(tl.int64), (tl.load(work + i, mask=r < count, other=0),)


@triton.jit
def _fetch_short(sorted_keys, work, stride, tile, count, num_ids, block_r: tl.constexpr):
    """Read place in the order, key and the first four places of a tile of short runs.

    The key is -1 beyond them, the third or fourth place where a run has fewer ids.
    """
    r = tile * block_r + tl.arange(0, block_r)
    inside = r < count
    i = tl.load(work + 3 * stride - 1 - r, mask=inside, other=0)
    key = tl.load(sorted_keys + i, mask=inside, other=-1)
    place0 = tl.load(work + i, mask=inside, other=0)
    place1 = tl.load(work + i + 1, mask=inside, other=0)
    inside = inside & (i + 2 < num_ids)
    third = tl.load(sorted_keys + i + 2, mask=inside, other=-1) == key
    place2 = tl.load(work + i + 2, mask=inside, other=0)
    inside = inside & (i + 3 < num_ids)
    fourth = tl.load(sorted_keys + i + 3, mask=inside, other=-1) == key
    place3 = tl.load(work + i + 3, mask=inside, other=0)
    return i, key, (place0, place1, tl.where(third, place2, -1), tl.where(fourth, place3, -1))


@triton.jit(do_not_specialize=SIZES)
def _update_rows(
    sorted_keys, sorted_scales, work, counts, grad, feature_data, partials, weights, first,
    second, learning_rate, corrections, grad_scale, skip, num_ids: tl.int32, stride: tl.int64,
    num_features: tl.int32, grad_stride: tl.int64, first_key: tl.int64, end_key: tl.int64,
    start: tl.int64, epsilon, max_row_norm, beta1: tl.constexpr, beta2: tl.constexpr,
    dim: tl.constexpr, block_d: tl.constexpr, block_r: tl.constexpr, uniform: tl.constexpr,
    aligned: tl.constexpr, rule: tl.constexpr, shared: tl.constexpr, runs: tl.constexpr,
):  # fmt: skip
    """Update rows that occur once, ``block_r`` at a time; with ``runs`` those of short runs.

    A run's gradients are added in the order of the ids. The first four ids' are loaded together;
    the rest, of tiles that have one, in turn.
    """
    stride = stride // 16 * 16
    start = start // 16 * 16
    count = tl.load(counts + (SHORT if runs else 0))
    if skip is not None:
        count = tl.where(tl.load(skip) == 0, count, 0)
    d = tl.arange(0, block_d)
    if runs:
        i, own, places = _fetch_short(
            sorted_keys, work, stride, tl.program_id(0), count, num_ids, block_r
        )
    else:
        i, own, places = _fetch(sorted_keys, work, stride, tl.program_id(0), count, block_r)
    for tile in range(tl.program_id(0), tl.cdiv(count, block_r), tl.num_programs(0)):
        # Loaded a tile ahead: the rows wait for them.
        ahead = tile + tl.num_programs(0)
        if runs:
            next_i, next_own, next_places = _fetch_short(
                sorted_keys, work, stride, ahead, count, num_ids, block_r
            )
        else:
            next_i, next_own, next_places = _fetch(sorted_keys, work, stride, ahead, count, block_r)
        key = own.to(tl.int64)
        live = (key >= first_key) & (key < end_key)
        mask = live[:, None] & (d[None, :] < dim)
        at = start + (key - first_key)[:, None] * dim + d[None, :]
        w = tl.load(weights + at, mask=mask, other=0.0).to(tl.float32)
        old = _row_state(second, key, live, rule)
        if runs:
            same = live & (places[3] >= 0)
        g = _gradients(
            grad, feature_data, sorted_scales, i, places[0], live, d, num_features, grad_stride,
            dim, uniform, aligned,
        )  # fmt: skip
        if runs:
            g1 = _gradients(
                grad, feature_data, sorted_scales, i + 1, places[1], live, d, num_features,
                grad_stride, dim, uniform, aligned,
            )  # fmt: skip
            g2 = _gradients(
                grad, feature_data, sorted_scales, i + 2, places[2], live & (places[2] >= 0), d,
                num_features, grad_stride, dim, uniform, aligned,
            )  # fmt: skip
            g3 = _gradients(
                grad, feature_data, sorted_scales, i + 3, places[3], same, d, num_features,
                grad_stride, dim, uniform, aligned,
            )  # fmt: skip
            g = g + g1 + g2 + g3
            m = i + 4
            while tl.max(same.to(tl.int32), 0) == 1:
                same = same & (m < num_ids)
                place = tl.load(work + m, mask=same, other=0)
                same = same & (tl.load(sorted_keys + m, mask=same, other=-1) == own)
                g += _gradients(
                    grad, feature_data, sorted_scales, m, place, same, d, num_features,
                    grad_stride, dim, uniform, aligned,
                )  # fmt: skip
                m += 1
        _apply(
            g, w, old, key, live, d, weights, first, second, learning_rate, corrections,
            grad_scale, first_key, start, epsilon, beta1, beta2, max_row_norm, dim, rule, shared,
        )  # fmt: skip
        i, own, places = next_i, next_own, next_places
