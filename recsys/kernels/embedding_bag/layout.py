"""Layout of many embedding tables of different widths in one flat tensor.

Tables are laid out by width. Tables of one width touch each other, so the place of a row follows
from its key alone: ``start + (key - first_key) * D``. A key numbers the rows of all tables.

Axes: T tables, F features, B batch, M ids, D width, R rows of all tables.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from recsys.data.bounds import check_bounds

ALIGNMENT = 64
"""Elements to which the first table of a width is aligned, so that rows load 16 bytes at a time."""


class WidthClass(NamedTuple):
    """All tables of one width."""

    dim: int
    features: tuple[int, ...]
    first_key: int
    end_key: int
    start: int
    """Element of the flat tensor where the first row begins."""


@dataclass(frozen=True)
class TableLayout:
    """Tables, and which table each feature looks up; features may share a table.

    Args:
        num_rows: Rows of each table, [T].
        dims: Width of each table, [T].
        feature_tables: Table of each feature, [F].
    """

    num_rows: tuple[int, ...]
    dims: tuple[int, ...]
    feature_tables: tuple[int, ...]

    @cached_property
    def classes(self) -> tuple[WidthClass, ...]:
        """Widths in ascending order, with the part of the keys and of the memory of each."""
        classes, key, start = [], 0, 0
        for dim in sorted(set(self.dims)):
            tables = [table for table, width in enumerate(self.dims) if width == dim]
            rows = sum(self.num_rows[table] for table in tables)
            features = tuple(f for f, table in enumerate(self.feature_tables) if table in tables)
            classes.append(WidthClass(dim, features, key, key + rows, start))
            key += rows
            start += -(-rows * dim // ALIGNMENT) * ALIGNMENT
        return tuple(classes)

    @cached_property
    def table_keys(self) -> tuple[int, ...]:
        """Key of each table's first row, [T]."""
        keys, key = [0] * len(self.dims), 0
        for table in sorted(range(len(self.dims)), key=lambda table: self.dims[table]):
            keys[table] = key
            key += self.num_rows[table]
        return tuple(keys)

    @property
    def total_rows(self) -> int:
        return self.classes[-1].end_key

    @cached_property
    def num_elements(self) -> int:
        """Length of the flat tensor."""
        last = self.classes[-1]
        size = last.start + (last.end_key - last.first_key) * last.dim
        return -(-size // ALIGNMENT) * ALIGNMENT

    @cached_property
    def columns(self) -> tuple[int, ...]:
        """First output column of each feature and, last, the number of columns, [F + 1]."""
        columns = [0]
        for table in self.feature_tables:
            columns.append(columns[-1] + self.dims[table])
        return tuple(columns)

    @property
    def uniform(self) -> bool:
        """Return whether all tables have one width."""
        return len(self.classes) == 1

    @cached_property
    def aligned(self) -> bool:
        """True if every row begins at a multiple of 8 elements, in the tables and the results."""
        return all(dim % 8 == 0 for dim in self.dims)

    def start(self, table: int) -> int:
        """First element of a table."""
        key = self.table_keys[table]
        own = next(one for one in self.classes if one.dim == self.dims[table])
        return own.start + (key - own.first_key) * own.dim

    def table(self, weights: Tensor, table: int) -> Tensor:
        """View one table of a flat tensor, [rows, D]."""
        start, rows, dim = self.start(table), self.num_rows[table], self.dims[table]
        return weights[start : start + rows * dim].view(rows, dim)

    def feature_data(self, device: torch.device | str) -> Tensor:
        """Build the table of features that kernels read, [4, F] int64.

        First key, number of rows, first output column; last, the features ordered by width.
        """
        tables = self.feature_tables
        data = [
            [self.table_keys[table] for table in tables],
            [self.num_rows[table] for table in tables],
            list(self.columns[:-1]),
            [feature for one in self.classes for feature in one.features],
        ]
        return torch.tensor(data, dtype=torch.int64, device=device)


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
    """Which rule, and its constants; the learning rate is on the device, in the state."""

    rule: Optimizer = Optimizer.ROWWISE_ADAGRAD
    epsilon: float = 1e-8
    beta1: float = 0.9
    beta2: float = 0.999
    max_row_norm: float | None = None
    """Greatest length of a row's gradient, summed over the batch; longer ones are scaled to it,
    and a row whose gradient is not finite stays as it is. None does neither."""

    def __post_init__(self) -> None:
        check_bounds(
            self, max_row_norm="> 0 or inf", epsilon=">= 0", beta1="[0, 1)", beta2="[0, 1)"
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


class TableArrays(NamedTuple):
    """Everything that an update of the tables needs, less the batch."""

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
