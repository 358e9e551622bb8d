"""A router as one operation: scores of all experts, the best of them and what they weigh.

The only file that checks a router's arguments and chooses between the Triton kernels and plain
PyTorch. The operations are registered with `torch.library`.

Axes: B rows, K experts of each row, E experts, D width.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from recsys.kernels.choice import runs
from recsys.kernels.routed_experts import reference

MAX_ROUTED_EXPERTS = 128
MAX_TOP_K = 8


class Routed(NamedTuple):
    """Where rows go."""

    logits: Tensor
    """[B, E] float32."""
    experts: Tensor
    """[B, K] int64, the best first; of equal scores the lower number."""
    weights: Tensor
    """[B, K] float32: shares of the chosen scores, of all scores where K is 1."""


def can_route(rows: Tensor, num_experts: int, top_k: int) -> bool:
    """Whether there is a kernel for this: bfloat16 rows on a GPU, few enough experts."""
    fits = rows.ndim == 2 and rows.dtype == torch.bfloat16
    on_kernels = runs("routed_experts", rows)
    few = num_experts <= MAX_ROUTED_EXPERTS and top_k <= min(MAX_TOP_K, num_experts)
    return fits and on_kernels and few


def route(rows: Tensor, weight: Tensor, bias: Tensor, *, top_k: int, by_softmax: bool) -> Routed:
    """Choose each row's experts by score plus bias, and weigh them by score.

    As exact as products of float32 numbers. A row's bits do not depend on its batch. Equal inputs
    give equal bits, gradients included.

    Args:
        rows: [B, D] bfloat16; other types where there is no kernel.
        weight: [E, D] float32.
        bias: [E] float32, part of the choice alone.
        by_softmax: Scores are a softmax over experts; by default each one's own sigmoid.

    Raises:
        ValueError: Shapes, types or devices that do not fit.
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
    apply: Any = _route
    return Routed(*apply(rows.contiguous(), weight, bias, top_k, by_softmax))


@torch.library.custom_op("recsys::route", mutates_args=())
def _route(
    rows: Tensor, weight: Tensor, bias: Tensor, top_k: int, by_softmax: bool
) -> tuple[Tensor, Tensor, Tensor]:
    if not can_route(rows, len(weight), top_k):
        return reference.route(rows, weight, bias, top_k, by_softmax)
    from recsys.kernels.routed_experts import triton_router

    return triton_router.route(rows, weight.contiguous(), bias.contiguous(), top_k, by_softmax)


@_route.register_fake
def _(rows, weight, bias, top_k, by_softmax):  # type: ignore[no-untyped-def]
    single: Any = {"dtype": torch.float32}
    return (
        rows.new_empty(len(rows), len(weight), **single),
        rows.new_empty(len(rows), top_k, dtype=torch.int64),
        rows.new_empty(len(rows), top_k, **single),
    )


@torch.library.custom_op("recsys::route_backward", mutates_args=())
def _route_backward(
    rows: Tensor,
    weight: Tensor,
    made: list[Tensor],
    grad_logits: Tensor | None,
    grad_weights: Tensor,
    by_softmax: bool,
) -> tuple[Tensor, Tensor]:
    logits, experts, weights = made
    arguments: Any = (
        rows,
        weight.contiguous(),
        (logits, experts, weights),
        None if grad_logits is None else grad_logits.contiguous(),
        grad_weights.contiguous(),
        by_softmax,
    )
    if not can_route(rows, len(weight), experts.shape[1]):
        return reference.route_backward(*arguments)
    from recsys.kernels.routed_experts import triton_router

    return triton_router.route_backward(*arguments)


@_route_backward.register_fake
def _(rows, weight, made, grad_logits, grad_weights, by_softmax):  # type: ignore[no-untyped-def]
    return rows.new_empty(rows.shape), weight.new_empty(weight.shape)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    rows, weight, _, _, ctx.by_softmax = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(rows, weight, *output)


def _differentiate(
    ctx: Any, grad_logits: Tensor | None, _: None, grad_weights: Tensor | None
) -> tuple[Tensor | None, ...]:
    rows, weight, *made = ctx.saved_tensors
    if grad_weights is None:
        if grad_logits is None:
            return (None,) * 5
        grad_weights = torch.zeros_like(made[2])
    apply: Any = _route_backward
    of_rows, of_weight = apply(rows, weight, made, grad_logits, grad_weights, ctx.by_softmax)
    return of_rows, of_weight, None, None, None


_route.register_autograd(_differentiate, setup_context=_setup_context)
