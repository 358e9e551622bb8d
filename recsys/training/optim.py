"""AdamW with decay groups (arXiv:1711.05101), learning-rate schedules and gradient clipping.

Schedules are plain functions of the step, so a resumed run needs no scheduler state. Embedding
tables may be taken out of AdamW and moved by rows, inside the backward (``layers/embedding.py``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from recsys.layers.embedding.collection import EmbeddingBags, RowUpdateConfig
from recsys.training.orthogonal import Muon, block_matrices

ROWS_PAY_FROM = 1 << 25
"""Elements of a layer's tables from which moving rows beats a dense step: on an H200 the dense step
of the two-tower took 0.9 times as long as by rows at 1.5M elements, 1.07 times at 64M and 1.8 times
at 640M (``tests/benchmarks/results/kernels/training_step_cuda.md``)."""


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """How the learning rate rises and falls over the steps.

    Raises:
        ValueError: If a number is out of its range or the decay is unknown.
    """

    learning_rate: float = 1e-3
    """The peak, reached at the end of the warm-up."""
    warmup_steps: int = 0
    """Steps of linear rise from learning_rate / warmup_steps."""
    decay: Literal["constant", "linear", "cosine"] = "cosine"
    """How the learning rate falls after the warm-up."""
    decay_steps: int | None = None
    """Step at which the decay ends, warm-up included; None is the run's number of steps. A refit
    that stops early keeps the original's schedule by giving the original's number of steps."""
    final_share: float = 0.0
    """Share of the peak that remains at the end of the decay."""

    def __post_init__(self) -> None:
        if not self.learning_rate > 0 or not math.isfinite(self.learning_rate):
            raise ValueError(f"learning_rate must be > 0 and finite, got {self.learning_rate}")
        if self.warmup_steps < 0:
            raise ValueError(f"warmup_steps must be >= 0, got {self.warmup_steps}")
        if self.decay not in ("constant", "linear", "cosine"):
            raise ValueError(f"decay is 'constant', 'linear' or 'cosine', got {self.decay!r}")
        if self.decay_steps is not None and self.decay_steps < 1:
            raise ValueError(f"decay_steps must be >= 1 or None, got {self.decay_steps}")
        if not 0 <= self.final_share <= 1:
            raise ValueError(f"final_share must be in [0, 1], got {self.final_share}")


def lr_at(step: float, schedule: ScheduleConfig, num_steps: int) -> float:
    """Give the learning rate of a step, counted from 0, of a run of ``num_steps``.

    Args:
        step: May lie between two steps, in a run that hurries.
        schedule: How the rate rises and falls.
        num_steps: Of the whole run.
    """
    if step < schedule.warmup_steps:
        return schedule.learning_rate * (step + 1) / schedule.warmup_steps
    end = schedule.decay_steps or num_steps
    done = (step - schedule.warmup_steps) / max(1, end - schedule.warmup_steps)
    done = min(done, 1.0)
    if schedule.decay == "constant":
        remaining = 1.0
    elif schedule.decay == "linear":
        remaining = 1 - done
    else:
        remaining = (1 + math.cos(math.pi * done)) / 2
    share = schedule.final_share + (1 - schedule.final_share) * remaining
    return schedule.learning_rate * share


@dataclass(frozen=True, kw_only=True)
class AdamWConfig:
    """AdamW's own numbers; the learning rate comes from the schedule.

    Raises:
        ValueError: If a number is out of its range.
    """

    weight_decay: float = 0.01
    """Share of a weight that a step takes off, times the learning rate."""
    decay_embeddings: bool = False
    """Whether embedding tables decay too. Off: a rare item's row would shrink to nothing between
    its updates."""
    beta1: float = 0.9
    """Decay of the gradients' running mean."""
    beta2: float = 0.999
    """Decay of the squared gradients' running mean."""
    eps: float = 1e-8
    """Added to the divisor, so that it is never 0."""
    tables: Literal["auto", "dense", "adam", "rowwise_adam", "rowwise_adagrad"] = "auto"
    """How embedding tables move. ``dense``: as any other weight, every row at every step. ``adam``:
    only rows of the batch, inside the backward; a row's moments then rest while it does not occur.
    ``rowwise_adam``: so too, with one word of squares a row. ``rowwise_adagrad``: by that word
    alone, without a mean of gradients, as DLRM's tables. ``auto``: ``adam`` for large tables on
    CUDA with Triton, where it was measured faster, else dense."""
    matrices: Literal["adam", "orthogonal"] = "adam"
    """How the matrices inside blocks move: by Adam, or by Muon's orthogonal steps
    (``training/orthogonal.py``)."""
    max_row_norm: float | None = 1.0
    """Norm to which each row's gradient is clipped if tables move by rows: a global norm is known
    only after they have moved. Sharded tables cannot clip and need inf, which never clips."""

    def __post_init__(self) -> None:
        kinds = ("auto", "dense", "adam", "rowwise_adam", "rowwise_adagrad")
        if self.tables not in kinds:
            raise ValueError(f"tables is one of {kinds}, got {self.tables!r}")
        if self.matrices not in ("adam", "orthogonal"):
            raise ValueError(f"matrices is 'adam' or 'orthogonal', got {self.matrices!r}")
        if self.decay_embeddings and self.tables in kinds[2:]:
            raise ValueError(
                f"tables that move by rows ({self.tables!r}) cannot decay; set decay_embeddings "
                "to false, or tables to 'dense'"
            )
        if self.weight_decay < 0:
            raise ValueError(f"weight_decay must be >= 0, got {self.weight_decay}")
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1):
            raise ValueError(f"betas must be in [0, 1), got {self.beta1} and {self.beta2}")
        if self.eps <= 0:
            raise ValueError(f"eps must be > 0, got {self.eps}")


