"""The order in which experts take the rows that were routed to them, and the way there and back.

Axes: B rows, K experts of each row, E experts, S slots (rows in the order in which experts take
them, padding included), N blocks, D width, O output width.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional


class Slots(NamedTuple):
    """The order in which experts take their rows."""

    row_of_slot: Tensor
    """[S] int64; padding names any row, and what it gives is never read."""
    slot_of: Tensor
    """[B * K] int64, the slot of each row's visit."""
    ends: Tensor
    """[E] int32, where each expert's slots end; for blocks, [N] int64, each block's expert."""


def grouped_slots(experts: Tensor, num_experts: int) -> Slots:
    """Sort visits by expert, without padding.

    Args:
        experts: Chosen experts, [B, K].
    """
    ordered, order = torch.sort(_sort_keys(experts, num_experts), stable=True)  # [B K]
    numbers = torch.arange(num_experts, device=experts.device, dtype=ordered.dtype)
    ends = torch.searchsorted(ordered, numbers, right=True, out_int32=True)
    slots = torch.arange(len(order), device=order.device)
    slot_of = torch.empty_like(order).scatter_(0, order, slots)
    return Slots(order // experts.shape[1], slot_of, ends)


def blocked_slots(experts: Tensor, num_experts: int, block_rows: int) -> Slots:
    """Sort visits by expert into blocks of ``block_rows`` slots, each with one expert."""
    if experts.device.type == "cpu":
        return _blocked_slots_cpu(experts, num_experts, block_rows)
    order, top_k = grouped_slots(experts, num_experts), experts.shape[1]
    ends = order.ends.long()  # [E]
    counts = ends.diff(prepend=ends.new_zeros(1))
    blocks_of = (counts + block_rows - 1) // block_rows
    block_ends = blocks_of.cumsum(0)  # [E]
    visits = experts.numel()
    # As many as there can be: to ask how many there are would wait for the device.
    blocks = torch.arange(visits // block_rows + num_experts, device=experts.device)
    expert_of_block = torch.searchsorted(block_ends, blocks, right=True)
    # How far padding pushes the slots of each expert.
    pushed = (block_ends - blocks_of) * block_rows - (ends - counts)
    slot_of = order.slot_of + pushed[experts.flatten()]
    rows = torch.arange(visits, device=experts.device) // top_k
    row_of_slot = rows.new_zeros(len(blocks) * block_rows).scatter_(0, slot_of, rows)
    return Slots(row_of_slot, slot_of, expert_of_block.clamp(max=num_experts - 1))


def _blocked_slots_cpu(experts: Tensor, num_experts: int, block_rows: int) -> Slots:
    """Do the same by numpy, whose calls cost a third of torch's: a request has a millisecond."""
    flat = experts.numpy().ravel()
    order = flat.astype(np.uint16).argsort(kind="stable")
    counts = np.bincount(flat, minlength=num_experts)
    blocks_of = (counts + block_rows - 1) // block_rows
    pushed = (blocks_of.cumsum() - blocks_of) * block_rows - (counts.cumsum() - counts)
    slots = np.arange(len(flat)) + pushed.repeat(counts)  # of visits in order
    slot_of = np.empty(len(flat), np.int64)
    slot_of[order] = slots
    row_of_slot = np.zeros(int(blocks_of.sum()) * block_rows, np.int64)
    row_of_slot[slots] = order // experts.shape[1]
    expert_of_block = np.arange(num_experts).repeat(blocks_of)
    return Slots(*(torch.from_numpy(one) for one in (row_of_slot, slot_of, expert_of_block)))


def _sort_keys(experts: Tensor, num_experts: int) -> Tensor:
    # A radix sort passes once over each byte of its keys.
    return experts.flatten().to(torch.uint8 if num_experts <= 256 else torch.int32)


class _Dispatch(torch.autograd.Function):
    """Rows to slots; the gradient gathers each row's slots instead of adding atomically."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, row_of_slot: Tensor, slot_of: Tensor) -> Tensor:
        ctx.save_for_backward(slot_of)
        ctx.num_rows = len(rows)
        ctx.top_k = len(slot_of) // max(1, len(rows))
        return rows.index_select(0, row_of_slot)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (slot_of,) = ctx.saved_tensors
        visits = grad.index_select(0, slot_of)  # [B K, D]
        return visits.view(ctx.num_rows, ctx.top_k, grad.shape[1]).sum(1), None, None


class _Collect(torch.autograd.Function):
    """Slots to rows; gradients gather from rows, so nothing is added atomically."""

    @staticmethod
    def forward(
        ctx: Any, outputs: Tensor, weights: Tensor, row_of_slot: Tensor, slot_of: Tensor
    ) -> Tensor:
        ctx.save_for_backward(outputs, weights, row_of_slot, slot_of)
        return _weighed(outputs, weights, slot_of)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        outputs, weights, row_of_slot, slot_of = ctx.saved_tensors
        visits = outputs.index_select(0, slot_of).view(*weights.shape, outputs.shape[1])
        of_weights = visits.mul_(grad[:, None]).sum(2)
        # Padding has no share, so no gradient.
        share = weights.new_zeros(len(outputs)).index_copy_(0, slot_of, weights.flatten())  # [S]
        of_outputs = grad.index_select(0, row_of_slot).mul_(share[:, None])
        return of_outputs, of_weights, None, None


def _weighed(outputs: Tensor, weights: Tensor, slot_of: Tensor) -> Tensor:
    """Add up each row's visits by weight, [B, O]."""
    if outputs.is_cuda:
        # Three passes: an embedding bag's one took 124 us on an H200, these 83.
        visits = outputs.index_select(0, slot_of).view(*weights.shape, outputs.shape[1])
        return visits.mul_(weights[:, :, None]).sum(1)
    return functional.embedding_bag(
        slot_of.view(weights.shape), outputs, mode="sum", per_sample_weights=weights
    )


def dispatch(rows: Tensor, slots: Slots) -> Tensor:
    """Gather rows into their slots, [B, D] -> [S, D]."""
    if not torch.is_grad_enabled():
        return rows.index_select(0, slots.row_of_slot)
    return cast(
        "Tensor",
        _Dispatch.apply(rows, slots.row_of_slot, slots.slot_of),  # type: ignore[no-untyped-call]
    )


def collect(outputs: Tensor, slots: Slots, weights: Tensor) -> Tensor:
    """Add up each row's visits by weight, [S, O] and [B, K] -> [B, O]."""
    if not torch.is_grad_enabled():
        return _weighed(outputs, weights, slots.slot_of)
    return cast(
        "Tensor",
        _Collect.apply(  # type: ignore[no-untyped-call]
            outputs, weights, slots.row_of_slot, slots.slot_of
        ),
    )
