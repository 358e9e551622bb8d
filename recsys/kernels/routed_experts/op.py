"""Experts that each row visits a few of, and the router before them, by Triton.

The only file that checks their arguments; ``layers/moe`` computes the same where no kernel runs.

Axes: B rows, K visits of each row, S = B * K slots, E experts, D width, F inner width, O output
width.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from recsys.kernels.choice import runs

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TILE_ROWS = 128
"""Slots of a tile of a product."""
MAX_EXPERTS = 1024
MAX_ROUTED_EXPERTS = 128
MAX_TOP_K = 8


def routed_experts(
    rows: Tensor, up: Tensor, down: Tensor, experts: Tensor, weights: Tensor
) -> Tensor:
    """Add up what each row's experts say by weight: down(relu(up(row))), without biases.

    On a GPU nothing waits for the device, so a CUDA graph can hold it. Equal inputs give equal
    bits, gradients included: what a row's visits give is added in order.

    Args:
        rows: [B, D].
        up: [E, F, D] of the rows' type.
        down: [E, O, F] of the rows' type.
        experts: Which experts each row visits, [B, K] int64 in [0, E); not checked.
        weights: What each visit counts, [B, K] float32.
    """
    _check(rows, up, down, experts, weights)
    apply: Any = _RoutedExperts.apply
    return cast("Tensor", apply(rows.contiguous(), up, down, experts, weights))


class _RoutedExperts(torch.autograd.Function):
    """The kernels of the experts with their gradients."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, up: Tensor, down: Tensor, experts: Tensor, weights: Tensor
    ) -> Tensor:
        import recsys.kernels.routed_experts.triton_kernel as triton_kernel

        up, down, weights = up.contiguous(), down.contiguous(), weights.contiguous()
        plan = triton_kernel.plan_visits(experts, len(up), TILE_ROWS)
        own = triton_kernel.collect(rows, plan.row_of_slot, None, 1)
        hidden = triton_kernel.product(own, up, plan, rectifies=True)
        outputs = triton_kernel.product(hidden, down, plan)
        ctx.save_for_backward(up, down, weights, own, hidden, outputs, *plan[:4])
        return triton_kernel.collect(outputs, plan.slot_of, weights, weights.shape[1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        import recsys.kernels.routed_experts.triton_kernel as triton_kernel

        up, down, weights, own, hidden, outputs, row_of_slot, slot_of, ends, tiles = (
            ctx.saved_tensors
        )
        plan = triton_kernel.VisitPlan(row_of_slot, slot_of, ends, tiles, TILE_ROWS)
        grad = grads[0].contiguous()
        of_slots, of_weights = triton_kernel.spread(grad, outputs, plan.slot_of, weights)
        of_hidden = triton_kernel.product(of_slots, down, plan, transposed=True, like=hidden)
        of_down = triton_kernel.weight_gradient(of_slots, hidden, plan)
        of_up = triton_kernel.weight_gradient(of_hidden, own, plan)
        back = triton_kernel.product(of_hidden, up, plan, transposed=True)
        of_rows = triton_kernel.collect(back, plan.slot_of, None, weights.shape[1])
        return of_rows, of_up, of_down, None, of_weights


def count_visits(experts: Tensor, num_experts: int) -> Tensor:
    """Count how often each expert was chosen without waiting for the device, [E] int64.

    Args:
        experts: Chosen experts, int64 in [0, E); not checked.
    """
    if runs("routed_experts", experts) and 1 <= num_experts <= MAX_EXPERTS:
        import recsys.kernels.routed_experts.triton_kernel as triton_kernel

        return triton_kernel.count_visits(experts, num_experts)
    # One comparison for each expert; unlike a scatter it adds in a fixed order.
    numbers = torch.arange(num_experts, device=experts.device)
    return (experts.reshape(-1, 1) == numbers).sum(0)


def _check(rows: Tensor, up: Tensor, down: Tensor, experts: Tensor, weights: Tensor) -> None:
    if rows.ndim != 2 or up.ndim != 3 or down.ndim != 3 or up.shape[2] != rows.shape[1]:
        raise ValueError(
            "rows must be [B, D], up [E, F, D] and down [E, O, F], got "
            f"{tuple(rows.shape)}, {tuple(up.shape)} and {tuple(down.shape)}"
        )
    if len(up) != len(down) or up.shape[1] != down.shape[2]:
        raise ValueError(
            f"up [E, F, D] and down [E, O, F] must share E and F, got {tuple(up.shape)} and "
            f"{tuple(down.shape)}"
        )
    if not 1 <= len(up) <= MAX_EXPERTS:
        raise ValueError(f"there must be 1 to {MAX_EXPERTS} experts, got {len(up)}")
    if experts.shape != weights.shape or experts.ndim != 2 or len(experts) != len(rows):
        raise ValueError(
            f"experts and weights must be [{len(rows)}, K] alike, got {tuple(experts.shape)} and "
            f"{tuple(weights.shape)}"
        )
    if rows.dtype not in DTYPES or not rows.dtype == up.dtype == down.dtype:
        raise ValueError(
            f"rows, up and down must be of one type of {[str(one) for one in DTYPES]}, got "
            f"{rows.dtype}, {up.dtype} and {down.dtype}"
        )
    if experts.dtype != torch.int64 or weights.dtype != torch.float32:
        raise ValueError(
            f"experts must be int64 and weights float32, got {experts.dtype} and {weights.dtype}"
        )
    for name, one in (("up", up), ("down", down), ("experts", experts), ("weights", weights)):
        if one.device != rows.device:
            raise ValueError(f"rows are on {rows.device}, {name} on {one.device}; move one")


class Routed(NamedTuple):
    """Choices of a router."""

    logits: Tensor
    """[B, E] float32."""
    experts: Tensor
    """[B, K] int64, the best first; of equal scores the lower number."""
    weights: Tensor
    """[B, K] float32: shares of the chosen scores, of all scores where K is 1."""


def can_route(rows: Tensor, num_experts: int, top_k: int) -> bool:
    """Return whether there is a kernel for this: bfloat16 rows on a GPU, few enough experts."""
    fits = rows.ndim == 2 and rows.dtype == torch.bfloat16
    on_kernels = runs("routed_experts", rows)
    few = num_experts <= MAX_ROUTED_EXPERTS and top_k <= min(MAX_TOP_K, num_experts)
    return fits and on_kernels and few


def route(rows: Tensor, weight: Tensor, bias: Tensor, top_k: int) -> Routed:
    """Choose each row's experts by score plus bias, and weigh them by score.

    As exact as products of float32 numbers. A row's bits do not depend on its batch. Equal inputs
    give equal bits, gradients included.

    Args:
        rows: [B, D] bfloat16; other types where there is no kernel.
        weight: [E, D] float32.
        bias: [E] float32, part of the choice alone.
    """
    if rows.ndim != 2 or weight.ndim != 2 or weight.shape[1] != rows.shape[1]:
        raise ValueError(
            f"rows must be [B, D] and weight [E, D], got {tuple(rows.shape)} and "
            f"{tuple(weight.shape)}"
        )
    if bias.shape != weight.shape[:1] or not 1 <= top_k <= len(weight):
        raise ValueError(
            f"bias must be [{len(weight)}] and top_k in [1, {len(weight)}], got "
            f"{tuple(bias.shape)} and {top_k}"
        )
    if weight.dtype != torch.float32 or bias.dtype != torch.float32:
        raise ValueError(f"weight and bias must be float32, got {weight.dtype} and {bias.dtype}")
    if not rows.device == weight.device == bias.device:
        raise ValueError(
            f"rows are on {rows.device}, weight on {weight.device}, bias on {bias.device}; move "
            "them to one"
        )
    apply: Any = _Route.apply
    return Routed(*apply(rows.contiguous(), weight, bias, top_k))


class _Route(torch.autograd.Function):
    """The kernels of the router with their gradients."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor, top_k: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        import recsys.kernels.routed_experts.triton_router as triton_router

        made = triton_router.route(rows, weight.contiguous(), bias.contiguous(), top_k)
        ctx.mark_non_differentiable(made[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(rows, weight, *made)
        return made

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        import recsys.kernels.routed_experts.triton_router as triton_router

        rows, weight, *made = ctx.saved_tensors
        of_logits, _, of_weights = (None if one is None else one.contiguous() for one in grads)
        if of_weights is None:
            if of_logits is None:
                return (None,) * 4
            of_weights = torch.zeros_like(made[2])
        of_rows, of_weight = triton_router.route_backward(
            rows, weight.contiguous(), tuple(made), of_logits, of_weights
        )
        return of_rows, of_weight, None, None
