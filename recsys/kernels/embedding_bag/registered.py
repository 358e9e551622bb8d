"""The lookups and their update as registered operations, so that a compiled model keeps one graph.

Uncompiled code does not come here: `op` calls the same functions without the dispatcher.

Axes: as in `op`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from recsys.kernels.embedding_bag import dispatch
from recsys.kernels.embedding_bag.dispatch import Batch
from recsys.kernels.embedding_bag.layout import TableLayout, table_layout
from recsys.kernels.embedding_bag.optimizer import (
    Optimizer,
    OptimizerConfig,
    OptimizerState,
    Tables,
)


def _layout(
    num_rows: Sequence[int], dims: Sequence[int], feature_tables: Sequence[int]
) -> TableLayout:
    return table_layout(tuple(num_rows), tuple(dims), tuple(feature_tables))


def _config(rule: int, constants: Sequence[float], seed: int, stochastic: bool) -> OptimizerConfig:
    return OptimizerConfig(
        rule=Optimizer(rule),
        epsilon=constants[0],
        beta1=constants[1],
        beta2=constants[2],
        max_row_norm=constants[3] or None,
        stochastic_rounding=stochastic,
        seed=seed,
    )


@torch.library.custom_op("recsys::embedding_bag", mutates_args=())
def embedding_bag(
    weights: Tensor,
    feature_data: Tensor,
    ids: Tensor,
    offsets: Tensor,
    sample_weights: Tensor | None,
    anchor: Tensor | None,
    state: Sequence[Tensor],
    grad_scale: Tensor | None,
    skip: Tensor | None,
    num_rows: Sequence[int],
    dims: Sequence[int],
    feature_tables: Sequence[int],
    pooling: int,
    rule: int,
    constants: Sequence[float],
    seed: int,
    stochastic: bool,
) -> Tensor:
    """Look up; the arguments behind ``sample_weights`` are for the backward."""
    layout = _layout(num_rows, dims, feature_tables)
    batch = Batch(ids, offsets, sample_weights, pooling)
    return dispatch.lookup(layout, weights, None, feature_data, batch)


@embedding_bag.register_fake
def _(  # type: ignore[no-untyped-def]
    weights, feature_data, ids, offsets, sample_weights, anchor, state, grad_scale, skip,
    num_rows, dims, feature_tables, pooling, rule, constants, seed, stochastic,
) -> Tensor:  # fmt: skip
    layout = _layout(num_rows, dims, feature_tables)
    return dispatch.empty_output(layout, Batch(ids, offsets, sample_weights, pooling), weights)


@torch.library.custom_op("recsys::quantized_embedding_bag", mutates_args=())
def quantized_embedding_bag(
    codes: Tensor,
    scale_offset: Tensor,
    feature_data: Tensor,
    ids: Tensor,
    offsets: Tensor,
    sample_weights: Tensor | None,
    num_rows: Sequence[int],
    dims: Sequence[int],
    feature_tables: Sequence[int],
    pooling: int,
) -> Tensor:
    """Look up rows of int8 tables."""
    layout = _layout(num_rows, dims, feature_tables)
    batch = Batch(ids, offsets, sample_weights, pooling)
    return dispatch.lookup(layout, codes, scale_offset, feature_data, batch)


@quantized_embedding_bag.register_fake
def _(  # type: ignore[no-untyped-def]
    codes, scale_offset, feature_data, ids, offsets, sample_weights, num_rows, dims,
    feature_tables, pooling,
) -> Tensor:  # fmt: skip
    layout = _layout(num_rows, dims, feature_tables)
    return dispatch.empty_output(layout, Batch(ids, offsets, sample_weights, pooling), codes)


@torch.library.custom_op(
    "recsys::embedding_bag_update", mutates_args=("weights", "first", "second", "step")
)
def _update(
    weights: Tensor,
    first: Tensor,
    second: Tensor,
    step: Tensor,
    learning_rate: Tensor,
    feature_data: Tensor,
    ids: Tensor,
    offsets: Tensor,
    sample_weights: Tensor | None,
    grad: Tensor,
    grad_scale: Tensor | None,
    skip: Tensor | None,
    num_rows: Sequence[int],
    dims: Sequence[int],
    feature_tables: Sequence[int],
    pooling: int,
    rule: int,
    constants: Sequence[float],
    seed: int,
    stochastic: bool,
) -> None:
    layout = _layout(num_rows, dims, feature_tables)
    config = _config(rule, constants, seed, stochastic)
    state = OptimizerState(first, second, step, learning_rate)
    batch = Batch(ids, offsets, sample_weights, pooling)
    tables = Tables(layout, config, weights, state, feature_data)
    dispatch.update(tables, batch, grad, (grad_scale, skip))


@torch.library.custom_op("recsys::embedding_bag_sample_weight_gradient", mutates_args=())
def _sample_weight_gradient(
    weights: Tensor,
    feature_data: Tensor,
    ids: Tensor,
    offsets: Tensor,
    grad: Tensor,
    num_rows: Sequence[int],
    dims: Sequence[int],
    feature_tables: Sequence[int],
    pooling: int,
) -> Tensor:
    layout = _layout(num_rows, dims, feature_tables)
    batch = Batch(ids, offsets, None, pooling)
    return dispatch.sample_weight_gradient(layout, weights, feature_data, batch, grad)


@_sample_weight_gradient.register_fake
def _(  # type: ignore[no-untyped-def]
    weights, feature_data, ids, offsets, grad, num_rows, dims, feature_tables, pooling,
) -> Tensor:  # fmt: skip
    return torch.empty_like(ids, dtype=torch.float32)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    weights, feature_data, ids, offsets, sample_weights, _anchor, state, *rest = inputs
    ctx.save_for_backward(feature_data, ids, offsets, sample_weights, *rest[:2])
    # Not saved as autograd saves: an update between forward and backward is no mistake here.
    ctx.tables = (weights, *state)
    ctx.rest = rest[2:]


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    feature_data, ids, offsets, sample_weights, grad_scale, skip = ctx.saved_tensors
    weights, first, second, step, learning_rate = ctx.tables
    num_rows, dims, feature_tables, pooling, rule, constants, seed, stochastic = ctx.rest
    grad = grad.contiguous()
    sizes = (num_rows, dims, feature_tables)
    sample_grad = None
    if ctx.needs_input_grad[4]:
        # Before the update, which changes the rows that this reads.
        sample_grad = _sample_weight_gradient(
            weights, feature_data, ids, offsets, grad, *sizes, pooling
        )
    if ctx.needs_input_grad[5]:
        _update(
            weights, first, second, step, learning_rate, feature_data, ids, offsets,
            sample_weights, grad, grad_scale, skip, *sizes, pooling, rule, constants, seed,
            stochastic,
        )  # fmt: skip
    return (None, None, None, None, sample_grad, None, [None] * 4, *[None] * 10)


embedding_bag.register_autograd(_backward, setup_context=_save_for_backward)
