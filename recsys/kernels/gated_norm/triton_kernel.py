"""Triton kernels of the gated norm: each row is read once, forward and backward.

The backward's programs take fixed rows and leave one sum each for weight and bias; these are added
in order, so equal inputs give equal bits.

Axes: N rows, D width, m rows of a tile.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from recsys.kernels.gated_norm.reference import dropout_threshold, kept_scale
from recsys.kernels.tuning import config_for, shape_class

PARTS = 512
"""Partial sums of the gradients of weight and bias; fixed, so that the order of additions is."""
TILE = 2048
"""Numbers of a tile, unless a row has more."""


@triton.jit
def _load(base, row, num_rows, stride, width: tl.constexpr, block_d: tl.constexpr):
    column = tl.arange(0, block_d)
    mask = (row[:, None] < num_rows) & (column[None, :] < width)
    at = row.to(tl.int64)[:, None] * stride + column[None, :]
    return tl.load(base + at, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _store(base, values, row, num_rows, width: tl.constexpr, block_d: tl.constexpr):
    column = tl.arange(0, block_d)
    mask = (row[:, None] < num_rows) & (column[None, :] < width)
    at = row.to(tl.int64)[:, None] * width + column[None, :]
    tl.store(base + at, values.to(base.dtype.element_ty), mask=mask)


@triton.jit
def _kept(row, seed, threshold, scale, block_m: tl.constexpr, block_d: tl.constexpr):
    """Factor of each number of a tile, [m, block_d]; see `reference.dropout_mask`."""
    row = row.to(tl.int64)[:, None]
    group = tl.arange(0, block_d // 8)[None, :] + tl.zeros([block_m, 1], tl.int32)
    low = (row & 0xFFFFFFFF).to(tl.uint32) + tl.zeros([1, block_d // 8], tl.uint32)
    high = (row >> 32).to(tl.uint32) + tl.zeros([1, block_d // 8], tl.uint32)
    w0, w1, w2, w3 = tl.philox(tl.load(seed), group.to(tl.uint32), low, high, high * 0)
    words = tl.join(tl.join(w0, w2), tl.join(w1, w3))
    bits = tl.reshape(tl.join(words & 0xFFFF, words >> 16), (block_m, block_d))
    return tl.where(bits.to(tl.int32) >= threshold, scale, 0.0)


@triton.jit
def _normed(x, epsilon, width: tl.constexpr, block_d: tl.constexpr):
    """Rows of mean 0 and deviation 1, and one over their deviation."""
    inside = tl.arange(0, block_d)[None, :] < width
    mean = tl.sum(x, axis=1) / width
    centred = tl.where(inside, x - mean[:, None], 0.0)
    rstd = 1.0 / tl.sqrt_rn(tl.sum(centred * centred, axis=1) / width + epsilon)
    return centred * rstd[:, None], rstd


@triton.jit
def _forward(
    x_at, u_at, weight, bias, seed, out, num_rows, stride_x, stride_u, threshold, scale, epsilon,
    width: tl.constexpr, block_m: tl.constexpr, block_d: tl.constexpr, drops: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * block_m + tl.arange(0, block_m)
    column = tl.arange(0, block_d)
    x = _load(x_at, row, num_rows, stride_x, width, block_d)
    u = _load(u_at, row, num_rows, stride_u, width, block_d)
    w = tl.load(weight + column, mask=column < width, other=0.0).to(tl.float32)
    b = tl.load(bias + column, mask=column < width, other=0.0).to(tl.float32)
    normed, _ = _normed(x, epsilon, width, block_d)
    y = (normed * w[None, :] + b[None, :]) * u
    if drops:
        y *= _kept(row, seed, threshold, scale, block_m, block_d)
    _store(out, y, row, num_rows, width, block_d)


@triton.jit
def _backward(
    grad_at, x_at, u_at, weight, bias, seed, dx_out, du_out, weight_parts, bias_parts,
    num_rows, stride_grad, stride_x, stride_u, threshold, scale, epsilon,
    width: tl.constexpr, block_m: tl.constexpr, block_d: tl.constexpr, drops: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, block_d)
    w = tl.load(weight + column, mask=column < width, other=0.0).to(tl.float32)
    b = tl.load(bias + column, mask=column < width, other=0.0).to(tl.float32)
    weight_sum = tl.zeros([block_m, block_d], tl.float32)
    bias_sum = tl.zeros([block_m, block_d], tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(num_rows, block_m), tl.num_programs(0)):
        row = tile * block_m + tl.arange(0, block_m)
        grad = _load(grad_at, row, num_rows, stride_grad, width, block_d)
        x = _load(x_at, row, num_rows, stride_x, width, block_d)
        u = _load(u_at, row, num_rows, stride_u, width, block_d)
        normed, rstd = _normed(x, epsilon, width, block_d)
        if drops:
            grad *= _kept(row, seed, threshold, scale, block_m, block_d)
        d_out = grad * u
        d_normed = d_out * w[None, :]
        mean = tl.sum(d_normed, axis=1) / width
        along = tl.sum(d_normed * normed, axis=1) / width
        dx = rstd[:, None] * (d_normed - mean[:, None] - normed * along[:, None])
        _store(dx_out, dx, row, num_rows, width, block_d)
        _store(du_out, grad * (normed * w[None, :] + b[None, :]), row, num_rows, width, block_d)
        weight_sum += d_out * normed
        bias_sum += d_out
    at = tl.program_id(0) * width + column
    tl.store(weight_parts + at, tl.sum(weight_sum, axis=0), mask=column < width)
    tl.store(bias_parts + at, tl.sum(bias_sum, axis=0), mask=column < width)


def _tiles(launch: str, width: int, dtype: torch.dtype) -> dict[str, int]:
    """Choose a tile; another adds in another order, so bits depend on inputs and tile."""
    block_d = max(16, triton.next_power_of_2(width))
    default = {
        "block_m": max(1, TILE // block_d),
        "num_warps": min(16, max(4, block_d // 512)),
    }
    chosen = config_for(f"gated_norm.{launch}", shape_class(dim=width), dtype, default)
    return {"width": width, "block_d": block_d, **chosen}


def forward(
    x: Tensor,
    u: Tensor,
    weight: Tensor,
    bias: Tensor,
    seed: Tensor | None,
    dropout: float,
    epsilon: float,
) -> Tensor:
    """Norm, gate and drop, [N, D]."""
    num_rows, width = x.shape
    out = torch.empty(num_rows, width, dtype=x.dtype, device=x.device)
    tiles = _tiles("forward", width, x.dtype)
    if num_rows:
        _forward[(triton.cdiv(num_rows, tiles["block_m"]),)](
            x, u, weight, bias, seed, out, num_rows, x.stride(0), u.stride(0),
            dropout_threshold(dropout), kept_scale(dropout), epsilon, drops=dropout > 0, **tiles,
        )  # fmt: skip
    return out


def backward(
    grad: Tensor,
    x: Tensor,
    u: Tensor,
    weight: Tensor,
    bias: Tensor,
    seed: Tensor | None,
    dropout: float,
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, u, weight and bias."""
    num_rows, width = x.shape
    single: Any = {"dtype": torch.float32, "device": x.device}
    dx = torch.empty(num_rows, width, dtype=x.dtype, device=x.device)
    du = torch.empty_like(dx)
    tiles = _tiles("backward", width, x.dtype)
    programs = min(PARTS, triton.cdiv(num_rows, tiles["block_m"]))
    parts = torch.empty(2, programs, width, **single)
    if num_rows:
        _backward[(programs,)](
            grad, x, u, weight, bias, seed, dx, du, parts[0], parts[1], num_rows,
            grad.stride(0), x.stride(0), u.stride(0), dropout_threshold(dropout),
            kept_scale(dropout), epsilon, drops=dropout > 0, **tiles,
        )  # fmt: skip
    # Two tensors of their own: outputs of an operation may not share memory.
    d_weight, d_bias = parts[0].sum(0), parts[1].sum(0)
    return dx, du, d_weight.to(weight.dtype), d_bias.to(bias.dtype)
