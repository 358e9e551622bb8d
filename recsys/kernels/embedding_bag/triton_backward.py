"""Triton kernels of the backward with the optimizer inside; bitwise deterministic.

Ids become keys (`_key_ids`), a stable sort brings equal keys together in order of their place, and
runs of equal keys are listed (`_mark_runs`, `_list_runs`). A run of at most ``chunk`` ids is added
up by one lane (`_apply_short`). Of longer runs, each aligned chunk of the sorted ids is added up by
a program of its own (`_sum_chunks`), and the sums in ascending order by another (`_apply_long`).
A chunk meets at most two long runs, the one of its first id and the one of its last: two slots.

Axes: F features, B batch, M ids, D width, U runs. A place is b * F + f, or unpooled the id's m.
"""

from __future__ import annotations

import triton
import triton.language as tl

MEAN, UNPOOLED = tl.constexpr(1), tl.constexpr(2)
SGD, ROWWISE_ADAGRAD, ADAM = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def _key_ids(
    ids,
    offsets,
    feature_data,
    keys,
    places,
    batch,
    num_features,
    num_ids,
    total_rows,
    unpooled: tl.constexpr,
    block_b: tl.constexpr,
    block_l: tl.constexpr,
):
    """Write key and place of each id of block_b bags of one feature."""
    blocks = tl.cdiv(batch, block_b)
    feature = tl.program_id(0) // blocks
    b = (tl.program_id(0) % blocks) * block_b + tl.arange(0, block_b)
    inside = b < batch
    bag = feature.to(tl.int64) * batch + b
    first = tl.load(feature_data + feature)
    num_rows = tl.load(feature_data + num_features + feature)
    begin = tl.load(offsets + bag, mask=inside, other=0).to(tl.int64)
    end = tl.load(offsets + bag + 1, mask=inside, other=0).to(tl.int64)
    place = b.to(tl.int64) * num_features + feature
    step = tl.arange(0, block_l)
    for done in range(0, tl.max(end - begin, 0), block_l):
        m = begin[:, None] + done + step[None, :]
        live = (m < end[:, None]) & (m < num_ids) & (m >= 0)
        row = tl.load(ids + m, mask=live, other=0).to(tl.int64)
        key = tl.where((row >= 0) & (row < num_rows), first + row, total_rows)
        tl.store(keys + m, key, mask=live)
        if unpooled:
            tl.store(places + m, m, mask=live)
        else:
            tl.store(places + m, place[:, None] + tl.zeros_like(m), mask=live)


@triton.jit
def _starts(sorted_keys, i, num_ids, total_rows):
    """Tell where a run of a known key starts, and where the unknown keys start."""
    key = tl.load(sorted_keys + i, mask=i < num_ids, other=0).to(tl.int64)
    before = tl.load(sorted_keys + i - 1, mask=(i > 0) & (i < num_ids), other=-1).to(tl.int64)
    starts = (i < num_ids) & (key != before)
    return starts & (key < total_rows), starts & (key >= total_rows)


@triton.jit
def _mark_runs(
    sorted_keys,
    order,
    places,
    offsets,
    sample_weights,
    sorted_places,
    sorted_scales,
    counts,
    batch,
    num_features,
    num_ids,
    total_rows,
    pooling: tl.constexpr,
    block: tl.constexpr,
):
    """Bring places and factors into sorted order; count the runs that start in each block."""
    i = tl.program_id(0) * block + tl.arange(0, block)
    known, _unknown = _starts(sorted_keys, i, num_ids, total_rows)
    tl.store(counts + tl.program_id(0), tl.sum(known.to(tl.int32), 0))
    m = tl.load(order + i, mask=i < num_ids, other=0)
    place = tl.load(places + m, mask=i < num_ids, other=0)
    tl.store(sorted_places + i, place, mask=i < num_ids)
    if sorted_scales is not None:
        scale = tl.full((block,), 1.0, tl.float32)
        if sample_weights is not None:
            scale = tl.load(sample_weights + m, mask=i < num_ids, other=0.0).to(tl.float32)
        if pooling == MEAN:
            place = place.to(tl.int64)
            bag = (place % num_features) * batch + place // num_features
            begin = tl.load(offsets + bag, mask=i < num_ids, other=0)
            length = tl.load(offsets + bag + 1, mask=i < num_ids, other=1) - begin
            scale = scale / tl.maximum(length, 1).to(tl.float32)
        tl.store(sorted_scales + i, scale, mask=i < num_ids)


