"""Choose between the Triton kernels and plain PyTorch: the only file that does.

Axes: F features, B batch, M ids, D width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from recsys.kernels.embedding_bag import grouping, reference, updating
from recsys.kernels.embedding_bag.launch import interpreting
from recsys.kernels.embedding_bag.layout import TableLayout
from recsys.kernels.embedding_bag.optimizer import Tables, counts_steps
from recsys.kernels.embedding_bag.reference import UNPOOLED


class Batch(NamedTuple):
    """Arguments of a lookup: ids [M], offsets [F * B + 1], sample weights [M] or None, pooling."""

    ids: Tensor
    offsets: Tensor
    sample_weights: Tensor | None
    pooling: int


def by_triton(tables: Tensor) -> bool:
    """Whether lookups in these tables run the kernels."""
    return tables.is_cuda or interpreting()


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


def lookup(
    layout: TableLayout,
    tables: Tensor,
    scale_offset: Tensor | None,
    feature_data: Tensor,
    batch: Batch,
) -> Tensor:
    """Look up and pool; ``scale_offset`` comes with int8 tables."""
    if not by_triton(tables):
        if scale_offset is not None:
            return reference.quantized_forward(layout, tables, scale_offset, *batch)
        return reference.forward(layout, tables, *batch).float()
    from recsys.kernels.embedding_bag import triton_kernel

    out = empty_output(layout, batch, tables)
    return triton_kernel.forward(layout, tables, scale_offset, feature_data, *batch, out)


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
