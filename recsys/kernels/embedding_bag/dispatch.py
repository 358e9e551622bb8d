"""Lookups and updates by the Triton kernels.

Axes: F features, B batch, M ids, D width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from recsys.kernels.embedding_bag import grouping, updating
from recsys.kernels.embedding_bag.layout import TableLayout
from recsys.kernels.embedding_bag.optimizer import Tables, is_adam


class Batch(NamedTuple):
    """Arguments of a lookup: ids [M], offsets [F * B + 1], sample weights [M] or None."""

    ids: Tensor
    offsets: Tensor
    sample_weights: Tensor | None


def empty_output(layout: TableLayout, batch: Batch, like: Tensor) -> Tensor:
    """Make the unwritten result of a lookup, [B, sum of D_f]."""
    size = (batch.offsets.shape[0] - 1) // len(layout.feature_tables)
    return like.new_empty(size, layout.columns[-1], dtype=torch.float32)


def lookup_bytes(layout: TableLayout, weights: Tensor, batch: Batch) -> int:
    """Estimate the bytes of rows read and results written, as if every feature had as many ids."""
    num_features, columns = len(layout.feature_tables), layout.columns[-1]
    num_ids, num_bags = batch.ids.shape[0], batch.offsets.shape[0] - 1
    return columns * (num_ids * weights.element_size() + 4 * num_bags) // num_features


def lookup(layout: TableLayout, weights: Tensor, feature_data: Tensor, batch: Batch) -> Tensor:
    """Look up and pool."""
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
    if is_adam(tables.config):
        skip, state = scalars[1], tables.state
        state.step.add_(1 if skip is None else (skip == 0).to(state.step.dtype))
    if not len(batch.ids):
        return
    if runs is None:
        runs = grouping.group(tables.layout, tables.feature_data, batch)
    updating.update(tables, runs, grad, scalars)
