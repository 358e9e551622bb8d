"""Triton kernels between a layer's rows and its slots: the order of visits, and sums over them.

Axes: B rows, K visits of a row, V = B * K visits, S = V slots, E experts, T tiles, D width.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

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
