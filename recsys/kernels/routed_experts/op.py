"""Experts that each row visits a few of, as one operation, and the router before them as another.

The only file that checks arguments and chooses between the Triton kernels and plain PyTorch. The
operations are registered with `torch.library`, so a compiled model keeps one graph.

Axes: B rows, K visits of each row, S = B * K slots, E experts, D width, F inner width, O output
width.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from recsys.kernels.choice import runs
from recsys.kernels.routed_experts import reference
from recsys.kernels.routed_experts.reference import Plan, most_tiles

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TILE_ROWS = 128
"""Slots of a tile of a product."""
MAX_EXPERTS = 1024


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

    Returns:
        [B, O] of the rows' type.

    Raises:
        ValueError: Shapes, types or devices that do not fit.
    """
    _check(rows, up, down, experts, weights)
    apply: Any = _routed_experts
    return cast("Tensor", apply(rows.contiguous(), up, down, experts, weights)[0])


def count_visits(experts: Tensor, num_experts: int) -> Tensor:
    """Count how often each expert was chosen without waiting for the device, [E] int64.

    Args:
        experts: Chosen experts, int64 in [0, E); not checked.
    """
    if _on_kernels(experts) and 1 <= num_experts <= MAX_EXPERTS:
        from recsys.kernels.routed_experts import triton_rows

        return triton_rows.count_visits(experts, num_experts)
    # One comparison for each expert; unlike a scatter it adds in a fixed order.
    numbers = torch.arange(num_experts, device=experts.device)
    return (experts.reshape(-1, 1) == numbers).sum(0)


def _on_kernels(rows: Tensor) -> bool:
    return runs("routed_experts", rows)


Made = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


@torch.library.custom_op("recsys::routed_experts", mutates_args=())
def _routed_experts(
    rows: Tensor, up: Tensor, down: Tensor, experts: Tensor, weights: Tensor
) -> Made:
    if not _on_kernels(rows):
        plan = reference.plan_visits(experts, len(up), TILE_ROWS)
        return (*reference.forward(rows, up, down, plan, weights), *plan[:4])
    from recsys.kernels.routed_experts import triton_kernel, triton_rows

    up, down, weights = up.contiguous(), down.contiguous(), weights.contiguous()
    plan = triton_rows.plan_visits(experts, len(up), TILE_ROWS)
    own = triton_rows.collect(rows, plan.row_of_slot, None, 1)
    hidden = triton_kernel.product(own, up, plan, rectifies=True)
    outputs = triton_kernel.product(hidden, down, plan)
    out = triton_rows.collect(outputs, plan.slot_of, weights, weights.shape[1])
    return (out, own, hidden, outputs, *plan[:4])


@_routed_experts.register_fake
def _(rows, up, down, experts, weights) -> Made:  # type: ignore[no-untyped-def]
    slots = experts.numel()
    single: Any = {"dtype": torch.int32}
    return (
        rows.new_empty(len(rows), down.shape[1]),
        rows.new_empty(slots, rows.shape[1]),
        rows.new_empty(slots, up.shape[1]),
        rows.new_empty(slots, down.shape[1]),
        rows.new_empty(slots, **single),
        rows.new_empty(slots, **single),
        rows.new_empty(len(up), **single),
        rows.new_empty(1 + 3 * most_tiles(slots, len(up), TILE_ROWS), **single),
    )


@torch.library.custom_op("recsys::routed_experts_backward", mutates_args=())
def _routed_experts_backward(
    grad: Tensor, inputs: list[Tensor], made: list[Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    up, down, weights = inputs
    own, hidden, outputs = made[:3]
    plan = Plan(made[3], made[4], made[5], made[6], TILE_ROWS)
    grad = grad.contiguous()
    if not _on_kernels(own):
        return reference.backward(grad, up, down, plan, weights, (own, hidden, outputs))
    from recsys.kernels.routed_experts import triton_backward, triton_kernel, triton_rows

    up, down, weights = up.contiguous(), down.contiguous(), weights.contiguous()
    of_slots, of_weights = triton_rows.spread(grad, outputs, plan.slot_of, weights)
    of_hidden = triton_kernel.product(of_slots, down, plan, transposed=True, like=hidden)
    of_down = triton_backward.weight_gradient(of_slots, hidden, plan)
    of_up = triton_backward.weight_gradient(of_hidden, own, plan)
    back = triton_kernel.product(of_hidden, up, plan, transposed=True)
    of_rows = triton_rows.collect(back, plan.slot_of, None, weights.shape[1])
    return of_rows, of_up, of_down, of_weights


@_routed_experts_backward.register_fake
def _(grad, inputs, made):  # type: ignore[no-untyped-def]
    of_rows = grad.new_empty(len(grad), made[0].shape[1])
    return of_rows, *(one.new_empty(one.shape) for one in inputs)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Made) -> None:
    _, up, down, _, weights = inputs
    ctx.mark_non_differentiable(*output[1:])
    # Or zeros as large as the inner numbers would be made.
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(up, down, weights, *output[1:])


def _differentiate(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 5
    apply: Any = _routed_experts_backward
    saved = list(ctx.saved_tensors)
    of_rows, of_up, of_down, of_weights = apply(grad, saved[:3], saved[3:])
    return of_rows, of_up, of_down, None, of_weights


_routed_experts.register_autograd(_differentiate, setup_context=_setup_context)


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
