"""Triton kernels of HSTU attention: what both directions share, and the forward.

Axes: M events, H heads, D width of queries and keys, V width of values, B sequences.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCKS = {
    "forward": {
        64: (64, 64, 3, 4),
        128: (128, 64, 3, 8),
        256: (64, 32, 2, 4),
        1024: (16, 16, 1, 4),
    },
    "keys": {64: (32, 64, 3, 4), 128: (64, 64, 2, 4), 256: (32, 32, 1, 4), 1024: (16, 16, 1, 4)},
    "queries": {
        64: (64, 64, 3, 4),
        128: (128, 64, 3, 8),
        256: (32, 32, 1, 4),
        1024: (16, 16, 1, 4),
    },
}
"""Queries and keys of a tile, pipeline stages and warps, by the widest head in 16-bit numbers."""


@triton.jit
def _sigmoid(x, approximate: tl.constexpr):
    """Sigmoid by one hardware tanh (relative error about 2^-11), or exactly."""
    if approximate:
        t = tl.inline_asm_elementwise(
            "tanh.approx.f32 $0, $1;", "=f,f", [0.5 * x], dtype=tl.float32, is_pure=True, pack=1
        )
        return 0.5 * t + 0.5
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _bias(
    i,
    j,
    head,
    first,
    length,
    position_weights,
    position_buckets,
    num_positions: tl.constexpr,
    time_weights,
    query_times,
    key_times,
    num_times: tl.constexpr,
):
    """Look up the bias of queries i [m] and keys j [n], [m, n], and the buckets it came from."""
    both = (i[:, None] < length) & (j[None, :] < length)
    bias = tl.zeros([i.shape[0], j.shape[0]], tl.float32)
    position = tl.zeros([i.shape[0], j.shape[0]], tl.int32)
    elapsed = tl.zeros([i.shape[0], j.shape[0]], tl.int32)
    if num_positions > 0:
        distance = tl.maximum(i[:, None] - j[None, :], 0)
        position = tl.load(position_buckets + distance, mask=both, other=0)
        bias += tl.load(position_weights + head * num_positions + position, mask=both, other=0.0)
    if num_times > 0:
        asked = tl.load(query_times + first + i, mask=i < length, other=0)
        known = tl.load(key_times + first + j, mask=j < length, other=0)
        seconds = tl.maximum(asked[:, None] - known[None, :], 0).to(tl.float32) + 1.0
        elapsed = tl.minimum(tl.floor(tl.log2(seconds)).to(tl.int32), num_times - 1)
        bias += tl.load(time_weights + head * num_times + elapsed, mask=both, other=0.0)
    return bias, position, elapsed


@triton.jit
def _allowed(i, j, length, history):
    """Causal, and a target sees no other target, [m, n]."""
    causal = (i[:, None] >= j[None, :]) & (i[:, None] < length)
    return causal & ((j[None, :] < history) | (i[:, None] == j[None, :]) | (i[:, None] < history))


@triton.jit
def _load_rows(base, first, rows, length, stride, width: tl.constexpr, block_w: tl.constexpr):
    """Load rows of one head of one sequence, zero beyond its end, [m, block_w]."""
    w = tl.arange(0, block_w)
    at = (first + rows).to(tl.int64)[:, None] * stride + w[None, :]
    return tl.load(base + at, mask=(rows[:, None] < length) & (w[None, :] < width), other=0.0)


@triton.jit
def _forward_step(
    acc,
    q,
    k_at,
    v_at,
    i,
    begin,
    head,
    first,
    length,
    history,
    scale,
    position_weights,
    position_buckets,
    num_positions: tl.constexpr,
    time_weights,
    query_times,
    key_times,
    num_times: tl.constexpr,
    stride_k,
    stride_v,
    dim_k: tl.constexpr,
    dim_v: tl.constexpr,
    block_dk: tl.constexpr,
    block_dv: tl.constexpr,
    block_n: tl.constexpr,
    masked: tl.constexpr,
    approximate: tl.constexpr,
):
    j = begin + tl.arange(0, block_n)
    k = _load_rows(k_at, first, j, length, stride_k, dim_k, block_dk)
    v = _load_rows(v_at, first, j, length, stride_v, dim_v, block_dv)
    s = tl.dot(q, tl.trans(k), input_precision="tf32x3") * scale
    if num_positions + num_times > 0:
        bias, _, _ = _bias(
            i,
            j,
            head,
            first,
            length,
            position_weights,
            position_buckets,
            num_positions,
            time_weights,
            query_times,
            key_times,
            num_times,
        )
        s += bias
    p = s * _sigmoid(s, approximate)
    if masked:
        p = tl.where(_allowed(i, j, length, history), p, 0.0)
    return tl.dot(p.to(v.dtype), v, acc, input_precision="tf32x3")


@triton.jit
def _forward(
    q_at,
    k_at,
    v_at,
    out,
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
    stride_o,
    num_positions: tl.constexpr,
    num_times: tl.constexpr,
    has_targets: tl.constexpr,
    heads: tl.constexpr,
    dim_k: tl.constexpr,
    dim_v: tl.constexpr,
    block_dk: tl.constexpr,
    block_dv: tl.constexpr,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    approximate: tl.constexpr,
    stages: tl.constexpr,
):
    sequence = tl.program_id(1) // heads
    head = tl.program_id(1) % heads
    first = tl.load(offsets + sequence)
    length = (tl.load(offsets + sequence + 1) - first).to(tl.int32)
    # The last blocks have the most keys, so they start first.
    begin_m = (tl.num_programs(0) - 1 - tl.program_id(0)) * block_m
    if begin_m < length:
        history = length
        if has_targets:
            history = length - tl.load(num_targets + sequence).to(tl.int32)
        q_at += head * dim_k
        k_at += head * dim_k
        v_at += head * dim_v
        i = begin_m + tl.arange(0, block_m)
        q = _load_rows(q_at, first, i, length, stride_q, dim_k, block_dk)
        acc = tl.zeros([block_m, block_dv], tl.float32)
        whole = tl.minimum(begin_m, history) // block_n * block_n
        end = tl.minimum(begin_m + block_m, length)
        for begin in tl.range(0, whole, block_n, num_stages=stages):
            acc = _forward_step(
                acc,
                q,
                k_at,
                v_at,
                i,
                begin,
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
                stride_k,
                stride_v,
                dim_k,
                dim_v,
                block_dk,
                block_dv,
                block_n,
                False,
                approximate,
            )
        for begin in tl.range(whole, end, block_n, num_stages=1):
            acc = _forward_step(
                acc,
                q,
                k_at,
                v_at,
                i,
                begin,
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
                stride_k,
                stride_v,
                dim_k,
                dim_v,
                block_dk,
                block_dv,
                block_n,
                True,
                approximate,
            )
        w = tl.arange(0, block_dv)
        at = (first + i).to(tl.int64)[:, None] * stride_o + head * dim_v + w[None, :]
        acc *= inverse_length
        mask = (i[:, None] < length) & (w[None, :] < dim_v)
        tl.store(out + at, acc.to(out.dtype.element_ty), mask=mask)


def widths_of(q: Tensor, v: Tensor) -> dict[str, int]:
    """Give a kernel its widths, each also as the power of two that a tile has."""
    return {
        "heads": q.shape[1],
        "dim_k": q.shape[2],
        "dim_v": v.shape[2],
        "block_dk": max(16, triton.next_power_of_2(q.shape[2])),
        "block_dv": max(16, triton.next_power_of_2(v.shape[2])),
    }


def blocks_of(kernel: str, q: Tensor, v: Tensor) -> dict[str, int]:
    """Choose tiles by the widest head: measured on an H200 for 16-bit types, see the README."""
    single = q.dtype == torch.float32
    width = max(q.shape[2], v.shape[2]) * (4 if single else 1)
    queries, keys, stages, warps = next(
        blocks for limit, blocks in BLOCKS[kernel].items() if width <= limit
    )
    return {"block_m": queries, "block_n": keys, "stages": stages, "num_warps": warps}


class Biases:
    """The biases and targets as the kernels take them; absent ones are empty."""

    def __init__(
        self,
        q: Tensor,
        num_targets: Tensor | None,
        position: tuple[Tensor, Tensor] | None,
        time: tuple[Tensor, Tensor, Tensor] | None,
    ) -> None:
        self.num_targets = num_targets
        nothing = q.new_empty(0)
        weights, buckets = position if position is not None else (nothing, nothing)
        time_weights, asked, known = time if time is not None else (nothing,) * 3
        self.tensors = (weights, buckets, time_weights, asked, known)
        self.sizes: dict[str, Any] = {
            "num_positions": weights.shape[1] if position is not None else 0,
            "num_times": time_weights.shape[1] if time is not None else 0,
            "has_targets": num_targets is not None,
            "approximate": q.is_cuda and q.dtype != torch.float32,
        }


def forward(
    q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, max_length: int, biases: Biases
) -> Tensor:
    """Attend within each sequence, [M, H, V]; see `hstu_attention`."""
    out = torch.empty(q.shape[0], q.shape[1], v.shape[2], dtype=q.dtype, device=q.device)
    blocks = blocks_of("forward", q, v)
    grid = (triton.cdiv(max_length, blocks["block_m"]), (len(offsets) - 1) * q.shape[1])
    _forward[grid](
        q, k, v, out, offsets, biases.num_targets, *biases.tensors,
        q.shape[2] ** -0.5, 1.0 / max_length, q.stride(0), k.stride(0), v.stride(0), out.stride(0),
        **biases.sizes, **widths_of(q, v), **blocks,
    )  # fmt: skip
    return out
