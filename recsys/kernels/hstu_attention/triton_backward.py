"""Triton kernels of HSTU attention, backward; no atomics, so equal inputs give equal bits.

One kernel makes the keys' and values' gradients (a program per block of keys), one the queries' (a
program per block of queries): scores are computed twice, and in return no two programs add to one
number. The bias gradients are a fixed number of partial sums, which are added in order: a program
takes tiles of one block diagonal, in which the distances are the same in every tile, so the
gradients by distance are one sum of tiles, parted into buckets at its end. By time, a tile of one
bucket or two is added to their runs, which are summed up when the buckets change; a tile of more
is parted at once.

Axes: M events, H heads, D width of queries and keys, V width of values, B sequences.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from recsys.kernels.hstu_attention.triton_kernel import (
    Bias,
    _add_bias,
    _allowed,
    _elapsed,
    _load_rows,
    _load_tile,
    _place,
    _store_rows,
    _tanh,
    _time_bucket,
    _time_span,
    blocks_of,
    half_scale,
    kernel_widths,
    tiles_of,
)


@triton.jit
def _score_gradient(half, dp, on_gpu: tl.constexpr, exact: tl.constexpr):
    """Compute weights p and twice the gradient of the scores, of which ``half`` is the half."""
    if on_gpu and not exact:
        t = _tanh(half)
        return half * t + half, dp * (half * (1.0 - t * t) + t) + dp
    g = 1.0 / (1.0 + tl.exp(-2.0 * half))
    p = 2.0 * half * g
    return p, 2.0 * dp * (g + p * (1.0 - g))


@triton.jit
def _keys_step(
    dk, dv, q_at, do_at, q_tiles, do_tiles, k, v, begin_n, begin, place, bias, scale, stride_q,
    stride_do, dim_k: tl.constexpr, dim_v: tl.constexpr, block_dk: tl.constexpr,
    block_dv: tl.constexpr, block_m: tl.constexpr, masked: tl.constexpr, on_gpu: tl.constexpr,
    exact: tl.constexpr,
):  # fmt: skip
    i = begin + tl.arange(0, block_m)
    q = _load_tile(q_tiles, q_at, begin, i, place, stride_q, dim_k, block_dk)
    do = _load_tile(do_tiles, do_at, begin, i, place, stride_do, dim_v, block_dv)
    # Keys down and queries across, [n, m]: what the two products below need.
    span = _time_span(begin, block_m, begin_n, k.shape[0], place, bias)
    s = tl.dot(k, tl.trans(q), input_precision="tf32x3") * scale
    s = _add_bias(s, begin_n, begin, span, place, bias, on_gpu, True)
    dp = tl.dot(v, tl.trans(do), input_precision="tf32x3")
    p, ds = _score_gradient(s, dp, on_gpu, exact)
    if masked:
        j = begin_n + tl.arange(0, k.shape[0])
        allowed = _allowed(i[None, :], j[:, None], place)
        p = tl.where(allowed, p, 0.0)
        ds = tl.where(allowed, ds, 0.0)
    dv = tl.dot(p.to(do.dtype), do, dv, input_precision="tf32x3")
    dk = tl.dot(ds.to(q.dtype), q, dk, input_precision="tf32x3")
    return dk, dv


@triton.jit
def _backward_keys(
    q_at, k_at, v_at, do_at, q_tiles, do_tiles, dk_out, dv_out, offsets, positions, position_stride,
    time_table, query_at, known_at, spans, span_stride, scale, inverse_length,
    stride_q, stride_k, stride_v, stride_do, stride_dk, stride_dv,
    heads: tl.constexpr, dim_k: tl.constexpr, dim_v: tl.constexpr, block_dk: tl.constexpr,
    block_dv: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr, on_gpu: tl.constexpr,
    exact: tl.constexpr, stages: tl.constexpr,
):  # fmt: skip
    """Gradients of one block of keys and values: all queries from the block on."""
    place = _place(offsets, tl.program_id(1), heads)
    bias = (positions, position_stride, time_table, query_at, known_at, spans, span_stride)
    length = place[2]
    begin_n = tl.program_id(0) * block_n
    if begin_n < length:
        j = begin_n + tl.arange(0, block_n)
        k = _load_rows(k_at, j, place, stride_k, dim_k, block_dk)
        v = _load_rows(v_at, j, place, stride_v, dim_v, block_dv)
        dk = tl.zeros([block_n, block_dk], tl.float32)
        dv = tl.zeros([block_n, block_dv], tl.float32)
        start = begin_n // block_m * block_m
        # Queries beyond the block see all of it; the last ones may not fill a tile.
        whole = tl.minimum(tl.cdiv(begin_n + block_n, block_m) * block_m, length)
        full = tl.maximum(length // block_m * block_m, whole)
        for at in tl.range(start, whole + tl.minimum(length - full, 1), block_m, num_stages=1):
            dk, dv = _keys_step(
                dk, dv, q_at, do_at, None, None, k, v, begin_n, tl.where(at < whole, at, full),
                place, bias, scale, stride_q, stride_do, dim_k, dim_v, block_dk, block_dv, block_m,
                True, on_gpu, exact,
            )  # fmt: skip
        for begin in tl.range(whole, full, block_m, num_stages=stages):
            dk, dv = _keys_step(
                dk, dv, q_at, do_at, q_tiles, do_tiles, k, v, begin_n, begin, place, bias, scale,
                stride_q, stride_do, dim_k, dim_v, block_dk, block_dv, block_m, False, on_gpu,
                exact,
            )  # fmt: skip
        _store_rows(dk_out, dk * (scale * inverse_length), j, place, stride_dk, dim_k, block_dk)
        _store_rows(dv_out, dv * inverse_length, j, place, stride_dv, dim_v, block_dv)


@triton.jit
def _score_gradients(
    q, k, v, do, begin_m, begin, span, place, bias, scale, on_gpu: tl.constexpr,
    exact: tl.constexpr,
):  # fmt: skip
    """Twice the gradients of the scores of queries from begin_m on and keys from begin on."""
    s = tl.dot(q, tl.trans(k), input_precision="tf32x3") * scale
    s = _add_bias(s, begin_m, begin, span, place, bias, on_gpu, False)
    dp = tl.dot(do, tl.trans(v), input_precision="tf32x3")
    _, ds = _score_gradient(s, dp, on_gpu, exact)
    return ds


@triton.jit
def _queries_step(
    dq, q, do, k_at, v_at, k_tiles, v_tiles, begin_m, begin, place, bias, scale, stride_k,
    stride_v, dim_k: tl.constexpr, dim_v: tl.constexpr, block_dk: tl.constexpr,
    block_dv: tl.constexpr, block_n: tl.constexpr, masked: tl.constexpr, on_gpu: tl.constexpr,
    exact: tl.constexpr,
):  # fmt: skip
    j = begin + tl.arange(0, block_n)
    k = _load_tile(k_tiles, k_at, begin, j, place, stride_k, dim_k, block_dk)
    v = _load_tile(v_tiles, v_at, begin, j, place, stride_v, dim_v, block_dv)
    span = _time_span(begin_m, q.shape[0], begin, block_n, place, bias)
    ds = _score_gradients(q, k, v, do, begin_m, begin, span, place, bias, scale, on_gpu, exact)
    if masked:
        i = begin_m + tl.arange(0, q.shape[0])
        ds = tl.where(_allowed(i[:, None], j[None, :], place), ds, 0.0)
    return tl.dot(ds.to(k.dtype), k, dq, input_precision="tf32x3")


@triton.jit
def _backward_queries(
    q_at, k_at, v_at, do_at, k_tiles, v_tiles, dq_out, offsets, positions, position_stride,
    time_table, query_at, known_at, spans, span_stride, scale, inverse_length,
    stride_q, stride_k, stride_v, stride_do, stride_dq,
    heads: tl.constexpr, dim_k: tl.constexpr, dim_v: tl.constexpr, block_dk: tl.constexpr,
    block_dv: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr, on_gpu: tl.constexpr,
    exact: tl.constexpr, stages: tl.constexpr,
):  # fmt: skip
    """Gradients of one block of queries: all keys up to the block."""
    place = _place(offsets, tl.program_id(1), heads)
    bias = (positions, position_stride, time_table, query_at, known_at, spans, span_stride)
    length = place[2]
    begin_m = (tl.num_programs(0) - 1 - tl.program_id(0)) * block_m
    if begin_m < length:
        i = begin_m + tl.arange(0, block_m)
        q = _load_rows(q_at, i, place, stride_q, dim_k, block_dk)
        do = _load_rows(do_at, i, place, stride_do, dim_v, block_dv)
        dq = tl.zeros([block_m, block_dk], tl.float32)
        whole = tl.minimum(begin_m, length) // block_n * block_n
        end = tl.minimum(begin_m + block_m, length)
        for begin in tl.range(0, whole, block_n, num_stages=stages):
            dq = _queries_step(
                dq, q, do, k_at, v_at, k_tiles, v_tiles, begin_m, begin, place, bias, scale,
                stride_k, stride_v, dim_k, dim_v, block_dk, block_dv, block_n, False, on_gpu, exact,
            )  # fmt: skip
        for begin in tl.range(whole, end, block_n, num_stages=1):
            dq = _queries_step(
                dq, q, do, k_at, v_at, None, None, begin_m, begin, place, bias, scale, stride_k,
                stride_v, dim_k, dim_v, block_dk, block_dv, block_n, True, on_gpu, exact,
            )  # fmt: skip
        _store_rows(dq_out, dq * (scale * inverse_length), i, place, stride_dq, dim_k, block_dk)


def backward(
    q: Tensor, k: Tensor, v: Tensor, do: Tensor, offsets: Tensor, max_length: int, bias: Bias
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values."""
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    widths, pairs = kernel_widths(q, v), (len(offsets) - 1) * q.shape[1]
    blocks = blocks_of("keys", q, v, biased=bias.present)
    scalars = (half_scale(q), 1.0 / max_length)
    strides = (q.stride(0), k.stride(0), v.stride(0), do.stride(0))
    _backward_keys[(triton.cdiv(max_length, blocks["block_n"]), pairs)](
        q, k, v, do, tiles_of(q, blocks["block_m"]), tiles_of(do, blocks["block_m"]), dk, dv,
        offsets, *bias.tensors(), *scalars,
        *strides, dk.stride(0), dv.stride(0), **bias.sizes(q), **widths, **blocks,
    )  # fmt: skip
    blocks = blocks_of("queries", q, v, biased=bias.present)
    _backward_queries[(triton.cdiv(max_length, blocks["block_m"]), pairs)](
        q, k, v, do, tiles_of(k, blocks["block_n"]), tiles_of(v, blocks["block_n"]), dq,
        offsets, *bias.tensors(), *scalars,
        *strides, dq.stride(0), **bias.sizes(q), **widths, **blocks,
    )  # fmt: skip
    return dq, dk, dv


