"""Triton kernels of HSTU attention, backward; no atomics, so equal inputs give equal bits.

One kernel makes the keys' and values' gradients (a program per block of keys), one the queries' (a
program per block of queries): scores are computed twice, and in return no two programs add to one
number.

Axes: M events, H heads, D width of queries and keys, V width of values, B sequences.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from recsys.kernels.hstu_attention.triton_kernel import (
    Biases,
    _allowed,
    _bias,
    _load_rows,
    _sigmoid,
    blocks_of,
    widths_of,
)


@triton.jit
def _score_gradient(
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
    num_positions: tl.constexpr,
    time_weights,
    query_times,
    key_times,
    num_times: tl.constexpr,
    masked: tl.constexpr,
    approximate: tl.constexpr,
):
    """Compute weights p and the gradient of their scores, each [m, n], and the bias buckets."""
    s = tl.dot(q, tl.trans(k), input_precision="tf32x3") * scale
    bias, position, elapsed = _bias(
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
    if num_positions + num_times > 0:
        s += bias
    g = _sigmoid(s, approximate)
    p = s * g
    ds = tl.dot(do, tl.trans(v), input_precision="tf32x3") * (g + p * (1.0 - g))
    if masked:
        allowed = _allowed(i, j, length, history)
        p = tl.where(allowed, p, 0.0)
        ds = tl.where(allowed, ds, 0.0)
    return p, ds, position, elapsed


@triton.jit
def _score_gradient_of_keys(
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
    num_positions: tl.constexpr,
    time_weights,
    query_times,
    key_times,
    num_times: tl.constexpr,
    masked: tl.constexpr,
    approximate: tl.constexpr,
):
    """The same with keys down and queries across, each [n, m]: what the keys' products need."""
    s = tl.dot(k, tl.trans(q), input_precision="tf32x3") * scale
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
        s += tl.trans(bias)
    g = _sigmoid(s, approximate)
    p = s * g
    ds = tl.dot(v, tl.trans(do), input_precision="tf32x3") * (g + p * (1.0 - g))
    if masked:
        allowed = tl.trans(_allowed(i, j, length, history).to(tl.int8)) != 0
        p = tl.where(allowed, p, 0.0)
        ds = tl.where(allowed, ds, 0.0)
    return p, ds


@triton.jit
def _keys_step(
    dk,
    dv,
    q_at,
    do_at,
    k,
    v,
    j,
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
    stride_q,
    stride_do,
    dim_k: tl.constexpr,
    dim_v: tl.constexpr,
    block_dk: tl.constexpr,
    block_dv: tl.constexpr,
    block_m: tl.constexpr,
    masked: tl.constexpr,
    approximate: tl.constexpr,
):
    i = begin + tl.arange(0, block_m)
    q = _load_rows(q_at, first, i, length, stride_q, dim_k, block_dk)
    do = _load_rows(do_at, first, i, length, stride_do, dim_v, block_dv)
    p, ds = _score_gradient_of_keys(
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
        masked,
        approximate,
    )
    dv = tl.dot(p.to(do.dtype), do, dv, input_precision="tf32x3")
    dk = tl.dot(ds.to(q.dtype), q, dk, input_precision="tf32x3")
    return dk, dv


