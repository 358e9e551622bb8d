"""Layer norm, gate and dropout in one pass over the numbers: what follows HSTU attention.

    y = dropout(layer_norm(x) * u)

The only file that checks arguments and chooses between the Triton kernels and plain PyTorch. The
operations are registered with `torch.library`, so a compiled model keeps one graph.

Axes: N rows, D width.
"""

from __future__ import annotations

import os
from typing import Any, cast

import torch
from torch import Tensor

from recsys.kernels.gated_norm import reference

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_WIDTH = 8192


def gated_norm(
    x: Tensor,
    u: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    dropout: float = 0.0,
    seed: Tensor | None = None,
    epsilon: float = 1e-6,
) -> Tensor:
    """Norm each row, multiply by its gate and drop numbers.

    Which numbers are dropped is a function of the seed, the row and the column alone, the same on
    every device. Equal inputs give equal bits, gradients included.

    Args:
        x: [N, D], rows at any stride.
        u: Gate [N, D] of x's type, rows at any stride: a slice of a wider projection will do.
        weight: [D], of any floating type.
        bias: [D].
        dropout: Share that is dropped, in [0, 1), rounded to a multiple of 2^-16.
        seed: One int64 number on x's device, where there is dropout. A new one for each step.
        epsilon: Added to the variance.

    Returns:
        [N, D] of the type of x.

    Raises:
        ValueError: Shapes, types or devices that do not fit.
    """
    _check(x, u, weight, bias)
    _check_dropout(x, dropout, seed)
    apply: Any = _gated_norm
    return cast(Tensor, apply(x, u, weight, bias, seed if dropout else None, dropout, epsilon))


def _on_kernels(x: Tensor) -> bool:
    return x.is_cuda or os.environ.get("TRITON_INTERPRET") == "1"


def _number(seed: Tensor | None) -> int:
    return 0 if seed is None else int(seed)


@torch.library.custom_op("recsys::gated_norm", mutates_args=())
def _gated_norm(
    x: Tensor,
    u: Tensor,
    weight: Tensor,
    bias: Tensor,
    seed: Tensor | None,
    dropout: float,
    epsilon: float,
) -> Tensor:
    if not _on_kernels(x):
        return reference.forward(x, u, weight, bias, _number(seed), dropout, epsilon)
    from recsys.kernels.gated_norm import triton_kernel

    return triton_kernel.forward(x, u, weight, bias, seed, dropout, epsilon)


@_gated_norm.register_fake
def _(x, u, weight, bias, seed, dropout, epsilon) -> Tensor:  # type: ignore[no-untyped-def]
    return cast(Tensor, x.new_empty(x.shape))


@torch.library.custom_op("recsys::gated_norm_backward", mutates_args=())
def _gated_norm_backward(
    grad: Tensor,
    x: Tensor,
    u: Tensor,
    weight: Tensor,
    bias: Tensor,
    seed: Tensor | None,
    dropout: float,
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if not _on_kernels(x):
        return reference.backward(grad, x, u, weight, bias, _number(seed), dropout, epsilon)
    from recsys.kernels.gated_norm import triton_kernel

    grad = grad if grad.stride(1) == 1 else grad.contiguous()
    return triton_kernel.backward(grad, x, u, weight, bias, seed, dropout, epsilon)


@_gated_norm_backward.register_fake
def _(grad, x, u, weight, bias, seed, dropout, epsilon):  # type: ignore[no-untyped-def]
    # Rows of x and u may be apart; their gradients' are not.
    return (
        x.new_empty(x.shape),
        u.new_empty(u.shape),
        weight.new_empty(weight.shape),
        bias.new_empty(bias.shape),
    )


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, u, weight, bias, seed, ctx.dropout, ctx.epsilon = inputs
    ctx.save_for_backward(x, u, weight, bias, seed)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    apply: Any = _gated_norm_backward
    gradients = apply(grad, *ctx.saved_tensors, ctx.dropout, ctx.epsilon)
    return (*gradients, None, None, None)


_gated_norm.register_autograd(_differentiate, setup_context=_setup_context)


def _check(x: Tensor, u: Tensor, weight: Tensor, bias: Tensor) -> None:
    if x.ndim != 2 or u.shape != x.shape:
        raise ValueError(f"x and u must be [N, D] alike, got {tuple(x.shape)} and {tuple(u.shape)}")
    if not 1 <= x.shape[1] <= MAX_WIDTH:
        raise ValueError(f"rows must be 1 to {MAX_WIDTH} wide, got {x.shape[1]}")
    if weight.shape != x.shape[1:] or bias.shape != x.shape[1:]:
        raise ValueError(
            f"weight and bias must be [{x.shape[1]}] like the rows of x, got "
            f"{tuple(weight.shape)} and {tuple(bias.shape)}"
        )
    if x.dtype != u.dtype or x.dtype not in DTYPES:
        raise ValueError(
            f"x and u must be of one type of {[str(one) for one in DTYPES]}, got {x.dtype} and "
            f"{u.dtype}"
        )
    for name, tensor in (("u", u), ("weight", weight), ("bias", bias)):
        if tensor.device != x.device:
            raise ValueError(f"x is on {x.device}, {name} on {tensor.device}; move one")
    for name, tensor in (("x", x), ("u", u)):
        if tensor.stride(1) != 1:
            raise ValueError(
                f"{name} must have contiguous rows, got strides {tensor.stride()}; call "
                ".contiguous()"
            )


def _check_dropout(x: Tensor, dropout: float, seed: Tensor | None) -> None:
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be in [0, 1), got {dropout}")
    if dropout and (seed is None or seed.numel() != 1 or seed.dtype != torch.int64):
        got = None if seed is None else (seed.dtype, tuple(seed.shape))
        raise ValueError(f"dropout needs a seed, one int64 number as a tensor, got {got}")
    if dropout and seed is not None and seed.device != x.device:
        raise ValueError(f"x is on {x.device}, seed on {seed.device}; move one")
