"""Triton kernel of the bias gradients: a fixed number of partial sums, which are added in order.

Axes: M events, H heads, D width of queries and keys, V width of values, B sequences.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from recsys.kernels.hstu_attention.triton_backward import _score_gradient
from recsys.kernels.hstu_attention.triton_kernel import (
    Biases,
    _allowed,
    _load_rows,
    blocks_of,
    widths_of,
)

BIAS_PARTS = 64
"""Partial sums of the bias gradients per head; fixed, so that the order of additions is."""


@triton.jit
def _add_by_bucket(total, ds, bucket, live, buckets: tl.constexpr):
    """Add a tile of gradients to the totals of its buckets, from its least to its greatest."""
    place = tl.arange(0, buckets)
    low = tl.min(tl.where(live, bucket, buckets))
    high = tl.max(tl.where(live, bucket, -1))
    for one in range(low, high + 1):
        part = tl.sum(tl.where(live & (bucket == one), ds, 0.0))
        total = tl.where(place == one, total + part, total)
    return total


@triton.jit
def _backward_biases(
    q_at,
    k_at,
    v_at,
    do_at,
    position_parts,
    time_parts,
    offsets,
    num_targets,
    position_weights,
    position_buckets,
    time_weights,
    query_times,
    key_times,
    scale,
    inverse_length,
    stride_q,
    stride_k,
    stride_v,
    stride_do,
    num_sequences,
    blocks,
    num_positions: tl.constexpr,
    num_times: tl.constexpr,
    has_targets: tl.constexpr,
    heads: tl.constexpr,
    dim_k: tl.constexpr,
    dim_v: tl.constexpr,
    block_dk: tl.constexpr,
    block_dv: tl.constexpr,
    block: tl.constexpr,
    block_p: tl.constexpr,
    block_t: tl.constexpr,
    parts: tl.constexpr,
    approximate: tl.constexpr,
):
    """Sum score gradients by bucket over every parts-th block of queries of one head."""
    head = tl.program_id(1)
    positions = tl.zeros([block_p], tl.float32)
    times = tl.zeros([block_t], tl.float32)
    for unit in range(tl.program_id(0), num_sequences * blocks, parts):
        sequence = unit // blocks
        begin_m = unit % blocks * block
        first = tl.load(offsets + sequence)
        length = (tl.load(offsets + sequence + 1) - first).to(tl.int32)
        if begin_m < length:
            history = length
            if has_targets:
                history = length - tl.load(num_targets + sequence).to(tl.int32)
            i = begin_m + tl.arange(0, block)
            q = _load_rows(q_at + head * dim_k, first, i, length, stride_q, dim_k, block_dk)
            do = _load_rows(do_at + head * dim_v, first, i, length, stride_do, dim_v, block_dv)
            for begin in range(0, tl.minimum(begin_m + block, length), block):
                j = begin + tl.arange(0, block)
                k = _load_rows(k_at + head * dim_k, first, j, length, stride_k, dim_k, block_dk)
                v = _load_rows(v_at + head * dim_v, first, j, length, stride_v, dim_v, block_dv)
                _, ds, position, elapsed = _score_gradient(
                    q,
                    k,
                    v,
                    do,
                    i,
                    j,
                    head,
                    first,
                    length,
                    history,
                    scale,
                    position_weights,
                    position_buckets,
                    num_positions,
                    time_weights,
                    query_times,
                    key_times,
                    num_times,
                    True,
                    approximate,
                )
                live = _allowed(i, j, length, history)
                if num_positions > 0:
                    positions = _add_by_bucket(positions, ds, position, live, block_p)
                if num_times > 0:
                    times = _add_by_bucket(times, ds, elapsed, live, block_t)
    row = tl.program_id(0) * heads + head
    if num_positions > 0:
        place = tl.arange(0, block_p)
        at = position_parts + row * num_positions + place
        tl.store(at, positions * inverse_length, mask=place < num_positions)
    if num_times > 0:
        place = tl.arange(0, block_t)
        at = time_parts + row * num_times + place
        tl.store(at, times * inverse_length, mask=place < num_times)


def backward_biases(
    q: Tensor, k: Tensor, v: Tensor, do: Tensor, offsets: Tensor, max_length: int, biases: Biases
) -> tuple[Tensor, Tensor]:
    """Gradients of the position and time weights, [H, buckets] each, empty where there are none."""
    positions, times = biases.sizes["num_positions"], biases.sizes["num_times"]
    shape = (BIAS_PARTS, q.shape[1])
    position_parts = torch.empty(*shape, positions, dtype=torch.float32, device=q.device)
    time_parts = torch.empty(*shape, times, dtype=torch.float32, device=q.device)
    block = blocks_of("keys", q, v)["block_m"]
    _backward_biases[(BIAS_PARTS, q.shape[1])](
        q, k, v, do, position_parts, time_parts, offsets, biases.num_targets, *biases.tensors,
        q.shape[2] ** -0.5, 1.0 / max_length,
        q.stride(0), k.stride(0), v.stride(0), do.stride(0),
        len(offsets) - 1, triton.cdiv(max_length, block), **biases.sizes, **widths_of(q, v),
        block=block, parts=BIAS_PARTS, num_warps=4,
        block_p=triton.next_power_of_2(max(1, positions)),
        block_t=triton.next_power_of_2(max(1, times)),
    )  # fmt: skip
    return position_parts.sum(0), time_parts.sum(0)
