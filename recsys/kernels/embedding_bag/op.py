"""Embedding bags over many tables, with the optimizer inside the backward.

`dispatch` chooses between the Triton kernels and plain PyTorch.

Axes: T tables, F features, B batch, M ids, D width, R rows of all tables.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from recsys.kernels.embedding_bag import dispatch, grouping
from recsys.kernels.embedding_bag.dispatch import Batch
from recsys.kernels.embedding_bag.layout import TableLayout
from recsys.kernels.embedding_bag.optimizer import (
    OptimizerConfig,
    OptimizerState,
    Tables,
    new_state,
)
from recsys.kernels.embedding_bag.reference import MEAN, SUM, UNPOOLED, row_keys

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
POOLINGS = {"sum": SUM, "mean": MEAN, "none": UNPOOLED}
MAX_IDS = 2**31 - 2**14
"""So that places in a batch, and a little beyond it, fit 32 bits."""


def check_batch(
    layout: TableLayout,
    ids: Tensor,
    offsets: Tensor,
    sample_weights: Tensor | None,
    pooling: str,
) -> None:
    """Refuse shapes and types that do not fit, without looking at a value."""
    num_features = len(layout.feature_tables)
    for name, tensor in (("ids", ids), ("offsets", offsets)):
        if tensor.ndim != 1 or tensor.dtype not in (torch.int32, torch.int64):
            raise ValueError(
                f"{name} must be [n] int32 or int64, got {tuple(tensor.shape)} {tensor.dtype}"
            )
        if not tensor.is_contiguous():
            raise ValueError(f"{name} has stride {tensor.stride()}; call contiguous()")
        if tensor.shape[0] > MAX_IDS:
            raise ValueError(
                f"{name} has {len(tensor)} entries; at most {MAX_IDS} are possible, split the batch"
            )
    if offsets.shape[0] < 1 or (offsets.shape[0] - 1) % num_features:
        raise ValueError(
            f"offsets must have F * B + 1 entries with F = {num_features}, got {len(offsets)}"
        )
    if pooling not in POOLINGS:
        raise ValueError(f"pooling must be one of {sorted(POOLINGS)}, got {pooling!r}")
    if pooling == "none" and not layout.uniform:
        raise ValueError(f"unpooled lookups need tables of one width, got {sorted(layout.dims)}")
    if sample_weights is not None:
        fits = sample_weights.shape == ids.shape and sample_weights.is_contiguous()
        if not fits or sample_weights.dtype != torch.float32:
            raise ValueError(
                f"sample_weights must be contiguous float32 {tuple(ids.shape)} like the ids, got "
                f"{sample_weights.dtype} {tuple(sample_weights.shape)}"
            )


def check_values(layout: TableLayout, ids: Tensor, offsets: Tensor) -> None:
    """Refuse ids out of range and offsets that fall or miss ids; waits for the device."""
    starts = offsets.cpu()
    if int(starts[0]) != 0 or int(starts[-1]) != len(ids) or bool((starts.diff() < 0).any()):
        raise ValueError(
            f"offsets must rise from 0 to the number of ids, {len(ids)}; they run from "
            f"{int(starts[0])} to {int(starts[-1])}"
        )
    keys, bags = row_keys(layout, ids.cpu(), starts)
    wrong = (keys == layout.total_rows).nonzero().flatten()
    if len(wrong):
        place = int(wrong[0])
        feature = int(bags[place]) // ((len(starts) - 1) // len(layout.feature_tables))
        table = layout.feature_tables[feature]
        raise ValueError(
            f"id {int(ids[place])} at place {place} (feature {feature}) is not in table {table}; "
            f"its rows are 0 to {layout.num_rows[table] - 1}. Map unknown ids to a row first"
        )


class _Lookup(torch.autograd.Function):
    """A lookup whose backward moves the rows; ``anchor`` only makes autograd call it."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        sample_weights: Tensor | None,
        bags: EmbeddingBags,
        batch: Batch,
        scalars: tuple[Tensor | None, Tensor | None],
    ) -> Tensor:
        layout, data = bags.layout, bags.feature_data
        # Not saved as autograd saves: an update between forward and backward is no mistake here.
        ctx.batch, ctx.scalars, ctx.runs = batch, scalars, None
        ctx.tables = tables = bags.tables()

        def lookup() -> Tensor:
            return dispatch.lookup(layout, tables.weights, data, batch)

        if not dispatch.by_triton(tables.weights) or not batch.ids.shape[0]:
            return lookup()
        num_bytes = dispatch.lookup_bytes(layout, tables.weights, batch)
        out, ctx.runs = grouping.group_during_lookup(layout, data, batch, lookup, num_bytes)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        tables, batch, grad = ctx.tables, ctx.batch, grads[0].contiguous()
        sample_grad = None
        if ctx.needs_input_grad[1]:
            # Before the update, which changes the rows that this reads.
            sample_grad = dispatch.sample_weight_gradient(
                tables.layout, tables.weights, tables.feature_data, batch, grad
            )
        dispatch.update(tables, batch, grad, ctx.scalars, ctx.runs)
        return None, sample_grad, None, None, None


