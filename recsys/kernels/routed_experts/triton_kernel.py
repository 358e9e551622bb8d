"""Triton kernel of the products of sorted rows with their experts' weights.

A tile is some slots of one expert by some columns of its product. Programs walk over tiles, whose
number is read on the device, with a tile's columns next to each other: its rows and its expert's
weights then stay in the cache.

Axes: S slots, E experts, N columns of the product, C numbers that a product sums over.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from recsys.kernels.routed_experts.triton_rows import Plan, most_tiles
from recsys.kernels.tuning import config_for, shape_class


@triton.jit
def _rows_of(rows, rows_at, first, begin, c, num_c: tl.constexpr, by: tl.constexpr):
    """Load a tile of rows, [m, c]; ``by`` says how: "descriptor", "masked" or "whole"."""
    if by == "descriptor":
        tile = rows.load([first, begin])
    elif by == "masked":
        tile = tl.load(rows_at + begin, mask=c[None, :] < num_c - begin, other=0.0)
    else:
        tile = tl.load(rows_at + begin)
    return tile


@triton.jit
def _weights_of(
    weight, expert, begin_n, begin, n, c, stride_n, stride_c, num_n: tl.constexpr,
    num_c: tl.constexpr, transposed: tl.constexpr, by: tl.constexpr,
):  # fmt: skip
    """Load a tile of an expert's weights, [c, n]."""
    if by == "descriptor":
        if transposed:
            tile = weight.load([expert * num_c + begin, begin_n])
        else:
            tile = weight.load([expert * num_n + begin_n, begin]).T
    else:
        own = weight + expert.to(tl.int64) * num_n * num_c
        at = n.to(tl.int64)[None, :] * stride_n + (begin + c)[:, None] * stride_c
        if by == "masked":
            inside = ((begin + c)[:, None] < num_c) & (n[None, :] < num_n)
            tile = tl.load(own + at, mask=inside, other=0.0)
        else:
            tile = tl.load(own + at)
    return tile


@triton.jit
def _product(
    rows, weight, out, like, tiles, most, stride_n, stride_c,
    num_n: tl.constexpr, num_c: tl.constexpr, rectifies: tl.constexpr, masks: tl.constexpr,
    transposed: tl.constexpr, rows_by: tl.constexpr, weights_by: tl.constexpr,
    block_m: tl.constexpr, block_n: tl.constexpr, block_c: tl.constexpr, stages: tl.constexpr,
    flattens: tl.constexpr, on_gpu: tl.constexpr,
):  # fmt: skip
    across: tl.constexpr = (num_n + block_n - 1) // block_n
    for place in tl.range(
        tl.program_id(0), tl.load(tiles) * across, tl.num_programs(0), flatten=flattens
    ):
        tile = place // across
        expert = tl.load(tiles + 1 + tile)
        first = tl.load(tiles + 1 + most + tile)
        end = tl.load(tiles + 1 + 2 * most + tile)
        slot = first + tl.arange(0, block_m)
        begin_n = place % across * block_n
        n = begin_n + tl.arange(0, block_n)
        c = tl.arange(0, block_c)
        rows_at = rows
        if rows_by != "descriptor":
            # Beyond the expert's end any row will do: what it gives is not stored.
            row = tl.minimum(slot, end - 1)
            rows_at = rows + row.to(tl.int64)[:, None] * num_c + c[None, :]
        acc = tl.zeros([block_m, block_n], tl.float32)
        for begin in tl.range(0, num_c, block_c, num_stages=stages):
            a = _rows_of(rows, rows_at, first, begin, c, num_c, rows_by)
            b = _weights_of(
                weight, expert, begin_n, begin, n, c, stride_n, stride_c, num_n, num_c, transposed,
                weights_by,
            )  # fmt: skip
            # The interpreter would multiply the bit patterns of bf16 operands.
            if not on_gpu:
                a, b = a.to(tl.float32), b.to(tl.float32)
            acc = tl.dot(a, b, acc, input_precision="tf32x3")
        inside = (slot[:, None] < end) & (n[None, :] < num_n)
        at = slot.to(tl.int64)[:, None] * num_n + n[None, :]
        if rectifies:
            acc = tl.maximum(acc, 0.0)
        if masks:
            acc = tl.where(tl.load(like + at, mask=inside, other=0.0) > 0, acc, 0.0)
        tl.store(out + at, acc.to(out.dtype.element_ty), mask=inside)


