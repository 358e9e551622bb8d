"""Triton kernels of routed experts: the order of visits, sums over them, and the products.

The products are of sorted rows with their experts' weights. A tile is some slots of one expert by
some columns of its product. Programs walk over tiles, whose number is read on the device, with a
tile's columns next to each other: its rows and its expert's weights then stay in the cache.

Axes: B rows, K visits of a row, V = B * K visits, S = V slots, E experts, T tiles, D width, N
columns of the product, C numbers that a product sums over.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from recsys.kernels.choice import config_for, shape_class

BLOCK_VISITS = 256
COUNTS_AT_ONCE = 4096


class VisitPlan(NamedTuple):
    """The order in which experts take visits, all int32; no number of it is read by the host."""

    row_of_slot: Tensor
    """[S]."""
    slot_of: Tensor
    """[B * K], where each visit went."""
    ends: Tensor
    """[E], where each expert's slots end."""
    tiles: Tensor
    """[1 + 3 T]: how many tiles there are, then each one's expert, first slot and the end of the
    expert's slots. A tile holds up to ``tile_rows`` slots of one expert."""
    tile_rows: int = 128


def most_tiles(num_slots: int, num_experts: int, tile_rows: int) -> int:
    """As many tiles as there can be, T."""
    return max(1, num_slots // tile_rows + num_experts)


@triton.jit
def _hits(experts, first, num_visits, block: tl.constexpr, block_e: tl.constexpr):
    """Which expert each visit of a block is to, one number in each row, [block, block_e]."""
    visit = first + tl.arange(0, block)
    expert = tl.load(experts + visit, mask=visit < num_visits, other=-1).to(tl.int32)
    return (expert[:, None] == tl.arange(0, block_e)[None, :]).to(tl.int32)


@triton.jit
def _count(experts, counts, num_visits, block: tl.constexpr, block_e: tl.constexpr):
    hits = _hits(experts, tl.program_id(0) * block, num_visits, block, block_e)
    tl.store(counts + tl.program_id(0) * block_e + tl.arange(0, block_e), tl.sum(hits, 0))


@triton.jit
def _place(
    experts, counts, ends, row_of_slot, slot_of, tiles, num_visits, num_experts, num_tiles,
    top_k: tl.constexpr, block: tl.constexpr, block_e: tl.constexpr, block_t: tl.constexpr,
    tile_rows: tl.constexpr, at_once: tl.constexpr,
):  # fmt: skip
    pid, e = tl.program_id(0), tl.arange(0, block_e)
    total = tl.zeros([block_e], tl.int32)
    before = tl.zeros([block_e], tl.int32)
    for begin in range(0, tl.num_programs(0), at_once):
        p = begin + tl.arange(0, at_once)
        inside = p[:, None] < tl.num_programs(0)
        part = tl.load(counts + p[:, None] * block_e + e[None, :], mask=inside, other=0)
        total += tl.sum(part, 0)
        before += tl.sum(tl.where(p[:, None] < pid, part, 0), 0)
    end = tl.cumsum(total, 0)
    hits = _hits(experts, pid * block, num_visits, block, block_e)
    slot = tl.sum(hits * (tl.cumsum(hits, 0) - 1 + (end - total + before)[None, :]), 1)
    visit = pid * block + tl.arange(0, block)
    tl.store(slot_of + visit, slot, mask=visit < num_visits)
    tl.store(row_of_slot + slot, visit // top_k, mask=visit < num_visits)
    # Each program also lists some of the tiles: expert, first slot, end of the expert's slots.
    tile_ends = tl.cumsum((total + tile_rows - 1) // tile_rows, 0)
    t = pid * block_t + tl.arange(0, block_t)
    expert = tl.sum((tile_ends[None, :] <= t[:, None]).to(tl.int32), 1)
    own = expert[:, None] == e[None, :]
    skipped = tl.sum(
        tl.where(own, (tile_ends - (total + tile_rows - 1) // tile_rows)[None, :], 0), 1
    )
    first = tl.sum(tl.where(own, (end - total)[None, :], 0), 1) + (t - skipped) * tile_rows
    last = tl.sum(tl.where(own, end[None, :], 0), 1)
    tl.store(tiles + 1 + t, expert, mask=t < num_tiles)
    tl.store(tiles + 1 + num_tiles + t, first, mask=t < num_tiles)
    tl.store(tiles + 1 + 2 * num_tiles + t, last, mask=t < num_tiles)
    if pid == 0:
        tl.store(ends + e, end, mask=e < num_experts)
        tl.store(tiles, tl.sum((total + tile_rows - 1) // tile_rows, 0))


def _block_counts(experts: Tensor, num_experts: int) -> tuple[Tensor, int]:
    """Count each expert's visits in blocks of visits, [blocks, at least E]; and a block's size."""
    block_e = triton.next_power_of_2(max(16, num_experts))
    # Ranks of a block's visits take a number for each visit and expert.
    block = max(16, min(BLOCK_VISITS, 8192 // block_e))
    programs = max(1, triton.cdiv(experts.numel(), block))
    counts = torch.empty(programs, block_e, dtype=torch.int32, device=experts.device)
    _count[(programs,)](experts, counts, experts.numel(), block=block, block_e=block_e)
    return counts, block


def count_visits(experts: Tensor, num_experts: int) -> Tensor:
    """Count each expert's visits, [E] int64."""
    return _block_counts(experts.contiguous(), num_experts)[0].sum(0)[:num_experts]


def plan_visits(experts: Tensor, num_experts: int, tile_rows: int) -> VisitPlan:
    """Sort visits by expert, in two passes and without waiting for the device."""
    experts = experts.contiguous()
    visits, top_k = experts.numel(), experts.shape[1]
    single: Any = {"dtype": torch.int32, "device": experts.device}
    num_tiles = most_tiles(visits, num_experts, tile_rows)
    ends, tiles = torch.empty(num_experts, **single), torch.empty(1 + 3 * num_tiles, **single)
    row_of_slot, slot_of = torch.empty(visits, **single), torch.empty(visits, **single)
    counts, block = _block_counts(experts, num_experts)
    programs, block_e = counts.shape
    _place[(programs,)](
        experts, counts, ends, row_of_slot, slot_of, tiles, visits, num_experts, num_tiles,
        top_k=top_k, block=block, block_e=block_e,
        block_t=triton.next_power_of_2(triton.cdiv(num_tiles, programs)), tile_rows=tile_rows,
        at_once=max(16, min(COUNTS_AT_ONCE // block_e, triton.next_power_of_2(programs))),
    )  # fmt: skip
    return VisitPlan(row_of_slot, slot_of, ends, tiles, tile_rows)


@triton.jit
def _collect(
    values, slot_of, weights, out, num_rows, dim, top_k: tl.constexpr, weighs: tl.constexpr,
    block_b: tl.constexpr, block_d: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * block_b + tl.arange(0, block_b)
    column = tl.program_id(1) * block_d + tl.arange(0, block_d)
    inside = (row[:, None] < num_rows) & (column[None, :] < dim)
    total = tl.zeros([block_b, block_d], tl.float32)
    for k in tl.static_range(top_k):
        visit = row.to(tl.int64) * top_k + k
        slot = tl.load(slot_of + visit, mask=row < num_rows, other=0).to(tl.int64)
        value = tl.load(values + slot[:, None] * dim + column[None, :], mask=inside, other=0.0)
        value = value.to(tl.float32)
        if weighs:
            value *= tl.load(weights + visit, mask=row < num_rows, other=0.0)[:, None]
        total += value
    at = row.to(tl.int64)[:, None] * dim + column[None, :]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)


def collect(values: Tensor, slot_of: Tensor, weights: Tensor | None, top_k: int) -> Tensor:
    """Add up each row's visits in float32, by weight or plainly, [S, D] -> [B, D]."""
    num_rows, dim = len(slot_of) // top_k, values.shape[1]
    out = torch.empty(num_rows, dim, dtype=values.dtype, device=values.device)
    block_d = min(512, triton.next_power_of_2(dim))
    block_b = max(1, 2048 // block_d)
    if num_rows:
        _collect[(triton.cdiv(num_rows, block_b), triton.cdiv(dim, block_d))](
            values, slot_of, weights, out, num_rows, dim, top_k=top_k, weighs=weights is not None,
            block_b=block_b, block_d=block_d, num_warps=4,
        )  # fmt: skip
    return out


@triton.jit
def _spread(
    grad, values, slot_of, weights, of_slots, of_weights, num_rows, dim, top_k: tl.constexpr,
    block_b: tl.constexpr, block_d: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * block_b + tl.arange(0, block_b)
    for k in tl.static_range(top_k):
        visit = row.to(tl.int64) * top_k + k
        slot = tl.load(slot_of + visit, mask=row < num_rows, other=0).to(tl.int64)
        weight = tl.load(weights + visit, mask=row < num_rows, other=0.0)
        along = tl.zeros([block_b], tl.float32)
        for begin in range(0, dim, block_d):
            column = begin + tl.arange(0, block_d)
            inside = (row[:, None] < num_rows) & (column[None, :] < dim)
            at = row.to(tl.int64)[:, None] * dim + column[None, :]
            one = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
            at = slot[:, None] * dim + column[None, :]
            along += tl.sum(one * tl.load(values + at, mask=inside, other=0.0).to(tl.float32), 1)
            share = (one * weight[:, None]).to(of_slots.dtype.element_ty)
            tl.store(of_slots + at, share, mask=inside)
        tl.store(of_weights + visit, along, mask=row < num_rows)


def spread(grad: Tensor, values: Tensor, slot_of: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Differentiate a weighted ``collect``: gradients of the slots, [S, D], and weights, [B, K]."""
    num_rows, dim = grad.shape
    of_slots, of_weights = torch.empty_like(values), torch.empty_like(weights)
    block_d = min(512, triton.next_power_of_2(dim))
    block_b = max(1, 2048 // block_d)
    if num_rows:
        _spread[(triton.cdiv(num_rows, block_b),)](
            grad, values, slot_of, weights, of_slots, of_weights, num_rows, dim,
            top_k=weights.shape[1], block_b=block_b, block_d=block_d, num_warps=4,
        )  # fmt: skip
    return of_slots, of_weights


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
def _look_up_weights(
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
            b = _look_up_weights(
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
"""Tiles of float32 numbers, which take twice the registers."""


def product(
    rows: Tensor,
    weight: Tensor,
    plan: VisitPlan,
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


@triton.jit
def _add_slots(
    acc, left, right, first, end, m, n, num_m: tl.constexpr, num_n: tl.constexpr,
    even: tl.constexpr, block_s: tl.constexpr, on_gpu: tl.constexpr,
):  # fmt: skip
    """Add what some slots, those before ``end``, give."""
    slot = first + tl.arange(0, block_s)
    here = slot < end
    at_left = slot.to(tl.int64)[:, None] * num_m + m[None, :]
    at_right = slot.to(tl.int64)[:, None] * num_n + n[None, :]
    if even:
        a = tl.load(left + at_left, mask=here[:, None], other=0.0)
        b = tl.load(right + at_right, mask=here[:, None], other=0.0)
    else:
        a = tl.load(left + at_left, mask=here[:, None] & (m[None, :] < num_m), other=0.0)
        b = tl.load(right + at_right, mask=here[:, None] & (n[None, :] < num_n), other=0.0)
    # The interpreter would multiply the bit patterns of bf16 operands.
    if not on_gpu:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a.T, b, acc, input_precision="tf32x3")


@triton.jit
def _weight_gradient(
    left, right, left_tiles, right_tiles, out, ends, num_m: tl.constexpr,
    num_n: tl.constexpr, even: tl.constexpr, block_m: tl.constexpr,
    block_n: tl.constexpr, block_s: tl.constexpr, stages: tl.constexpr, on_gpu: tl.constexpr,
):  # fmt: skip
    across: tl.constexpr = (num_n + block_n - 1) // block_n
    down: tl.constexpr = (num_m + block_m - 1) // block_m
    expert = tl.program_id(0) // (across * down)
    place = tl.program_id(0) % (across * down)
    begin_m, begin_n = place // across * block_m, place % across * block_n
    m, n = begin_m + tl.arange(0, block_m), begin_n + tl.arange(0, block_n)
    end = tl.load(ends + expert)
    begin = tl.load(ends + expert - 1, mask=expert > 0, other=0)
    acc = tl.zeros([block_m, block_n], tl.float32)
    if left_tiles is None:
        for first in tl.range(begin, end, block_s, num_stages=stages):
            acc = _add_slots(
                acc, left, right, first, end, m, n, num_m, num_n, even, block_s, on_gpu
            )  # fmt: skip
    else:
        # A descriptor reads on into the next expert's slots, so it takes whole blocks alone.
        whole = begin + (end - begin) // block_s * block_s
        for first in tl.range(begin, whole, block_s, num_stages=stages):
            a, b = left_tiles.load([first, begin_m]), right_tiles.load([first, begin_n])
            if not on_gpu:
                a, b = a.to(tl.float32), b.to(tl.float32)
            acc = tl.dot(a.T, b, acc, input_precision="tf32x3")
        for first in tl.range(whole, end, block_s, num_stages=1):
            acc = _add_slots(
                acc, left, right, first, end, m, n, num_m, num_n, even, block_s, on_gpu
            )  # fmt: skip
    at = expert.to(tl.int64) * num_m * num_n + m.to(tl.int64)[:, None] * num_n + n[None, :]
    inside = (m[:, None] < num_m) & (n[None, :] < num_n)
    tl.store(out + at, acc.to(out.dtype.element_ty), mask=inside)


GRADIENT_DEFAULT = {
    "block_m": 128,
    "block_n": 256,
    "block_s": 64,
    "stages": 3,
    "num_warps": 8,
    "descriptors": 0,
}
"""Descriptors: whether whole blocks are loaded through tensor descriptors, where rows allow."""
GRADIENT_WIDE = {**GRADIENT_DEFAULT, "block_n": 128}
"""Tiles of float32 numbers, which take twice the registers."""


def weight_gradient(left: Tensor, right: Tensor, plan: VisitPlan) -> Tensor:
    """Sum left^T right over each expert's slots, [E, M, N]; zeros where an expert has none.

    Args:
        left: [S, M], in slots' order.
        right: [S, N], the same.
    """
    num_experts, num_m, num_n = len(plan.ends), left.shape[1], right.shape[1]
    out = torch.empty(num_experts, num_m, num_n, dtype=left.dtype, device=left.device)
    default = GRADIENT_WIDE if left.dtype == torch.float32 else GRADIENT_DEFAULT
    shapes = shape_class(m=num_m, n=num_n)
    config = dict(config_for("routed_experts.weights", shapes, left.dtype, default))
    block_m, block_n, block_s = config["block_m"], config["block_n"], config["block_s"]
    tiles = triton.cdiv(num_m, block_m) * triton.cdiv(num_n, block_n)
    of_tiles: list[Any] = [None, None]
    wide = all(size * left.element_size() % 16 == 0 for size in (num_m, num_n))
    if config.pop("descriptors") and wide and len(left):
        of_tiles = [
            TensorDescriptor.from_tensor(one, [block_s, width])
            for one, width in ((left, block_m), (right, block_n))
        ]
    _weight_gradient[(num_experts * tiles,)](
        left, right, *of_tiles, out, plan.ends, num_m=num_m, num_n=num_n,
        even=num_m % block_m == 0 and num_n % block_n == 0, on_gpu=left.is_cuda,
        **config,
    )  # fmt: skip
    return out
