"""Triton kernel of the bias gradients: a fixed number of partial sums, which are added in order.

A program takes tiles of one block diagonal, in which the distances are the same in every tile: so
the gradients by distance are one sum of tiles, parted into buckets at its end. By time, a tile of
one bucket is added to that bucket's run, which is summed up when the bucket changes; a tile of
several is parted at once.

Axes: M events, H heads, D width of queries and keys, V width of values, B sequences.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from recsys.kernels.hstu_attention.triton_backward import _score_gradients
from recsys.kernels.hstu_attention.triton_bias import (
    Bias,
    _elapsed,
    _time_bucket,
    _time_span,
)
from recsys.kernels.hstu_attention.triton_kernel import (
    _allowed,
    _load_rows,
    _place,
    blocks_of,
    kernel_widths,
)

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
    totals, run, current, ds, begin_m, begin_n, span, place, bias, num_times: tl.constexpr
):
    """Add a tile to the run of its bucket, or to the totals where it has several."""
    low, high = tl.minimum(span[0], num_times - 1), tl.minimum(span[1], num_times - 1)
    if low == high:
        if low != current:
            totals = _add_to(totals, run, current)
            run = tl.zeros_like(run)
            current = low
        run += ds
    else:
        elapsed = _elapsed(begin_m, begin_n, ds.shape[0], ds.shape[1], place, bias, False)
        bucket = tl.minimum(_time_bucket(elapsed), num_times - 1)
        if begin_m == begin_n:
            i, j = begin_m + tl.arange(0, ds.shape[0]), begin_n + tl.arange(0, ds.shape[1])
            live = _allowed(i[:, None], j[None, :], place)
            low = tl.min(tl.where(live, bucket, num_times - 1))
        totals = _add_by_bucket(totals, ds, bucket, low, high)
    return totals, run, current


@triton.jit
def _backward_biases(
    q_at, k_at, v_at, do_at, position_parts, time_parts, offsets, positions,
    position_stride, time_table, query_at, known_at, spans, span_stride, buckets, scale,
    inverse_length, stride_q, stride_k, stride_v, stride_do, num_sequences, num_blocks, max_length,
    num_positions: tl.constexpr, num_times: tl.constexpr,
    heads: tl.constexpr, dim_k: tl.constexpr, dim_v: tl.constexpr, block_dk: tl.constexpr,
    block_dv: tl.constexpr, block: tl.constexpr, block_p: tl.constexpr, block_t: tl.constexpr,
    parts: tl.constexpr, on_gpu: tl.constexpr, exact: tl.constexpr,
):  # fmt: skip
    bias = (positions, position_stride, time_table, query_at, known_at, spans, span_stride)
    diagonal, head = tl.program_id(1), tl.program_id(2)
    by_distance = tl.zeros([block, block], tl.float32)
    run = tl.zeros([block, block], tl.float32)
    current = 0
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
            q = _load_rows(q_at, i, place, stride_q, dim_k, block_dk)
            k = _load_rows(k_at, j, place, stride_k, dim_k, block_dk)
            v = _load_rows(v_at, j, place, stride_v, dim_v, block_dv)
            do = _load_rows(do_at, i, place, stride_do, dim_v, block_dv)
            span = _time_span(begin_m, block, begin_n, block, place, bias)
            ds = _score_gradients(
                q, k, v, do, begin_m, begin_n, span, place, bias, scale, on_gpu, exact
            )
            if (diagonal == 0) | (begin_n + block > place[2]):
                ds = tl.where(_allowed(i[:, None], j[None, :], place), ds, 0.0)
            if num_positions > 0:
                by_distance += ds
            if num_times > 0:
                times, run, current = _add_times(
                    times, run, current, ds, begin_m, begin_n, span, place, bias, num_times
                )
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
        times = _add_to(times, run, current)
        times = times * inverse_length
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
        q, k, v, do, position_parts, time_parts, offsets, *bias.tensors(),
        bias.position_buckets, q.shape[2] ** -0.5, 1.0 / max_length,
        q.stride(0), k.stride(0), v.stride(0), do.stride(0),
        len(offsets) - 1, num_blocks, max_length, num_positions=counts[0], num_times=counts[1],
        **bias.sizes(q), **kernel_widths(q, v), block=block, parts=BIAS_PARTS,
        num_warps=chosen["num_warps"], maxnreg=chosen["maxnreg"],
        block_p=triton.next_power_of_2(max(1, counts[0])),
        block_t=triton.next_power_of_2(max(1, counts[1])),
    )  # fmt: skip
    return position_parts.sum(0), time_parts.sum(0)