BIAS_PARTS = 32
"""Partial sums for each head and block diagonal; fixed, so that the order of additions is."""


@triton.jit
def _add_by_bucket(totals, ds, bucket, low, high):
    """Add a tile of gradients to the totals of buckets low to high."""
    for one in range(low, high + 1):
        totals = _add_to(totals, tl.where(bucket == one, ds, 0.0), one)
    return totals


@triton.jit
def _add_to(totals, ds, bucket):
    """Add a tile to one bucket's total."""
    return tl.where(tl.arange(0, totals.shape[0]) == bucket, totals + tl.sum(ds), totals)


@triton.jit
def _add_times(
    totals, run, next_run, current, ds, begin_m, begin_n, span, place, bias, num_times: tl.constexpr
):  # fmt: skip
    """Add a tile of up to two buckets to their runs, or to the totals if it has more."""
    low, high = tl.minimum(span[0], num_times - 1), tl.minimum(span[1], num_times - 1)
    if high <= low + 1:
        if low != current:
            totals = _add_to(_add_to(totals, run, current), next_run, current + 1)
            run, next_run = tl.zeros_like(run), tl.zeros_like(run)
            current = low
        if low < high:
            elapsed = _elapsed(begin_m, begin_n, ds.shape[0], ds.shape[1], place, bias, False)
            later = _time_bucket(elapsed) >= high
            next_run += tl.sum(tl.where(later, ds, 0.0), 1)
            ds = tl.where(later, 0.0, ds)
        run += tl.sum(ds, 1)
    else:
        elapsed = _elapsed(begin_m, begin_n, ds.shape[0], ds.shape[1], place, bias, False)
        bucket = tl.minimum(_time_bucket(elapsed), num_times - 1)
        if begin_m == begin_n:
            i, j = begin_m + tl.arange(0, ds.shape[0]), begin_n + tl.arange(0, ds.shape[1])
            live = _allowed(i[:, None], j[None, :], place)
            low = tl.min(tl.where(live, bucket, num_times - 1))
        totals = _add_by_bucket(totals, ds, bucket, low, high)
    return totals, run, next_run, current


