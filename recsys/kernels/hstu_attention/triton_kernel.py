"""Triton kernels of HSTU attention: what both directions share, and the forward.

Helpers take a program's `place`, (head, first event, length, sequence), and
its `bias`, the tables of `triton_bias`, as tuples.

Axes: M events, H heads, D width of queries and keys, V width of values, B sequences.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from recsys.kernels.choice import config_for, shape_class
from recsys.kernels.hstu_attention.triton_bias import Bias, _add_bias, _time_span

Blocks = tuple[int, int, int, int, int | None]

BLOCKS: dict[str, dict[int, Blocks]] = {
    "forward": {
        64: (64, 64, 3, 4, None),
        128: (64, 64, 3, 4, None),
        256: (64, 32, 2, 4, None),
        1024: (16, 16, 1, 4, None),
    },
    "biased forward": {64: (64, 64, 3, 4, 168)},
    "keys": {
        64: (32, 64, 3, 4, None),
        128: (64, 64, 2, 4, None),
        256: (32, 32, 1, 4, None),
        1024: (16, 16, 1, 4, None),
    },
    "biased keys": {64: (64, 64, 3, 4, None)},
    "queries": {
        64: (64, 64, 3, 4, None),
        128: (128, 64, 3, 8, None),
        256: (32, 32, 1, 4, None),
        1024: (16, 16, 1, 4, None),
    },
    "biased queries": {64: (64, 64, 3, 4, 168), 128: (64, 64, 2, 4, None)},
    "biases": {128: (64, 64, 1, 4, 168), 256: (32, 32, 1, 4, None), 1024: (16, 16, 1, 4, None)},
}
"""Queries and keys of a tile, pipeline stages, warps and most registers of a thread, by the widest
head in 16-bit numbers; a biased kernel takes the plain one's where it has none of its own."""
MAX_BIASED_BLOCK = 128
"""A tile reads the times of two spans of 64 events at most."""


@triton.jit
def _sigmoid(x, on_gpu: tl.constexpr, exact: tl.constexpr):
    """Sigmoid by one hardware tanh (relative error about 2^-11), or exactly."""
    if on_gpu and not exact:
        t = tl.inline_asm_elementwise(
            "tanh.approx.f32 $0, $1;", "=f,f", [0.5 * x], dtype=tl.float32, is_pure=True, pack=1
        )
        return 0.5 * t + 0.5
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _allowed(i, j, place):
    """Causal; i and j broadcast to the tile."""
    return (i >= j) & (i < place[2])


@triton.jit
def _load_rows(base, rows, place, stride, width: tl.constexpr, block_w: tl.constexpr):
    """Load rows of one head of one sequence, zero beyond its end, [m, block_w]."""
    head, first, length = place[0], place[1], place[2]
    w = tl.arange(0, block_w)
    at = (first + rows).to(tl.int64)[:, None] * stride + head * width + w[None, :]
    return tl.load(base + at, mask=(rows[:, None] < length) & (w[None, :] < width), other=0.0)


@triton.jit
def _store_rows(base, values, rows, place, stride, width: tl.constexpr, block_w: tl.constexpr):
    head, first, length = place[0], place[1], place[2]
    w = tl.arange(0, block_w)
    at = (first + rows).to(tl.int64)[:, None] * stride + head * width + w[None, :]
    mask = (rows[:, None] < length) & (w[None, :] < width)
    tl.store(base + at, values.to(base.dtype.element_ty), mask=mask)


@triton.jit
def _place(offsets, pair, heads: tl.constexpr):
    """Find head and sequence of a pair, which counts heads first."""
    sequence = pair // heads
    first = tl.load(offsets + sequence).to(tl.int64)
    length = (tl.load(offsets + sequence + 1) - first).to(tl.int32)
    return pair % heads, first, length, sequence


@triton.jit
def _forward_step(
    acc, q, k_at, v_at, begin_m, begin, place, bias, scale, stride_k, stride_v,
    dim_k: tl.constexpr, dim_v: tl.constexpr, block_dk: tl.constexpr, block_dv: tl.constexpr,
    block_n: tl.constexpr, masked: tl.constexpr, on_gpu: tl.constexpr, exact: tl.constexpr,
):  # fmt: skip
    j = begin + tl.arange(0, block_n)
    k = _load_rows(k_at, j, place, stride_k, dim_k, block_dk)
    v = _load_rows(v_at, j, place, stride_v, dim_v, block_dv)
    span = _time_span(begin_m, q.shape[0], begin, block_n, place, bias)
    s = tl.dot(q, tl.trans(k), input_precision="tf32x3") * scale
    s = _add_bias(s, begin_m, begin, span, place, bias, on_gpu, False)
    p = s * _sigmoid(s, on_gpu, exact)
    if masked:
        i = begin_m + tl.arange(0, q.shape[0])
        p = tl.where(_allowed(i[:, None], j[None, :], place), p, 0.0)
    return tl.dot(p.to(v.dtype), v, acc, input_precision="tf32x3")


