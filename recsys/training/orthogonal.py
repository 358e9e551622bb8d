"""Muon: matrices inside blocks move by their momentum with all singular values made equal.

Newton-Schulz iterations stand in for the singular value decomposition (Jordan et al. 2024,
https://kellerjordan.github.io/posts/muon); steps are as long as Adam's (arXiv:2502.16982), so that
one learning rate and one decay do for both. All else, tables among it, moves by AdamW.

Axes: S matrices of one shape, [R, C] each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW

MOMENTUM = 0.95
ITERATIONS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic that pushes singular values in (0, 1] into about [0.7, 1.2]."""
ADAM_LENGTH = 0.2
"""Root mean square of one of Adam's steps over the learning rate, as found in practice."""


def block_matrices(model: nn.Module) -> list[nn.Parameter]:
    """List the trainable weights of linear layers inside blocks, in the model's order."""
    return [
        layer.get_parameter("weight")
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and "blocks" in name.split(".")
        if layer.weight.requires_grad
    ]


def orthogonalised(matrices: Tensor) -> Tensor:
    """Make the singular values of matrices about 1, [S, R, C]; in bfloat16 where it is fast."""
    x = matrices.bfloat16() if matrices.is_cuda else matrices.float()
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.mT
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        products = x @ x.mT
        x = a * x + (b * products + c * products @ products) @ x
    turned: Tensor = (x.mT if tall else x).to(matrices.dtype)
    return turned


class Muon(AdamW):
    """AdamW that leaves some matrices to orthogonal steps."""

    def __init__(
        self, groups: list[dict[str, Any]], matrices: Sequence[nn.Parameter], **settings: Any
    ) -> None:
        """Take AdamW's groups and settings.

        Args:
            matrices: Parameters of the groups, whose decay and learning rate they keep.
        """
        super().__init__(groups, **settings)
        self.found_inf: Tensor | None = None
        """On the device: not zero where a step is to move nothing, as of torch's fused AdamW."""
        self._matrices = {id(matrix) for matrix in matrices}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Move every parameter that has a gradient."""
        moving = [
            (parameter, parameter.grad, group)
            for group in self.param_groups
            for parameter in group["params"]
            if id(parameter) in self._matrices and parameter.grad is not None
        ]
        for parameter, _, _ in moving:
            parameter.grad = None
        loss: float | None = super().step(closure)
        for parameter, gradient, _ in moving:
            parameter.grad = gradient
        # Equal shapes at once: a step is many small products.
        by_shape = sorted(moving, key=lambda one: tuple(one[0].shape))
        for _, stack in groupby(by_shape, key=lambda one: (tuple(one[0].shape), id(one[2]))):
            self._turn(list(stack))
        return loss

    def _turn(self, stack: Sequence[tuple[nn.Parameter, Tensor, dict[str, Any]]]) -> None:
        """Move matrices of one shape and group."""
        steps = []
        for parameter, gradient, _ in stack:
            state = self.state[parameter]
            if "momentum" not in state:
                # AdamW looks for a count of steps wherever there is a state.
                state["step"] = torch.zeros((), device=parameter.device)
                state["momentum"] = torch.zeros_like(parameter)
            if self.found_inf is None:
                state["momentum"].mul_(MOMENTUM).add_(gradient)
            else:
                moved = MOMENTUM * state["momentum"] + gradient
                state["momentum"].copy_(self._unless_bad(state["momentum"], moved))
            steps.append(gradient + MOMENTUM * state["momentum"])
        group, shape = stack[0][2], stack[0][0].shape
        length = group["lr"] * ADAM_LENGTH * math.sqrt(max(shape))
        for (parameter, _, _), turn in zip(stack, orthogonalised(torch.stack(steps)), strict=True):
            kept = 1 - group["lr"] * group["weight_decay"]
            if self.found_inf is None:
                parameter.mul_(kept).sub_(turn, alpha=length)
            else:
                parameter.copy_(self._unless_bad(parameter, parameter * kept - turn * length))

    def _unless_bad(self, before: Tensor, after: Tensor) -> Tensor:
        """Choose on the device, as AdamW's fused kernel does."""
        assert self.found_inf is not None
        return torch.where(self.found_inf > 0, before, after)