@triton.jit
def _backward_biases(
    q_at, k_at, v_at, do_at, q_tiles, k_tiles, v_tiles, do_tiles, position_parts, time_parts,
    offsets, positions, position_stride, time_table, query_at, known_at, spans, span_stride,
    buckets, scale, inverse_length, stride_q, stride_k, stride_v, stride_do, num_sequences,
    num_blocks, max_length, num_positions: tl.constexpr, num_times: tl.constexpr,
    heads: tl.constexpr, dim_k: tl.constexpr, dim_v: tl.constexpr, block_dk: tl.constexpr,
    block_dv: tl.constexpr, block: tl.constexpr, block_p: tl.constexpr, block_t: tl.constexpr,
    parts: tl.constexpr, on_gpu: tl.constexpr, exact: tl.constexpr,
):  # fmt: skip
    bias = (positions, position_stride, time_table, query_at, known_at, spans, span_stride)
    diagonal, head = tl.program_id(1), tl.program_id(2)
    by_distance = tl.zeros([block, block], tl.float32)
    run, next_run, current = tl.sum(by_distance, 1), tl.sum(by_distance, 1), 0
    times = tl.zeros([block_t], tl.float32)
    tiles = num_sequences * (num_blocks - diagonal)
    share = tl.cdiv(tiles, parts)
    begin = tl.program_id(0) * share
    for tile in range(begin, tl.minimum(begin + share, tiles)):
        sequence = tile // (num_blocks - diagonal)
        begin_n = tile % (num_blocks - diagonal) * block
        begin_m = begin_n + diagonal * block
        place = _place(offsets, sequence * heads + head, heads)
        if begin_m < place[2]:
            i, j = begin_m + tl.arange(0, block), begin_n + tl.arange(0, block)
            q = _load_tile(q_tiles, q_at, begin_m, i, place, stride_q, dim_k, block_dk)
            k = _load_tile(k_tiles, k_at, begin_n, j, place, stride_k, dim_k, block_dk)
            v = _load_tile(v_tiles, v_at, begin_n, j, place, stride_v, dim_v, block_dv)
            do = _load_tile(do_tiles, do_at, begin_m, i, place, stride_do, dim_v, block_dv)
            span = _time_span(begin_m, block, begin_n, block, place, bias)
            ds = _score_gradients(
                q, k, v, do, begin_m, begin_n, span, place, bias, scale, on_gpu, exact
            )
            if (diagonal == 0) | (begin_m + block > place[2]):
                ds = tl.where(_allowed(i[:, None], j[None, :], place), ds, 0.0)
            if num_positions > 0:
                by_distance += ds
            if num_times > 0:
                times, run, next_run, current = _add_times(
                    times, run, next_run, current, ds, begin_m, begin_n, span, place, bias,
                    num_times,
                )  # fmt: skip
    row = ((tl.program_id(0) * tl.num_programs(1) + diagonal) * heads + head).to(tl.int64)
    if num_positions > 0:
        i, j = diagonal * block + tl.arange(0, block), tl.arange(0, block)
        distance = i[:, None] - j[None, :]
        inside = (distance >= 0) & (distance < max_length)
        bucket = tl.load(buckets + distance, mask=inside, other=-1)
        low = tl.min(tl.where(inside, bucket, num_positions))
        sums = tl.zeros([block_p], tl.float32)
        high = tl.where(begin < tiles, tl.max(bucket), -1)
        sums = _add_by_bucket(sums, by_distance, bucket, low, high)
        sums = sums * inverse_length
        one = tl.arange(0, block_p)
        tl.store(position_parts + row * num_positions + one, sums, mask=one < num_positions)
    if num_times > 0:
        one = tl.arange(0, block_t)
        times = _add_to(_add_to(times, run, current), next_run, current + 1) * inverse_length
        tl.store(time_parts + row * num_times + one, times, mask=one < num_times)


