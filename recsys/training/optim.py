"""AdamW with decay groups (arXiv:1711.05101), and gradient clipping.

Embedding tables may be taken out of AdamW and moved by rows, inside the backward
(``layers/embedding``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from recsys.layers.embedding.collection import EmbeddingBags
from recsys.layers.embedding.fbgemm_updates import row_updates_for
from recsys.layers.embedding.row_updates import RowUpdateConfig
from recsys.training.passes import ROWS_PAY_FROM, AdamWConfig

MOMENTUM = 0.95
ITERATIONS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic that moves singular values in (0, 1] to about [0.7, 1.2]."""
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
        super().__init__(groups, **settings)
        self.found_inf: Tensor | None = None
        """On the device: not zero where a step is to move nothing, as of torch's fused AdamW."""
        self._matrices = {id(matrix) for matrix in matrices}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
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
        assert self.found_inf is not None
        return torch.where(self.found_inf > 0, before, after)


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Split the trainable parameters: matrices decay; biases, norms and embeddings never.

    A rare item's row would shrink to nothing between its updates.

    Order is that of ``named_parameters`` within each group, so it is the same in every run. Tables
    that move by rows are in neither.
    """
    by_rows = {id(one) for _, layer in row_tables(model) for one in layer.parameters()}
    tables = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag)
        for parameter in module.parameters(recurse=False)
    }
    decaying: list[nn.Parameter] = []
    free: list[nn.Parameter] = []
    for parameter in model.parameters():
        if parameter.requires_grad and id(parameter) not in by_rows:
            decays = id(parameter) not in tables and parameter.ndim >= 2
            (decaying if decays else free).append(parameter)
    groups = [
        {"params": decaying, "weight_decay": weight_decay},
        {"params": free, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def row_tables(model: nn.Module) -> list[tuple[str, EmbeddingBags]]:
    """List the layers whose tables move by rows, with their place in the model."""
    return [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, EmbeddingBags) and module.updates is not None
    ]


def row_updates(layer: EmbeddingBags, config: AdamWConfig) -> RowUpdateConfig | None:
    """Choose how a layer's tables move; None is dense."""
    frozen = [name for name in layer.tables if not layer.weight(name).requires_grad]
    rule = config.tables
    if layer.lies_on_every_rank:
        # Every rank moves its copy by the mean of all gradients, which only dense ones have.
        return None
    if rule == "auto":
        weights = list(layer.parameters())
        fast = layer.backend == "triton" and weights[0].is_cuda
        large = sum(weight.numel() for weight in weights) >= ROWS_PAY_FROM
        rule = "adam" if fast and large and not frozen else "dense"
    if rule == "dense" or len(frozen) == len(layer.tables):
        return None
    if frozen:
        raise ValueError(
            f"tables {frozen} are frozen and share a layer with others that move by rows; unfreeze "
            "them, or set tables to 'dense'"
        )
    return RowUpdateConfig(rule=rule, max_row_norm=config.max_row_norm)


class RowTables:
    """The tables of a model that move by rows."""

    def __init__(self, model: nn.Module) -> None:
        self.layers = [layer for _, layer in row_tables(model)]

    def begin_step(self, learning_rate: float) -> None:
        for layer in self.layers:
            layer.begin_step(learning_rate)

    def may_move(self, loss: Tensor) -> bool:
        """Return whether the backward may run: a loss that is not finite moves no row."""
        allowed = [layer.may_move(loss) for layer in self.layers]
        return all(allowed)


def adamw(model: nn.Module, config: AdamWConfig) -> AdamW:
    """Build the optimizer of a model, and let its tables move as configured.

    Move the model to its device first.
    """
    for module in model.modules():
        if isinstance(module, EmbeddingBags) and not module.is_sharded:
            by_rows = row_updates(module, config)
            module.update_rows(None if by_rows is None else row_updates_for(module, by_rows))
    groups = decay_groups(model, config.weight_decay)
    if not groups:
        raise ValueError("the model has no trainable parameter; unfreeze some")
    # One kernel per group instead of six passes over every table, on CPU too.
    if config.matrices == "orthogonal":
        return Muon(groups, block_matrices(model), lr=0.0, fused=True)
    return AdamW(groups, lr=0.0, fused=True)


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float | None) -> Tensor:
    """Scale gradients to a global norm of at most ``max_norm``; return the norm before, a scalar.

    None only measures. The result stays on its device, reading it waits.
    """
    gradients = [parameter for parameter in parameters if parameter.grad is not None]
    if max_norm is None:
        return torch.nn.utils.get_total_norm(
            [parameter.grad for parameter in gradients if parameter.grad is not None]
        )
    return torch.nn.utils.clip_grad_norm_(gradients, max_norm)


def optimizer_tensors(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Return each tensor of an optimizer's state by ``<slot>/<parameter>``.

    Settings (learning rate, decay, betas) are left out: they come from the config.
    """
    names: dict[Tensor, str] = {value: name for name, value in model.named_parameters()}
    tensors: dict[str, Tensor] = {}
    for parameter, slots in optimizer.state.items():
        for slot, value in slots.items():
            assert isinstance(value, Tensor), f"optimizer slot {slot} is {type(value)}"
            tensors[f"{slot}/{names[parameter]}"] = value
    for place, layer in row_tables(model):
        for key, value in layer.update_state().items():
            slot, name = key.split("/", 1)
            tensors[f"{slot}/{joined_name(place, name)}"] = value
    return tensors


def joined_name(place: str, name: str) -> str:
    """Return a parameter's name within the model; the model's own place is empty."""
    return f"{place}.{name}" if place else name


def load_optimizer_tensors(
    model: nn.Module, optimizer: Optimizer, tensors: Mapping[str, Tensor]
) -> None:
    """Put back the state that ``optimizer_tensors`` took, of tables that moved either way."""
    tensors = load_row_tables(model, tensors)
    names = {parameter: name for name, parameter in model.named_parameters()}
    # The index is the place in the groups, as Optimizer.state_dict numbers them.
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    index_of = {names[parameter]: index for index, parameter in enumerate(parameters)}
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        slot, name = key.split("/", 1)
        if name not in index_of:
            raise ValueError(
                f"optimizer state holds {key!r}, but the optimizer has no parameter {name!r}; "
                "it was saved for another model"
            )
        state.setdefault(index_of[name], {})[slot] = value
    optimizer.load_state_dict(
        {"state": state, "param_groups": optimizer.state_dict()["param_groups"]}
    )


def load_row_tables(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Load the state of tables that move by rows; return the other tensors."""
    rest = dict(tensors)
    for place, layer in row_tables(model):
        names = [name for name, _ in layer.named_parameters()]
        own = {
            f"{slot}/{name}": rest.pop(f"{slot}/{joined_name(place, name)}")
            for slot in {key.split("/", 1)[0] for key in tensors}
            for name in names
            if f"{slot}/{joined_name(place, name)}" in rest
        }
        layer.load_update_state(own)
    return rest