DEFAULT = {
    "block_n": 128,
    "block_c": 64,
    "stages": 3,
    "num_warps": 4,
    "per_processor": 2,
    "descriptors": 2,
    "flattens": 1,
}
"""Programs of a multiprocessor, 0 for one a tile; what is loaded through a tensor descriptor, 0
nothing, 1 weights, 2 sorted rows too; whether a program's tiles are one loop, in which
a tile's first loads go out while the one before is stored."""
WIDE = {**DEFAULT, "num_warps": 8, "per_processor": 0, "descriptors": 1, "flattens": 0}
"""Of float32 numbers, which take twice the registers."""


def product(
    rows: Tensor,
    weight: Tensor,
    plan: Plan,
    *,
    transposed: bool = False,
    rectifies: bool = False,
    like: Tensor | None = None,
) -> Tensor:
    """Multiply each slot by its expert's weights, [S, N]; sums in float32.

    Args:
        rows: [S, C] in slots' order.
        weight: [E, N, C], or ``transposed`` [E, C, N].
        like: [S, N]; where it is not above zero, nor is the product.
    """
    num_experts, num_n, num_c = weight.shape
    if transposed:
        num_n, num_c = num_c, num_n
    shapes = shape_class(n=num_n, c=num_c) + ("-transposed" if transposed else "")
    default = WIDE if rows.dtype == torch.float32 else DEFAULT
    config = dict(config_for("routed_experts.product", shapes, rows.dtype, default))
    programs, block_n, block_c = (config.pop("per_processor"), config["block_n"], config["block_c"])
    plain = "whole" if num_c % block_c == 0 and num_n % block_n == 0 else "masked"
    # Descriptors want rows at multiples of 16 bytes; a tile that went on into the next expert's
    # weights would multiply them by zeros, which is no number where they are none.
    described = config.pop("descriptors") * _describable(weight, block_c, num_c)
    out = torch.empty(len(rows), num_n, dtype=rows.dtype, device=rows.device)
    most = most_tiles(len(out), num_experts, plan.tile_rows)
    grid = most * triton.cdiv(num_n, block_n)
    if programs:
        grid = min(grid, programs * _processors(rows.device))
    of_weight: Any = weight
    of_rows: Any = rows
    if described:
        block = [block_c, block_n] if transposed else [block_n, block_c]
        of_weight = TensorDescriptor.from_tensor(weight.flatten(0, 1), block)
    if described > 1:
        of_rows = TensorDescriptor.from_tensor(rows, [plan.tile_rows, block_c])
    stride_n, stride_c = (1, num_n) if transposed else (num_c, 1)
    if len(out):
        _product[(grid,)](
            of_rows, of_weight, out, like, plan.tiles, most, stride_n, stride_c,
            num_n=num_n, num_c=num_c, rectifies=rectifies, masks=like is not None,
            transposed=transposed, block_m=plan.tile_rows,
            rows_by="descriptor" if of_rows is not rows else plain,
            weights_by="descriptor" if of_weight is not weight else plain,
            on_gpu=rows.is_cuda, **config,
        )  # fmt: skip
    return out


def _describable(weight: Tensor, block_c: int, num_c: int) -> bool:
    whole = num_c % block_c == 0
    return whole and all(size * weight.element_size() % 16 == 0 for size in weight.shape[1:])


def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 2
    return torch.cuda.get_device_properties(device).multi_processor_count