def backward_biases(
    q: Tensor, k: Tensor, v: Tensor, do: Tensor, offsets: Tensor, max_length: int, bias: Bias
) -> tuple[Tensor, Tensor]:
    """Gradients of the position and time weights, [H, buckets] each, empty where there are none."""
    chosen = blocks_of("biases", q, v, biased=True)
    block = chosen["block_m"]
    num_blocks, heads = triton.cdiv(max_length, block), q.shape[1]
    counts = (bias.num_positions, bias.num_times)
    position_parts, time_parts = (
        torch.empty(BIAS_PARTS * num_blocks, heads, n, dtype=torch.float32, device=q.device)
        for n in counts
    )
    _backward_biases[(BIAS_PARTS, num_blocks, heads)](
        q, k, v, do, *(tiles_of(one, block) for one in (q, k, v, do)), position_parts, time_parts,
        offsets, *bias.tensors(),
        bias.position_buckets, half_scale(q), 0.5 / max_length,
        q.stride(0), k.stride(0), v.stride(0), do.stride(0),
        len(offsets) - 1, num_blocks, max_length, num_positions=counts[0], num_times=counts[1],
        **bias.sizes(q), **kernel_widths(q, v), block=block, parts=BIAS_PARTS,
        num_warps=chosen["num_warps"], maxnreg=chosen["maxnreg"],
        block_p=triton.next_power_of_2(max(1, counts[0])),
        block_t=triton.next_power_of_2(max(1, counts[1])),
    )  # fmt: skip
    return position_parts.sum(0), time_parts.sum(0)
