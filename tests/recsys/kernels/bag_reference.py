"""Embedding bags and their fused updates in plain PyTorch: the truth.

Arithmetic is float64 where the tables are, else float32.

Axes: F features, B batch, M ids, D width, U different rows; offsets are [F * B + 1], feature by
feature.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recsys.kernels.embedding_bag.layout import (
    Optimizer,
    OptimizerConfig,
    OptimizerState,
    TableLayout,
    WidthClass,
    bias_corrections,
)


def row_keys(layout: TableLayout, ids: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """Find the key of each id, [M], R where it is out of range, and its bag f * B + b, [M]."""
    num_features = len(layout.feature_tables)
    batch = (len(offsets) - 1) // num_features
    bags = torch.repeat_interleave(torch.arange(len(offsets) - 1), offsets.diff())
    first, rows = layout.feature_data("cpu")[:2]
    feature = bags // max(batch, 1)
    ids = ids[: len(bags)].long()
    there = (ids >= 0) & (ids < rows[feature])
    return torch.where(there, first[feature] + ids, layout.total_rows), bags


def _scales(bags: Tensor, sample_weights: Tensor | None) -> Tensor:
    """Compute the factor of each id in its bag's result, [M]."""
    if sample_weights is None:
        return torch.ones(len(bags), dtype=torch.float32)
    return sample_weights[: len(bags)]


def _rows(weights: Tensor, keys: Tensor, one: WidthClass) -> Tensor:
    """Read rows of one width, [M, D]."""
    size = (one.end_key - one.first_key) * one.dim
    table = weights[one.start : one.start + size].view(-1, one.dim)
    return table[keys - one.first_key]


def _of_class(keys: Tensor, one: WidthClass) -> Tensor:
    return ((keys >= one.first_key) & (keys < one.end_key)).nonzero().flatten()


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def forward(
    layout: TableLayout,
    weights: Tensor,
    ids: Tensor,
    offsets: Tensor,
    sample_weights: Tensor | None,
) -> Tensor:
    """Look up and sum, [B, sum of D_f]; an empty bag and an id out of range give zeros."""
    wide = _wide(weights.dtype)
    keys, bags = row_keys(layout, ids, offsets)
    scale = _scales(bags, sample_weights).to(wide)
    batch = (len(offsets) - 1) // len(layout.feature_tables)
    out = torch.zeros(batch, layout.columns[-1], dtype=wide)
    for one in layout.classes:
        at = _of_class(keys, one)
        rows = _rows(weights, keys[at], one).to(wide) * scale[at, None]
        pooled = torch.zeros(len(offsets) - 1, one.dim, dtype=wide).index_add_(0, bags[at], rows)
        for feature in one.features:
            column = layout.columns[feature]
            part = pooled[feature * batch : (feature + 1) * batch]
            out[:, column : column + one.dim] = part
    return out


def _row_gradients(
    layout: TableLayout, grad: Tensor, one: WidthClass, at: Tensor, bags: Tensor
) -> Tensor:
    """Read the gradient of each id's bag, [M, D]."""
    batch = len(grad)
    columns = torch.tensor(layout.columns)[bags[at] // batch]
    return grad[(bags[at] % batch)[:, None], columns[:, None] + torch.arange(one.dim)]


def update(
    layout: TableLayout,
    config: OptimizerConfig,
    weights: Tensor,
    state: OptimizerState,
    batch: tuple[Tensor, Tensor, Tensor | None],
    grad: Tensor,
    grad_scale: Tensor | None = None,
    skip: Tensor | None = None,
) -> None:
    """Add up each row's gradient and apply the optimizer to the rows that occur, in place.

    ``state.step`` must already count this update.

    Args:
        grad: Gradient of the output, [B, sum of D_f].
        grad_scale: [1], multiplies the gradient.
        skip: [1], not zero where nothing may change.
    """
    if skip is not None and bool(skip != 0):
        return
    ids, offsets, sample_weights = batch
    wide = _wide(weights.dtype)
    keys, bags = row_keys(layout, ids, offsets)
    scale = _scales(bags, sample_weights).to(wide)
    for one in layout.classes:
        at = _of_class(keys, one)
        rows = _row_gradients(layout, grad, one, at, bags).to(wide) * scale[at, None]
        touched, place = torch.unique(keys[at], return_inverse=True)
        total = torch.zeros(len(touched), one.dim, dtype=wide).index_add_(0, place, rows)
        if grad_scale is not None:
            total = total * grad_scale.to(wide)
        if config.max_row_norm is not None:
            touched, total = clip_rows(touched, total, config.max_row_norm)
        _apply(config, weights, state, one, touched, total)


def clip_rows(rows: Tensor, grad: Tensor, max_norm: float) -> tuple[Tensor, Tensor]:
    """Scale row gradients [U, D] to a norm of at most ``max_norm``; drop those not finite."""
    norm = grad.norm(dim=1)
    finite = norm.isfinite()
    factor = (max_norm / (norm[finite] + 1e-6)).clamp(max=1)
    return rows[finite], grad[finite] * factor[:, None]


def _apply(
    config: OptimizerConfig,
    weights: Tensor,
    state: OptimizerState,
    one: WidthClass,
    keys: Tensor,
    grad: Tensor,
) -> None:
    """Move rows ``keys`` [U] of one width by their gradient [U, D]."""
    size = (one.end_key - one.first_key) * one.dim
    rows = keys - one.first_key

    def table(flat: Tensor) -> Tensor:
        return flat[one.start : one.start + size].view(-1, one.dim)

    lr = state.learning_rate.to(grad.dtype)
    if config.rule == Optimizer.SGD:
        change = lr * grad
    elif config.rule == Optimizer.ROWWISE_ADAGRAD:
        second = state.second[keys] + grad.square().mean(1).to(state.second.dtype)
        state.second[keys] = second
        change = lr * grad / (second.to(grad.dtype).sqrt() + config.epsilon)[:, None]
    else:
        correct = bias_corrections(state.step, config).to(grad.dtype)
        first = table(state.first)
        mean = first[rows].to(grad.dtype) * config.beta1 + grad * (1 - config.beta1)
        first[rows] = mean.to(first.dtype)
        if config.rule == Optimizer.ADAM:
            squares, at, square = table(state.second), rows, grad.square()
        else:
            squares, at, square = state.second[:, None], keys, grad.square().mean(1, keepdim=True)
        mean_square = squares[at].to(grad.dtype) * config.beta2 + square * (1 - config.beta2)
        squares[at] = mean_square.to(squares.dtype)
        change = lr * (mean / correct[0]) / ((mean_square / correct[1]).sqrt() + config.epsilon)
    moved = table(weights)[rows].to(grad.dtype) - change
    table(weights)[rows] = moved.to(weights.dtype)