@triton.jit
def _list_runs(
    sorted_keys,
    counts,
    run_starts,
    chunk_runs,
    num_ids,
    total_rows,
    chunk: tl.constexpr,
    block: tl.constexpr,
):
    """Write where each run starts, where the last ends, and the run of each chunk's first id.

    ``counts`` are inclusive sums: the last is U.
    """
    pid = tl.program_id(0)
    i = pid * block + tl.arange(0, block)
    known, unknown = _starts(sorted_keys, i, num_ids, total_rows)
    before = tl.load(counts + pid - 1, mask=pid > 0, other=0)
    run = before + tl.cumsum(known.to(tl.int32), 0) - 1
    tl.store(run_starts + run, i, mask=known)
    tl.store(run_starts + run + 1, i, mask=unknown)
    tl.store(chunk_runs + i // chunk, run, mask=(i % chunk == 0) & (i < num_ids))
    # All keys known: the last run ends with the ids.
    last = tl.load(sorted_keys + num_ids - 1).to(tl.int64)
    if (pid == tl.num_programs(0) - 1) & (last < total_rows):
        tl.store(run_starts + tl.load(counts + pid), num_ids)


@triton.jit
def _mix(x):
    x = (x ^ (x >> 16)) * 0x85EBCA6B
    x = (x ^ (x >> 13)) * 0xC2B2AE35
    return x ^ (x >> 16)


@triton.jit
def _round(value, key, d, step, seed, target: tl.constexpr):
    """Round stochastically, keyed on (seed, step, row, column); see `reference.random_bits`."""
    stream = _mix(((tl.load(step) * 0x9E3779B9 + seed) & 0xFFFFFFFF).to(tl.uint32))
    low = (key & 0xFFFFFFFF).to(tl.uint32)
    row = _mix(_mix(low ^ stream) ^ (key >> 32).to(tl.uint32))
    noise = _mix(row[:, None] + d.to(tl.uint32)[None, :] * 0x9E3779B9)
    bits = value.to(tl.uint32, bitcast=True)
    if target == tl.bfloat16:
        rounded = ((bits + (noise >> 16)) & 0xFFFF0000).to(tl.float32, bitcast=True)
    else:
        rounded = ((bits + (noise >> 19)) & 0xFFFFE000).to(tl.float32, bitcast=True)
        fine = value * 16777216.0 + (noise >> 8).to(tl.float32) * (1.0 / 16777216)
        fine = tl.floor(fine) * (1.0 / 16777216)
        rounded = tl.where(tl.abs(value) < 6.103515625e-05, fine, rounded)
    finite = (bits & 0x7F800000) != 0x7F800000
    return tl.where(finite, rounded, value)


@triton.jit
def _gradients(
    grad,
    columns,
    sorted_places,
    sorted_scales,
    i,
    live,
    d,
    num_features,
    grad_stride,
    dim: tl.constexpr,
    uniform: tl.constexpr,
    aligned: tl.constexpr,
):
    """Read the gradient of the sorted ids i, [len(i), block_d] float32."""
    place = tl.load(sorted_places + i, mask=live, other=0).to(tl.int64)
    if uniform:
        at = place * dim
    else:
        column = tl.load(columns + place % num_features, mask=live, other=0)
        if aligned:
            column = tl.multiple_of(column, 8)
        at = (place // num_features) * grad_stride + column
    mask = live[:, None] & (d[None, :] < dim)
    g = tl.load(grad + at[:, None] + d[None, :], mask=mask, other=0.0).to(tl.float32)
    if sorted_scales is not None:
        g *= tl.load(sorted_scales + i, mask=live, other=0.0)[:, None]
    return g


@triton.jit
def _apply(
    g,
    w,
    key,
    live,
    d,
    weights,
    first,
    second,
    step,
    learning_rate,
    corrections,
    grad_scale,
    first_key,
    start,
    epsilon,
    beta1: tl.constexpr,
    beta2: tl.constexpr,
    seed,
    max_row_norm,
    dim: tl.constexpr,
    rule: tl.constexpr,
    stochastic: tl.constexpr,
):
    """Move rows w [R, D] by their gradients g and write them and their state."""
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
        square = tl.load(second + key, mask=live, other=0.0) + tl.sum(g * g, axis=1) / dim
        tl.store(second + key, square, mask=live)
        w = w - g * (lr / (tl.sqrt_rn(square) + epsilon))[:, None]
    else:
        mean = tl.load(first + at, mask=mask, other=0.0) * beta1 + g * (1 - beta1)
        tl.store(first + at, mean, mask=mask)
        root = tl.load(corrections + 1)
        if rule == ADAM:
            square = tl.load(second + at, mask=mask, other=0.0) * beta2 + g * g * (1 - beta2)
            tl.store(second + at, square, mask=mask)
            below = tl.sqrt_rn(square / root) + epsilon
        else:
            square = tl.load(second + key, mask=live, other=0.0) * beta2
            square += tl.sum(g * g, axis=1) / dim * (1 - beta2)
            tl.store(second + key, square, mask=live)
            below = (tl.sqrt_rn(square / root) + epsilon)[:, None]
        w = w - lr * (mean / tl.load(corrections)) / below
    if stochastic:
        w = _round(w, key, d, step, seed, weights.dtype.element_ty)
    tl.store(weights + at, w.to(weights.dtype.element_ty), mask=mask)


@triton.jit
def _apply_short(
    sorted_keys,
    sorted_places,
    sorted_scales,
    run_starts,
    num_runs,
    grad,
    columns,
    weights,
    first,
    second,
    step,
    learning_rate,
    corrections,
    grad_scale,
    skip,
    num_features,
    grad_stride,
    first_key,
    end_key,
    start,
    epsilon,
    beta1: tl.constexpr,
    beta2: tl.constexpr,
    seed,
    max_row_norm,
    dim: tl.constexpr,
    block_d: tl.constexpr,
    block_r: tl.constexpr,
    unroll: tl.constexpr,
    chunk: tl.constexpr,
    uniform: tl.constexpr,
    aligned: tl.constexpr,
    rule: tl.constexpr,
    stochastic: tl.constexpr,
):
    """Add up and apply the runs of at most chunk ids, one lane each."""
    runs = tl.load(num_runs)
    if skip is not None:
        runs = tl.where(tl.load(skip) != 0, 0, runs)
    d = tl.arange(0, block_d)
    for tile in range(tl.program_id(0), tl.cdiv(runs, block_r), tl.num_programs(0)):
        run = tile * block_r + tl.arange(0, block_r)
        begin = tl.load(run_starts + run, mask=run < runs, other=0)
        length = tl.load(run_starts + run + 1, mask=run < runs, other=0) - begin
        key = tl.load(sorted_keys + begin, mask=run < runs, other=-1).to(tl.int64)
        live = (length > 0) & (length <= chunk) & (key >= first_key) & (key < end_key)
        mask = live[:, None] & (d[None, :] < dim)
        at = weights + start + (key - first_key)[:, None] * dim + d[None, :]
        w = tl.load(at, mask=mask, other=0.0).to(tl.float32)
        length = tl.where(live, length, 0)
        g = _gradients(
            grad, columns, sorted_places, sorted_scales, begin, live, d, num_features, grad_stride,
            dim, uniform, aligned,
        )  # fmt: skip
        for done in range(1, tl.max(length, 0), unroll):
            for u in tl.static_range(unroll):
                g += _gradients(
                    grad, columns, sorted_places, sorted_scales, begin + done + u,
                    done + u < length, d, num_features, grad_stride, dim, uniform,
                    aligned,
                )  # fmt: skip
        _apply(
            g, w, key, live, d, weights, first, second, step, learning_rate, corrections,
            grad_scale, first_key, start, epsilon, beta1, beta2, seed, max_row_norm, dim, rule,
            stochastic,
        )  # fmt: skip


@triton.jit
def _last_run(run_starts, chunk_runs, num_runs, c, num_chunks, chunk: tl.constexpr):
    """Find the run of a chunk's last id."""
    following = tl.load(chunk_runs + c + 1, mask=c + 1 < num_chunks, other=0)
    begins = tl.load(run_starts + following)
    inside = tl.where(begins < (c + 1) * chunk, following, following - 1)
    return tl.where(c + 1 < num_chunks, inside, tl.load(num_runs) - 1)


@triton.jit
def _sum_chunks(
    sorted_keys,
    sorted_places,
    sorted_scales,
    run_starts,
    chunk_runs,
    num_runs,
    grad,
    columns,
    partials,
    num_features,
    grad_stride,
    num_chunks,
    first_key,
    end_key,
    dim: tl.constexpr,
    block_d: tl.constexpr,
    block_r: tl.constexpr,
    chunk: tl.constexpr,
    uniform: tl.constexpr,
    aligned: tl.constexpr,
):
    """Add up a chunk's ids of its first run, and of its last, where these runs are long."""
    c = tl.program_id(0)
    d = tl.arange(0, block_d)
    head = tl.load(chunk_runs + c)
    tail = _last_run(run_starts, chunk_runs, num_runs, c, num_chunks, chunk)
    for slot in tl.static_range(2):
        run = head if slot == 0 else tail
        wanted = (run >= 0) & ((slot == 0) | (tail != head))
        begin = tl.load(run_starts + run, mask=wanted, other=0)
        end = tl.load(run_starts + run + 1, mask=wanted, other=0)
        key = tl.load(sorted_keys + begin, mask=wanted, other=-1).to(tl.int64)
        wanted = wanted & (end - begin > chunk) & (end > c * chunk)
        if wanted & (key >= first_key) & (key < end_key):
            stop = tl.minimum(end, (c + 1) * chunk)
            acc = tl.zeros((block_r, block_d), tl.float32)
            for i in range(tl.maximum(begin, c * chunk), stop, block_r):
                at = i + tl.arange(0, block_r)
                acc += _gradients(
                    grad, columns, sorted_places, sorted_scales, at, at < stop, d, num_features,
                    grad_stride, dim, uniform, aligned,
                )  # fmt: skip
            place = (c.to(tl.int64) * 2 + slot) * dim + d
            tl.store(partials + place, tl.sum(acc, axis=0), mask=d < dim)


@triton.jit
def _apply_long(
    sorted_keys,
    run_starts,
    chunk_runs,
    num_runs,
    partials,
    weights,
    first,
    second,
    step,
    learning_rate,
    corrections,
    grad_scale,
    skip,
    num_chunks,
    first_key,
    end_key,
    start,
    epsilon,
    beta1: tl.constexpr,
    beta2: tl.constexpr,
    seed,
    max_row_norm,
    dim: tl.constexpr,
    block_d: tl.constexpr,
    block_r: tl.constexpr,
    chunk: tl.constexpr,
    rule: tl.constexpr,
    stochastic: tl.constexpr,
):
    """Add up the chunks' sums of the long run that starts in chunk c, if one does, and apply."""
    c = tl.program_id(0)
    d = tl.arange(0, block_d)
    head = tl.load(chunk_runs + c)
    run = _last_run(run_starts, chunk_runs, num_runs, c, num_chunks, chunk)
    begin = tl.load(run_starts + run, mask=run >= 0, other=0)
    end = tl.load(run_starts + run + 1, mask=run >= 0, other=0)
    key = tl.load(sorted_keys + begin).to(tl.int64)
    wanted = (run >= 0) & (end - begin > chunk) & (begin >= c * chunk)
    if skip is not None:
        wanted = wanted & (tl.load(skip) == 0)
    if wanted & (key >= first_key) & (key < end_key):
        last = (end - 1) // chunk
        acc = tl.zeros((block_r, block_d), tl.float32)
        for done in range(c, last + 1, block_r):
            at = done + tl.arange(0, block_r)
            slot = at.to(tl.int64) * 2 + tl.where((at == c) & (run != head), 1, 0)
            acc += tl.load(
                partials + slot[:, None] * dim + d[None, :],
                mask=(at <= last)[:, None] & (d[None, :] < dim),
                other=0.0,
            )
        g = tl.sum(acc, axis=0)[None, :]
        lane = tl.zeros((1,), tl.int64)
        at = weights + start + (key + lane - first_key)[:, None] * dim + d[None, :]
        w = tl.load(at, mask=d[None, :] < dim, other=0.0).to(tl.float32)
        _apply(
            g, w, key + lane, lane == 0, d, weights, first, second, step, learning_rate,
            corrections, grad_scale, first_key, start, epsilon, beta1, beta2, seed, max_row_norm,
            dim, rule, stochastic,
        )  # fmt: skip
