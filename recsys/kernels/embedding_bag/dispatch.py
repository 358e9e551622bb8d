"""Choose between the Triton kernels and plain PyTorch: the only file that does.

At the end, lookup and update as registered operations, so that a compiled model keeps one graph;
code that is not compiled calls the functions themselves, without torch's dispatcher.

Axes: F features, B batch, M ids, D width.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from recsys.kernels.choice import runs
from recsys.kernels.embedding_bag import grouping, reference, updating
from recsys.kernels.embedding_bag.layout import TableLayout
from recsys.kernels.embedding_bag.optimizer import (
    Optimizer,
    OptimizerConfig,
    OptimizerState,
    Tables,
    counts_steps,
)
from recsys.kernels.embedding_bag.reference import UNPOOLED


class Batch(NamedTuple):
    """Arguments of a lookup: ids [M], offsets [F * B + 1], sample weights [M] or None, pooling."""

    ids: Tensor
    offsets: Tensor
    sample_weights: Tensor | None
    pooling: int


def by_triton(tables: Tensor) -> bool:
    """Whether lookups in these tables run the kernels."""
    return runs("embedding_bag", tables)


def empty_output(layout: TableLayout, batch: Batch, like: Tensor) -> Tensor:
    """Make the unwritten result of a lookup, [B, sum of D_f] or [M, D]."""
    if batch.pooling == UNPOOLED:
        return like.new_empty(batch.ids.shape[0], layout.dims[0], dtype=torch.float32)
    size = (batch.offsets.shape[0] - 1) // len(layout.feature_tables)
    return like.new_empty(size, layout.columns[-1], dtype=torch.float32)


def lookup_bytes(layout: TableLayout, weights: Tensor, batch: Batch) -> int:
    """Estimate the bytes of rows read and results written, as if every feature had as many ids."""
    num_features, columns = len(layout.feature_tables), layout.columns[-1]
    num_ids, num_bags = batch.ids.shape[0], batch.offsets.shape[0] - 1
    written = 4 * (num_ids if batch.pooling == UNPOOLED else num_bags)
    return columns * (num_ids * weights.element_size() + written) // num_features


def lookup(layout: TableLayout, weights: Tensor, feature_data: Tensor, batch: Batch) -> Tensor:
    """Look up and pool."""
    if not by_triton(weights):
        return reference.forward(layout, weights, *batch).float()
    from recsys.kernels.embedding_bag import triton_kernel

    out = empty_output(layout, batch, weights)
    return triton_kernel.forward(layout, weights, feature_data, *batch, out)


def update(
    tables: Tables,
    batch: Batch,
    grad: Tensor,
    scalars: tuple[Tensor | None, Tensor | None],
    runs: grouping.Runs | None = None,
) -> None:
    """Move the rows that occur, in place; scalars: grad_scale, skip; ``runs``: of this batch."""
    layout, config, weights, state, feature_data = tables
    if counts_steps(config):
        skip = scalars[1]
        state.step.add_(1 if skip is None else (skip == 0).to(state.step.dtype))
    if not len(batch.ids):
        return
    if not by_triton(weights):
        reference.update(layout, config, weights, state, batch, grad, *scalars)
        return
    if runs is None:
        runs = grouping.group(layout, feature_data, batch)
    updating.update(tables, runs, grad, scalars, unpooled=batch.pooling == UNPOOLED)


def sample_weight_gradient(
    layout: TableLayout, weights: Tensor, feature_data: Tensor, batch: Batch, grad: Tensor
) -> Tensor:
    """Compute each sample weight's gradient, [M]."""
    ids, offsets, _weights, pooling = batch
    if not by_triton(weights):
        args = (ids, offsets, grad, pooling)
        return reference.sample_weight_gradient(layout, weights, *args).float()
    from recsys.kernels.embedding_bag import triton_kernel

    out = torch.zeros(len(ids), dtype=torch.float32, device=ids.device)
    if len(ids):
        keys = grouping.key_ids(layout, feature_data, ids, offsets, pooling)
        triton_kernel.sample_weight_gradient(
            layout, weights, feature_data, keys.keys, keys.places, offsets, grad, pooling, out
        )
    return out


def settings_text(layout: TableLayout, config: OptimizerConfig) -> str:
    """Write layout and optimizer as one text, since an operation's arguments are plain values."""
    return json.dumps([asdict(layout), asdict(config)])


@lru_cache(maxsize=256)
def _parsed(settings: str) -> tuple[TableLayout, OptimizerConfig]:
    layout, config = json.loads(settings)
    config["rule"] = Optimizer(config["rule"])
    sizes = {name: tuple(values) for name, values in layout.items()}
    return TableLayout(**sizes), OptimizerConfig(**config)


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
    settings: str,
    pooling: int,
) -> Tensor:
    """Look up; ``anchor`` to ``skip`` are for the backward."""
    batch = Batch(ids, offsets, sample_weights, pooling)
    return lookup(_parsed(settings)[0], weights, feature_data, batch)


@embedding_bag.register_fake
def _(  # type: ignore[no-untyped-def]
    weights, feature_data, ids, offsets, sample_weights, anchor, state, grad_scale, skip, settings,
    pooling,
) -> Tensor:  # fmt: skip
    batch = Batch(ids, offsets, sample_weights, pooling)
    return empty_output(_parsed(settings)[0], batch, weights)


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
    settings: str,
    pooling: int,
) -> None:
    state = OptimizerState(first, second, step, learning_rate)
    tables = Tables(*_parsed(settings), weights, state, feature_data)
    update(tables, Batch(ids, offsets, sample_weights, pooling), grad, (grad_scale, skip))


@torch.library.custom_op("recsys::embedding_bag_sample_weight_gradient", mutates_args=())
def _sample_weight_gradient(
    weights: Tensor,
    feature_data: Tensor,
    ids: Tensor,
    offsets: Tensor,
    grad: Tensor,
    settings: str,
    pooling: int,
) -> Tensor:
    batch = Batch(ids, offsets, None, pooling)
    return sample_weight_gradient(_parsed(settings)[0], weights, feature_data, batch, grad)


@_sample_weight_gradient.register_fake
def _(weights, feature_data, ids, offsets, grad, settings, pooling) -> Tensor:  # type: ignore[no-untyped-def]
    return torch.empty_like(ids, dtype=torch.float32)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    weights, feature_data, ids, offsets, sample_weights, _anchor, state, *scalars = inputs[:9]
    ctx.save_for_backward(feature_data, ids, offsets, sample_weights, *scalars)
    # Not saved as autograd saves: an update between forward and backward is no mistake here.
    ctx.tables, ctx.constants = (weights, *state), inputs[9:]


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    feature_data, ids, offsets, sample_weights, grad_scale, skip = ctx.saved_tensors
    grad, sample_grad = grad.contiguous(), None
    if ctx.needs_input_grad[4]:
        # Before the update, which changes the rows that this reads.
        sample_grad = _sample_weight_gradient(
            ctx.tables[0], feature_data, ids, offsets, grad, *ctx.constants
        )
    if ctx.needs_input_grad[5]:
        _update(
            *ctx.tables, feature_data, ids, offsets, sample_weights, grad, grad_scale, skip,
            *ctx.constants,
        )  # fmt: skip
    return (None, None, None, None, sample_grad, None, [None] * 4, *[None] * 4)


embedding_bag.register_autograd(_backward, setup_context=_save_for_backward)
