"""Sparse mixture of experts: many small feed-forward networks; no row is ever dropped.

Rows are sorted by expert. On CUDA in 16-bit types, grouped matrix products then do all experts at
once (`kernels/routed_experts`: a product of its own size for each). Elsewhere, and where an expert
has few rows, they are cut into blocks of one size, padded, each multiplied by its expert's weights
in a batched product: the padding is less than a block an expert, however uneven the load.

Axes: B rows, K experts of each row, E experts, S slots (rows in the order in which experts take
them, padding included), R slots of a block, N blocks, D width, F inner width, O output width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from recsys.kernels.choice import runs
from recsys.kernels.routed_experts.op import routed_experts
from recsys.layers.moe.router import BiasedRouter, Routing, without_autocast


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
    # A radix sort passes once over each byte of its keys.
    keys = experts.flatten().to(torch.uint8 if num_experts <= 256 else torch.int32)
    ordered, order = torch.sort(keys, stable=True)  # [B K]
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


GROUPED_FROM = 64
"""Rows of an expert, on average, from which grouped products beat a batched one on CUDA."""

BLOCK_ROWS, SERVED_ROWS = 32, 16
"""Rows of a block at least, and where a CPU serves: an expert's blocks are one product there, so
small ones cost nothing, and only what pads the last one is lost."""


class Experts(nn.Module):
    """E networks O(relu(F(x))) without biases, of which each row visits K."""

    def __init__(self, num_experts: int, dim: int, hidden_dim: int, output_dim: int) -> None:
        super().__init__()
        # As nn.Linear: outputs before inputs.
        self.up = nn.Parameter(torch.empty(num_experts, hidden_dim, dim))
        self.down = nn.Parameter(torch.empty(num_experts, output_dim, hidden_dim))
        nn.init.normal_(self.up, std=math.sqrt(2 / dim))
        nn.init.normal_(self.down, std=1 / math.sqrt(hidden_dim))

    @property
    def num_experts(self) -> int:
        return len(self.up)

    def forward(self, rows: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        """Add up what each row's experts say, [B, O].

        Args:
            rows: [B, D].
            experts: Which experts a row visits, [B, K].
            weights: What each visit counts, [B, K].
        """
        device = rows.device.type
        if torch.is_autocast_enabled(device):
            rows = rows.to(torch.get_autocast_dtype(device))
        up, down = self.up.to(rows.dtype), self.down.to(rows.dtype)
        with without_autocast(device):
            if self._kernels_take(rows, experts):
                return routed_experts(rows, up, down, experts, weights.float())
            serving = rows.device.type == "cpu" and not torch.is_grad_enabled()
            block_rows = SERVED_ROWS if serving else self._block_rows(experts)
            slots = blocked_slots(experts, self.num_experts, block_rows)
            blocks = dispatch(rows, slots).view(-1, block_rows, rows.shape[1])  # [N, R, D]
            outputs = (_in_turn if serving else _batched)(blocks, up, down, slots.ends)
            return collect(outputs, slots, weights.to(outputs.dtype))

    def _kernels_take(self, rows: Tensor, experts: Tensor) -> bool:
        sizes = (*self.up.shape[1:], self.down.shape[1])
        # Loads of a grouped product want rows that start at multiples of 16 bytes.
        halves = (torch.bfloat16, torch.float16)
        fits = rows.is_cuda and rows.dtype in halves and not any(n % 8 for n in sizes)
        enough = experts.numel() >= GROUPED_FROM * self.num_experts
        return fits and enough and runs("routed_experts", rows)

    def _block_rows(self, experts: Tensor) -> int:
        if not self.training:
            return BLOCK_ROWS
        # Larger blocks copy weights less often.
        half_load = experts.numel() // (2 * self.num_experts)
        return max(BLOCK_ROWS, min(128, 1 << max(0, half_load).bit_length()))


def _batched(blocks: Tensor, up: Tensor, down: Tensor, expert_of_block: Tensor) -> Tensor:
    """Multiply each block by its expert's weights, [N, R, D] -> [N * R, O]."""
    hidden = torch.bmm(blocks, up.index_select(0, expert_of_block).transpose(1, 2))
    hidden = functional.relu_(hidden)
    out = torch.bmm(hidden, down.index_select(0, expert_of_block).transpose(1, 2))
    return out.flatten(0, 1)


def _in_turn(blocks: Tensor, up: Tensor, down: Tensor, expert_of_block: Tensor) -> Tensor:
    """Multiply each expert's blocks at once, without copying weights, [N, R, D] -> [N * R, O].

    For serving on a CPU. Stretches are whole blocks: the bits of a row of a product do not depend
    on how many blocks it has (tested), but do where it has one or two rows.
    """
    rows, block_rows = blocks.flatten(0, 1), blocks.shape[1]
    counts = np.bincount(expert_of_block.numpy(), minlength=len(up)) * block_rows
    sizes = counts.tolist()
    out = rows.new_empty(len(rows), down.shape[1])
    for own, into, out_of, part in zip(
        torch.split(rows, sizes),
        up.mT.unbind(0),
        down.mT.unbind(0),
        torch.split(out, sizes),
        strict=True,
    ):
        torch.mm(torch.mm(own, into).relu_(), out_of, out=part)
    return out


@dataclass(frozen=True, kw_only=True)
class SparseMoeConfig:
    """Sizes of a sparse layer."""

    dim: int
    hidden_dim: int
    """F of each expert."""
    num_experts: int
    top_k: int = 2
    router_dim: int | None = None
    """Width of the router's input; None is ``dim``."""


class Mixed(NamedTuple):
    """Output of a sparse layer."""

    output: Tensor
    """[B, D]."""
    routing: Routing


class SparseMoe(nn.Module):
    """A router, and experts of which each row visits K."""

    def __init__(self, config: SparseMoeConfig) -> None:
        super().__init__()
        self.config = config
        dim, hidden_dim, num_experts = config.dim, config.hidden_dim, config.num_experts
        router_dim = config.router_dim or dim
        self.router = BiasedRouter(router_dim, num_experts, config.top_k)
        self.experts = Experts(num_experts, dim, hidden_dim, dim)

    def forward(
        self, rows: Tensor, routed_by: Tensor | None = None, routing: Routing | None = None
    ) -> Mixed:
        """Combine the outputs of each row's experts.

        Args:
            rows: [B, D].
            routed_by: Input of the router, [B, router_dim]; the rows by default.
        """
        if routing is None:
            routing = cast("Routing", self.router(rows if routed_by is None else routed_by))
        return Mixed(self.experts(rows, routing.experts, routing.weights), routing)