class EmbeddingBags(nn.Module):
    """Many embedding tables whose rows are updated by the backward itself.

    Autograd sees no gradient of the tables: `backward` moves the rows that occurred.  Results are
    float32 whatever the tables' type, and bitwise the same in every run.

    Args:
        layout: Tables and features.
        config: Optimizer inside the backward.
        dtype: Type of the tables: fp32, bf16 or fp16.
    """

    weights: Tensor
    first: Tensor
    second: Tensor
    step: Tensor
    learning_rate: Tensor
    feature_data: Tensor
    anchor: Tensor

    def __init__(
        self,
        layout: TableLayout,
        config: OptimizerConfig,
        *,
        learning_rate: float = 0.01,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        if dtype not in DTYPES:
            raise ValueError(f"tables must be one of {[str(one) for one in DTYPES]}, got {dtype}")
        self.layout = layout
        self.config = config
        self.settings = dispatch.settings_text(layout, config)
        state = new_state(layout, config, learning_rate, device)
        weights = torch.zeros(layout.num_elements, dtype=dtype, device=device)
        for name, tensor in zip(("weights", *state._fields), (weights, *state), strict=True):
            self.register_buffer(name, tensor)
        self.register_buffer("feature_data", layout.feature_data(device), persistent=False)
        # What autograd differentiates, so that it calls the backward; it never gets a gradient.
        anchor = torch.zeros(1, device=device, requires_grad=True)
        self.register_buffer("anchor", anchor, persistent=False)

    def table(self, table: int) -> Tensor:
        """View one table, [rows, D]."""
        return self.layout.table(self.weights, table)

    def tables(self) -> Tables:
        """Return what the update reads and writes."""
        # Not by attribute, which takes a module 0.7 us for each.
        own = self._buffers
        state = OptimizerState(*(cast("Tensor", own[name]) for name in OptimizerState._fields))
        weights, data = cast("Tensor", own["weights"]), cast("Tensor", own["feature_data"])
        return Tables(self.layout, self.config, weights, state, data)

    def forward(
        self,
        ids: Tensor,
        offsets: Tensor,
        sample_weights: Tensor | None = None,
        *,
        pooling: str = "sum",
        grad_scale: Tensor | None = None,
        skip: Tensor | None = None,
        check_ids: bool = False,
    ) -> Tensor:
        """Look up every feature's bags: [B, sum of D_f], or with pooling "none" [M, D].

        Args:
            ids: [M] int32 or int64, feature by feature. An id out of range gives zeros and moves
                nothing.
            offsets: [F * B + 1], where each bag begins; the last is M.
            sample_weights: [M] float32, multiplies each id's row.
            grad_scale: [1] float32 on the device, multiplies the gradient in the update.
            skip: [1] on the device, not zero where the update must change nothing. It is read
                when the backward runs.
            check_ids: Refuse ids out of range and offsets that do not fit; waits for the device.

        Raises:
            ValueError: Shapes, types or, on request, ids that do not fit.
        """
        check_batch(self.layout, ids, offsets, sample_weights, pooling)
        if check_ids:
            check_values(self.layout, ids, offsets)
        if torch.compiler.is_compiling():
            return dispatch.embedding_bag(  # type: ignore[no-any-return]
                self.weights, self.feature_data, ids, offsets, sample_weights, self.anchor,
                list(self.tables().state), grad_scale, skip, self.settings, POOLINGS[pooling],
            )  # fmt: skip
        batch = Batch(ids, offsets, sample_weights, POOLINGS[pooling])
        if not torch.is_grad_enabled():
            return dispatch.lookup(self.layout, self.weights, self.feature_data, batch)
        scalars = (grad_scale, skip)
        return _Lookup.apply(  # type: ignore[no-any-return,no-untyped-call]
            self.anchor, sample_weights, self, batch, scalars
        )
