"""The optimizers that run inside the backward, and their state."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from recsys.kernels.embedding_bag.layout import TableLayout


class Optimizer(IntEnum):
    """Update rules; each touches only rows that occur in the batch.

    Row-wise rules keep one word per row: the mean square of the row's gradient instead of a square
    per element.
    """

    SGD = 0
    ROWWISE_ADAGRAD = 1
    ADAM = 2
    ROWWISE_ADAM = 3


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Which rule, and its constants; the learning rate lies on the device, in the state."""

    rule: Optimizer = Optimizer.ROWWISE_ADAGRAD
    epsilon: float = 1e-8
    beta1: float = 0.9
    beta2: float = 0.999
    max_row_norm: float | None = None
    """Greatest length of a row's gradient, summed over the batch; longer ones are scaled to it,
    and a row whose gradient is not finite stays as it is. None does neither."""

    def __post_init__(self) -> None:
        if self.max_row_norm is not None and not self.max_row_norm > 0:
            raise ValueError(f"max_row_norm must be > 0 or None, got {self.max_row_norm}")
        if self.epsilon < 0 or not 0 <= self.beta1 < 1 or not 0 <= self.beta2 < 1:
            raise ValueError(
                f"epsilon must be >= 0 and the betas in [0, 1), got {self.epsilon}, {self.beta1} "
                f"and {self.beta2}"
            )


class OptimizerState(NamedTuple):
    """Tensors that the update reads and writes, all on the tables' device.

    ``first``: Adam's mean gradient, laid out like the weights. ``second``: Adagrad's sum or Adam's
    mean of squares, [R] row-wise or laid out like the weights. ``step``: [1] int64, updates done.
    ``learning_rate``: [1] float32.
    """

    first: Tensor
    second: Tensor
    step: Tensor
    learning_rate: Tensor


class Tables(NamedTuple):
    """Everything that an update of the tables needs beside the batch."""

    layout: TableLayout
    config: OptimizerConfig
    weights: Tensor
    state: OptimizerState
    feature_data: Tensor


def new_state(
    layout: TableLayout, config: OptimizerConfig, learning_rate: float, device: torch.device | str
) -> OptimizerState:
    """Make the state of untouched tables."""
    first = second = 0
    if is_adam(config):
        first = layout.num_elements
    if config.rule == Optimizer.ADAM:
        second = layout.num_elements
    elif config.rule != Optimizer.SGD:
        second = layout.total_rows
    return OptimizerState(
        torch.zeros(first, device=device),
        torch.zeros(second, device=device),
        torch.zeros(1, dtype=torch.int64, device=device),
        torch.full((1,), learning_rate, device=device),
    )


def is_adam(config: OptimizerConfig) -> bool:
    """Return whether the update depends on how many there were."""
    return config.rule in (Optimizer.ADAM, Optimizer.ROWWISE_ADAM)


def bias_corrections(step: Tensor, config: OptimizerConfig) -> Tensor:
    """Compute Adam's 1 - beta^t of both betas on the device, [2] float32 (arXiv:1412.6980)."""
    logs = [math.log(beta) if beta else -math.inf for beta in (config.beta1, config.beta2)]
    return torch.cat([-torch.expm1(step.double() * log) for log in logs]).float()
