"""Triton kernels of the backward with the optimizer inside; bitwise deterministic.

`triton_kernel` lists the work: rows that occur once (singles) or a few times (short runs), other
runs and pieces of long runs (items), and long runs. `_update_items` adds up an item's gradients a
tile of ids at a time; a whole run is applied at once, a piece's sum is kept. `_update_long` adds a
long run's sums in ascending order and applies. A chunk meets at most two long runs, the one of its
first id and the one that starts in it: two slots a chunk hold sums. `_update_rows` updates a tile
of singles or short runs at a time, and reads the numbers of the next tile while the rows of this
one are on their way. All take the same arguments, needed or not, so that the host lays them out
once.

Axes: F features, B batch, M ids, D width. R rows of a tile. A place is
b * F + f.
"""

from __future__ import annotations

import triton
import triton.language as tl

from recsys.kernels.embedding_bag.triton_kernel import ITEMS, LONG, SHORT

SGD, ROWWISE_ADAGRAD, ADAM = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
SIZES = ("num_ids", "stride", "num_features", "grad_stride", "first_key", "end_key", "start")
"""Whole numbers of an update, whose values do not change the compiled code."""


@triton.jit
def _gradients(
    grad, feature_data, sorted_scales, i, place, live, d, num_features, grad_stride,
    dim: tl.constexpr, uniform: tl.constexpr, aligned: tl.constexpr,
):  # fmt: skip
    """Read the gradient of the sorted ids i at their places, [len(i), block_d] float32."""
    place = place.to(tl.int64)
    if uniform:
        at = place * dim
    else:
        column = tl.load(feature_data + 2 * num_features + place % num_features, mask=live, other=0)
        if aligned:
            column = tl.multiple_of(column, 8)
            grad_stride = grad_stride // 8 * 8
        at = (place // num_features) * grad_stride + column
    mask = live[:, None] & (d[None, :] < dim)
    g = tl.load(grad + at[:, None] + d[None, :], mask=mask, other=0.0)
    if sorted_scales is not None:
        g *= tl.load(sorted_scales + i, mask=live, other=0.0)[:, None]
    return g


@triton.jit
def _wait(shared: tl.constexpr):
    if shared:
        tl.debug_barrier()


@triton.jit
def _row_state(second, key, live, rule: tl.constexpr):
    """Ask for the word of each row's state before its gradient is there; 0 where there is none."""
    # The two row-wise rules.
    if rule % 2 == 1:
        return tl.load(second + key, mask=live, other=0.0)
    else:
        return tl.zeros_like(key).to(tl.float32)


@triton.jit
def _apply(
    g, w, old, key, live, d, weights, first, second, learning_rate, corrections, grad_scale,
    first_key, start, epsilon, beta1: tl.constexpr, beta2: tl.constexpr, max_row_norm,
    dim: tl.constexpr, rule: tl.constexpr, shared: tl.constexpr,
):  # fmt: skip
    """Move rows w [R, D] by their gradients g and write them and their state; old: `_row_state`.

    ``shared``: several warps hold copies of one row, all read its state and one writes it. Where a
    row is one warp's, or is spread over warps so that the sum of its columns waits, none is needed.
    """
    mask = live[:, None] & (d[None, :] < dim)
    at = start + (key - first_key)[:, None] * dim + d[None, :]
    lr = tl.load(learning_rate)
    if grad_scale is not None:
        g = g * tl.load(grad_scale)
    if max_row_norm is not None:
        norm = tl.sqrt_rn(tl.sum(g * g, axis=1))
        live = live & (norm < float("inf"))
        mask = mask & live[:, None]
        g = g * tl.minimum(max_row_norm / (norm + 1e-6), 1.0)[:, None]
    if rule == SGD:
        w = w - lr * g
    elif rule == ROWWISE_ADAGRAD:
        square = old + tl.sum(g * g, axis=1) / dim
        _wait(shared)
        tl.store(second + key, square, mask=live)
        w = w - g * (lr / (tl.sqrt_rn(square) + epsilon))[:, None]
    else:
        mean = tl.load(first + at, mask=mask, other=0.0) * beta1 + g * (1 - beta1)
        _wait(shared)
        tl.store(first + at, mean, mask=mask)
        root = tl.load(corrections + 1)
        if rule == ADAM:
            square = tl.load(second + at, mask=mask, other=0.0) * beta2 + g * g * (1 - beta2)
            _wait(shared)
            tl.store(second + at, square, mask=mask)
            below = tl.sqrt_rn(square / root) + epsilon
        else:
            square = old * beta2 + tl.sum(g * g, axis=1) / dim * (1 - beta2)
            _wait(shared)
            tl.store(second + key, square, mask=live)
            below = (tl.sqrt_rn(square / root) + epsilon)[:, None]
        w = w - lr * (mean / tl.load(corrections)) / below
    tl.store(weights + at, w.to(weights.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=SIZES)
def _update_items(
    sorted_keys, sorted_scales, work, counts, grad, feature_data, partials, weights, first,
    second, learning_rate, corrections, grad_scale, skip, num_ids: tl.int32, stride: tl.int64,
    num_features: tl.int32, grad_stride: tl.int64, first_key: tl.int64, end_key: tl.int64,
    start: tl.int64, epsilon, max_row_norm, beta1: tl.constexpr, beta2: tl.constexpr,
    dim: tl.constexpr, block_d: tl.constexpr, block_l: tl.constexpr, chunk: tl.constexpr,
    uniform: tl.constexpr, aligned: tl.constexpr, rule: tl.constexpr, shared: tl.constexpr,
):  # fmt: skip
    """Add up the gradients of each item, ``block_l`` ids at a time; apply those of whole runs."""
    stride = stride // 16 * 16
    start = start // 16 * 16
    num_items = tl.load(counts + ITEMS)
    if skip is not None:
        num_items = tl.where(tl.load(skip) == 0, num_items, 0)
    d = tl.arange(0, block_d)
    lane = tl.zeros((1,), tl.int64)
    for r in range(tl.program_id(0), num_items, tl.num_programs(0)):
        item = tl.load(work + 2 * stride + r)
        piece = item < 0
        begin = tl.where(piece, -1 - item, item)
        own = tl.load(sorted_keys + begin)
        key = own.to(tl.int64)
        if (key >= first_key) & (key < end_key):
            end = tl.minimum(tl.where(piece, (begin // chunk + 1) * chunk, num_ids), num_ids)
            mask = (d[None, :] < dim) & (piece == 0)
            at = start + (key + lane - first_key)[:, None] * dim + d[None, :]
            w = tl.load(weights + at, mask=mask, other=0.0).to(tl.float32)
            old = _row_state(second, key + lane, (lane == 0) & (piece == 0), rule)
            acc = tl.zeros((block_l, block_d), tl.float32)
            m = begin + tl.arange(0, block_l)
            near = tl.load(sorted_keys + m, mask=m < end, other=-1)
            near_place = tl.load(work + m, mask=m < end, other=0)
            more = own == own
            while more:
                same = near == own
                part = _gradients(
                    grad, feature_data, sorted_scales, m, near_place, same, d, num_features,
                    grad_stride, dim, uniform, aligned,
                )  # fmt: skip
                m += block_l
                near = tl.load(sorted_keys + m, mask=m < end, other=-1)
                near_place = tl.load(work + m, mask=m < end, other=0)
                acc += part
                more = tl.min(same.to(tl.int32), 0) == 1
            g = tl.sum(acc, axis=0)[None, :]
            if piece:
                previous = tl.load(sorted_keys + begin - 1, mask=begin > 0, other=-1)
                slot = 2 * (begin // chunk) + tl.where(previous == own, 0, 1)
                place_of_sum = slot.to(tl.int64) * dim + d[None, :]
                tl.store(partials + place_of_sum, g, mask=d[None, :] < dim)
            else:
                _apply(
                    g, w, old, key + lane, lane == 0, d, weights, first, second, learning_rate,
                    corrections, grad_scale, first_key, start, epsilon, beta1, beta2,
                    max_row_norm, dim, rule, shared,
                )  # fmt: skip


@triton.jit(do_not_specialize=SIZES)
def _update_long(
    sorted_keys, sorted_scales, work, counts, grad, feature_data, partials, weights, first,
    second, learning_rate, corrections, grad_scale, skip, num_ids: tl.int32, stride: tl.int64,
    num_features: tl.int32, grad_stride: tl.int64, first_key: tl.int64, end_key: tl.int64,
    start: tl.int64, epsilon, max_row_norm, beta1: tl.constexpr, beta2: tl.constexpr,
    dim: tl.constexpr, block_d: tl.constexpr, block_c: tl.constexpr, block_few: tl.constexpr,
    chunk: tl.constexpr, rule: tl.constexpr, shared: tl.constexpr,
):  # fmt: skip
    """Add up the chunks' sums of each long run and apply.

    ``block_c`` at a time, the rest ``block_few`` at a time: most long runs are of a few chunks.

    A row, and the numbers of ``block_few`` chunks, are fewer than the threads: each warp holds a
    copy, and writes it to one place in shared memory where Triton changes a layout. racecheck
    reports that. It is harmless, because the copies are equal: the same instructions on numbers
    that nobody writes meanwhile or, of the row's state, that all read before one writes (`_wait`).
    """
    start = start // 16 * 16
    num_chunks = (num_ids + chunk - 1) // chunk
    num_long = tl.load(counts + LONG)
    if skip is not None:
        num_long = tl.where(tl.load(skip) == 0, num_long, 0)
    d = tl.arange(0, block_d)
    lane = tl.zeros((1,), tl.int64)
    for r in range(tl.program_id(0), num_long, tl.num_programs(0)):
        begin = tl.load(work + 3 * stride + r)
        own = tl.load(sorted_keys + begin)
        key = own.to(tl.int64)
        if (key >= first_key) & (key < end_key):
            at = start + (key + lane - first_key)[:, None] * dim + d[None, :]
            w = tl.load(weights + at, mask=d[None, :] < dim, other=0.0).to(tl.float32)
            old = _row_state(second, key + lane, lane == 0, rule)
            head = begin // chunk
            acc = tl.zeros((block_c, block_d), tl.float32)
            c = head + tl.arange(0, block_c)
            last = head + block_c - 1
            near = tl.load(sorted_keys + last * chunk, mask=last < num_chunks, other=-1)
            while near == own:
                # All of these chunks are this run's. What ends the loop is loaded ahead.
                last += block_c
                near = tl.load(sorted_keys + last * chunk, mask=last < num_chunks, other=-1)
                slots = (2 * c + tl.where(c == head, 1, 0)).to(tl.int64)[:, None]
                acc += tl.load(
                    partials + slots * dim + d[None, :], mask=d[None, :] < dim, other=0.0
                )
                c += block_c
            total = tl.sum(acc, axis=0)
            few = last - block_c + 1 + tl.arange(0, block_few)
            more = own == own
            while more:
                inside = (few < num_chunks) & (few > head)
                live = tl.load(sorted_keys + few * chunk, mask=inside, other=-1) == own
                live = live | (few == head)
                slot = (2 * few + tl.where(few == head, 1, 0)).to(tl.int64)[:, None]
                mask = live[:, None] & (d[None, :] < dim)
                part = tl.load(partials + slot * dim + d[None, :], mask=mask, other=0.0)
                total += tl.sum(part, axis=0)
                few += block_few
                more = tl.min(live.to(tl.int32), 0) == 1
            _apply(
                total[None, :], w, old, key + lane, lane == 0, d, weights, first, second,
                learning_rate, corrections, grad_scale, first_key, start, epsilon, beta1, beta2,
                max_row_norm, dim, rule, shared,
            )  # fmt: skip


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