@triton.jit
def _forward(
    q_at, k_at, v_at, out, offsets, positions, position_stride, time_table, query_at,
    known_at, spans, span_stride, scale, inverse_length, stride_q, stride_k, stride_v, stride_o,
    heads: tl.constexpr, dim_k: tl.constexpr, dim_v: tl.constexpr, block_dk: tl.constexpr,
    block_dv: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr, on_gpu: tl.constexpr,
    exact: tl.constexpr, stages: tl.constexpr,
):  # fmt: skip
    place = _place(offsets, tl.program_id(1), heads)
    bias = (positions, position_stride, time_table, query_at, known_at, spans, span_stride)
    length = place[2]
    # The last blocks have the most keys, so they start first.
    begin_m = (tl.num_programs(0) - 1 - tl.program_id(0)) * block_m
    if begin_m < length:
        i = begin_m + tl.arange(0, block_m)
        q = _load_rows(q_at, i, place, stride_q, dim_k, block_dk)
        acc = tl.zeros([block_m, block_dv], tl.float32)
        whole = tl.minimum(begin_m, length) // block_n * block_n
        end = tl.minimum(begin_m + block_m, length)
        for begin in tl.range(0, whole, block_n, num_stages=stages):
            acc = _forward_step(
                acc, q, k_at, v_at, begin_m, begin, place, bias, scale, stride_k, stride_v,
                dim_k, dim_v, block_dk, block_dv, block_n, False, on_gpu, exact,
            )  # fmt: skip
        for begin in tl.range(whole, end, block_n, num_stages=1):
            acc = _forward_step(
                acc, q, k_at, v_at, begin_m, begin, place, bias, scale, stride_k, stride_v,
                dim_k, dim_v, block_dk, block_dv, block_n, True, on_gpu, exact,
            )  # fmt: skip
        _store_rows(out, acc * inverse_length, i, place, stride_o, dim_v, block_dv)


def kernel_widths(q: Tensor, v: Tensor) -> dict[str, int]:
    """Give a kernel its widths, each also as the power of two that a tile has."""
    return {
        "heads": q.shape[1],
        "dim_k": q.shape[2],
        "dim_v": v.shape[2],
        "block_dk": max(16, triton.next_power_of_2(q.shape[2])),
        "block_dv": max(16, triton.next_power_of_2(v.shape[2])),
    }


def blocks_of(kernel: str, q: Tensor, v: Tensor, *, biased: bool = False) -> dict[str, int | None]:
    """Choose tiles by the widest head, or as tuned; measured on an H200 for 16-bit types.

    Other tiles add in another order: bits depend on the inputs and on these numbers.
    """
    single = q.dtype == torch.float32
    width = max(q.shape[2], v.shape[2]) * (4 if single else 1)
    own = BLOCKS.get(f"biased {kernel}", {}) if biased else {}
    choices = {**BLOCKS[kernel], **own}
    queries, keys, stages, warps, most = next(
        choices[limit] for limit in sorted(choices) if width <= limit
    )
    default = {"block_m": queries, "num_warps": warps, "registers": most or 0}
    if kernel != "biases":
        default |= {"block_n": keys, "stages": stages}
    shapes = shape_class(dim=max(q.shape[2], v.shape[2])) + ("-biased" if biased else "")
    chosen = dict(config_for(f"hstu_attention.{kernel}", shapes, q.dtype, default))
    if biased and max(chosen["block_m"], chosen.get("block_n", 0)) > MAX_BIASED_BLOCK:
        raise ValueError(f"biased attention takes tiles of up to {MAX_BIASED_BLOCK}, got {chosen}")
    registers = chosen.pop("registers")
    return {**chosen, "maxnreg": registers or None}


def forward(
    q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, max_length: int, bias: Bias
) -> Tensor:
    """Attend within each sequence, [M, H, V]; see `hstu_attention`."""
    out = torch.empty(q.shape[0], q.shape[1], v.shape[2], dtype=q.dtype, device=q.device)
    blocks = blocks_of("forward", q, v, biased=bias.present)
    grid = (triton.cdiv(max_length, blocks["block_m"]), (len(offsets) - 1) * q.shape[1])
    _forward[grid](
        q, k, v, out, offsets, *bias.tensors(),
        q.shape[2] ** -0.5, 1.0 / max_length, q.stride(0), k.stride(0), v.stride(0), out.stride(0),
        **bias.sizes(q), **kernel_widths(q, v), **blocks,
    )  # fmt: skip
    return out