@triton.jit
def _backward_keys(
    q_at,
    k_at,
    v_at,
    do_at,
    dk_out,
    dv_out,
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
    stride_dk,
    stride_dv,
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
    """Gradients of one block of keys and values: all queries from the block on."""
    sequence = tl.program_id(1) // heads
    head = tl.program_id(1) % heads
    first = tl.load(offsets + sequence)
    length = (tl.load(offsets + sequence + 1) - first).to(tl.int32)
    begin_n = tl.program_id(0) * block_n
    if begin_n < length:
        history = length
        if has_targets:
            history = length - tl.load(num_targets + sequence).to(tl.int32)
        q_at += head * dim_k
        k_at += head * dim_k
        v_at += head * dim_v
        do_at += head * dim_v
        j = begin_n + tl.arange(0, block_n)
        k = _load_rows(k_at, first, j, length, stride_k, dim_k, block_dk)
        v = _load_rows(v_at, first, j, length, stride_v, dim_v, block_dv)
        dk = tl.zeros([block_n, block_dk], tl.float32)
        dv = tl.zeros([block_n, block_dv], tl.float32)
        start = begin_n // block_m * block_m
        # Queries beyond the block see all of it, unless it holds targets, which few of them do.
        whole = tl.cdiv(begin_n + block_n, block_m) * block_m
        if has_targets:
            whole = tl.where(begin_n + block_n > history, length, whole)
        whole = tl.minimum(whole, length)
        for begin in tl.range(start, whole, block_m, num_stages=1):
            dk, dv = _keys_step(
                dk,
                dv,
                q_at,
                do_at,
                k,
                v,
                j,
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
                stride_q,
                stride_do,
                dim_k,
                dim_v,
                block_dk,
                block_dv,
                block_m,
                True,
                approximate,
            )
        # Rows beyond the end load as zeros, and zero times anything adds nothing.
        for begin in tl.range(whole, length, block_m, num_stages=stages):
            dk, dv = _keys_step(
                dk,
                dv,
                q_at,
                do_at,
                k,
                v,
                j,
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
                stride_q,
                stride_do,
                dim_k,
                dim_v,
                block_dk,
                block_dv,
                block_m,
                False,
                approximate,
            )
        rows = (first + j).to(tl.int64)[:, None]
        w = tl.arange(0, block_dk)
        mask = (j[:, None] < length) & (w[None, :] < dim_k)
        dk *= scale * inverse_length
        at = rows * stride_dk + head * dim_k + w[None, :]
        tl.store(dk_out + at, dk.to(dk_out.dtype.element_ty), mask=mask)
        w = tl.arange(0, block_dv)
        mask = (j[:, None] < length) & (w[None, :] < dim_v)
        dv *= inverse_length
        at = rows * stride_dv + head * dim_v + w[None, :]
        tl.store(dv_out + at, dv.to(dv_out.dtype.element_ty), mask=mask)


@triton.jit
def _queries_step(
    dq,
    q,
    do,
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
    _, ds, _, _ = _score_gradient(
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
        masked,
        approximate,
    )
    return tl.dot(ds.to(k.dtype), k, dq, input_precision="tf32x3")


@triton.jit
def _backward_queries(
    q_at,
    k_at,
    v_at,
    do_at,
    dq_out,
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
    stride_dq,
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
    """Gradients of one block of queries: all keys up to the block."""
    sequence = tl.program_id(1) // heads
    head = tl.program_id(1) % heads
    first = tl.load(offsets + sequence)
    length = (tl.load(offsets + sequence + 1) - first).to(tl.int32)
    begin_m = (tl.num_programs(0) - 1 - tl.program_id(0)) * block_m
    if begin_m < length:
        history = length
        if has_targets:
            history = length - tl.load(num_targets + sequence).to(tl.int32)
        q_at += head * dim_k
        k_at += head * dim_k
        v_at += head * dim_v
        do_at += head * dim_v
        i = begin_m + tl.arange(0, block_m)
        q = _load_rows(q_at, first, i, length, stride_q, dim_k, block_dk)
        do = _load_rows(do_at, first, i, length, stride_do, dim_v, block_dv)
        dq = tl.zeros([block_m, block_dk], tl.float32)
        whole = tl.minimum(begin_m, history) // block_n * block_n
        end = tl.minimum(begin_m + block_m, length)
        for begin in tl.range(0, whole, block_n, num_stages=stages):
            dq = _queries_step(
                dq,
                q,
                do,
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
            dq = _queries_step(
                dq,
                q,
                do,
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
        w = tl.arange(0, block_dk)
        mask = (i[:, None] < length) & (w[None, :] < dim_k)
        at = (first + i).to(tl.int64)[:, None] * stride_dq + head * dim_k + w[None, :]
        dq *= scale * inverse_length
        tl.store(dq_out + at, dq.to(dq_out.dtype.element_ty), mask=mask)


def backward(
    q: Tensor, k: Tensor, v: Tensor, do: Tensor, offsets: Tensor, max_length: int, biases: Biases
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values."""
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    widths, pairs = widths_of(q, v), (len(offsets) - 1) * q.shape[1]
    blocks = blocks_of("keys", q, v)
    scalars = (q.shape[2] ** -0.5, 1.0 / max_length)
    strides = (q.stride(0), k.stride(0), v.stride(0), do.stride(0))
    _backward_keys[(triton.cdiv(max_length, blocks["block_n"]), pairs)](
        q, k, v, do, dk, dv, offsets, biases.num_targets, *biases.tensors, *scalars,
        *strides, dk.stride(0), dv.stride(0), **biases.sizes, **widths, **blocks,
    )  # fmt: skip
    blocks = blocks_of("queries", q, v)
    _backward_queries[(triton.cdiv(max_length, blocks["block_m"]), pairs)](
        q, k, v, do, dq, offsets, biases.num_targets, *biases.tensors, *scalars,
        *strides, dq.stride(0), **biases.sizes, **widths, **blocks,
    )  # fmt: skip
    return dq, dk, dv