def decay_groups(
    model: nn.Module, weight_decay: float, *, decay_embeddings: bool
) -> list[dict[str, Any]]:
    """Split the trainable parameters: matrices decay, biases and norms never, embeddings by choice.

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
            decays = decay_embeddings if id(parameter) in tables else parameter.ndim >= 2
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
        free = not frozen and not config.decay_embeddings
        rule = "adam" if fast and large and free else "dense"
    if rule == "dense" or len(frozen) == len(layer.tables):
        return None
    if frozen:
        raise ValueError(
            f"tables {frozen} are frozen and share a layer with others that move by rows; unfreeze "
            "them, or set tables to 'dense'"
        )
    return RowUpdateConfig(
        rule=rule,
        beta1=config.beta1,
        beta2=config.beta2,
        eps=config.eps,
        max_row_norm=config.max_row_norm,
    )


class RowTables:
    """The tables of a model that move by rows."""

    def __init__(self, model: nn.Module) -> None:
        self.layers = [layer for _, layer in row_tables(model)]

    def begin_step(self, learning_rate: float) -> None:
        for layer in self.layers:
            layer.begin_step(learning_rate)

    def may_move(self, loss: Tensor) -> bool:
        """Say whether the backward may run: a loss that is not finite moves no row."""
        allowed = [layer.may_move(loss) for layer in self.layers]
        return all(allowed)


def adamw(model: nn.Module, config: AdamWConfig) -> AdamW:
    """Build the optimizer of a model, and let its tables move as configured.

    Move the model to its device first.
    """
    for module in model.modules():
        if isinstance(module, EmbeddingBags):
            module.update_rows(row_updates(module, config))
    groups = decay_groups(model, config.weight_decay, decay_embeddings=config.decay_embeddings)
    if not groups:
        raise ValueError("the model has no trainable parameter; unfreeze some")
    # One kernel per group instead of six passes over every table, on CPU too.
    settings: dict[str, Any] = {
        "betas": (config.beta1, config.beta2),
        "eps": config.eps,
        "fused": True,
    }
    if config.matrices == "orthogonal":
        return Muon(groups, block_matrices(model), lr=0.0, **settings)
    return AdamW(groups, lr=0.0, **settings)


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
    """Name each tensor of an optimizer's state ``<slot>/<parameter>``.

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
    """Name a parameter of a module within the model; the model's own place is empty."""
    return f"{place}.{name}" if place else name


def load_optimizer_tensors(
    model: nn.Module, optimizer: Optimizer, tensors: Mapping[str, Tensor]
) -> None:
    """Put back the state that ``optimizer_tensors`` took, of tables that moved either way.

    Raises:
        ValueError: If a tensor belongs to no parameter of the optimizer.
    """
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
    """Give the tables that move by rows their state; return the tensors of all else."""
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
