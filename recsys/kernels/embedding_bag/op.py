"""Embedding bags over many tables, with the optimizer inside the backward.

`dispatch` chooses between the Triton kernels and plain PyTorch, `registered` holds the operations
that a compiled model sees.

Axes: T tables, F features, B batch, M ids, D width, R rows of all tables.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from recsys.kernels.embedding_bag import dispatch, grouping, reference, registered
from recsys.kernels.embedding_bag.arguments import POOLINGS, check_batch, check_values
from recsys.kernels.embedding_bag.dispatch import Batch
from recsys.kernels.embedding_bag.layout import TableLayout
from recsys.kernels.embedding_bag.optimizer import (
    OptimizerConfig,
    OptimizerState,
    Tables,
    new_state,
)

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


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
            return dispatch.lookup(layout, tables.weights, None, data, batch)

        if not dispatch.by_triton(tables.weights) or not batch.ids.shape[0]:
            return lookup()
        num_bytes = dispatch.lookup_bytes(layout, tables.weights, batch)
        out, ctx.runs = grouping.group_beside(layout, data, batch, lookup, num_bytes)
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
            config = self.config
            constants = (config.epsilon, config.beta1, config.beta2, config.max_row_norm or 0.0)
            return registered.embedding_bag(  # type: ignore[no-any-return]
                self.weights, self.feature_data, ids, offsets, sample_weights, self.anchor,
                list(self.tables().state), grad_scale, skip, self.layout.num_rows, self.layout.dims,
                self.layout.feature_tables, POOLINGS[pooling], int(config.rule),
                constants, config.seed, config.stochastic_rounding,
            )  # fmt: skip
        batch = Batch(ids, offsets, sample_weights, POOLINGS[pooling])
        if not torch.is_grad_enabled():
            return dispatch.lookup(self.layout, self.weights, None, self.feature_data, batch)
        scalars = (grad_scale, skip)
        return _Lookup.apply(  # type: ignore[no-any-return,no-untyped-call]
            self.anchor, sample_weights, self, batch, scalars
        )


class QuantizedEmbeddingBags(nn.Module):
    """The tables of an `EmbeddingBags` in 8 bits an element with scale and offset per row."""

    codes: Tensor
    scale_offset: Tensor
    feature_data: Tensor

    def __init__(self, bags: EmbeddingBags) -> None:
        super().__init__()
        layout = self.layout = bags.layout
        device = bags.weights.device
        codes = torch.zeros(layout.num_elements, dtype=torch.uint8, device=device)
        scale_offset = torch.zeros(layout.total_rows, 2, dtype=torch.bfloat16, device=device)
        for table, key in enumerate(layout.table_keys):
            if not layout.num_rows[table]:
                continue
            rows, scales = reference.quantize_rows(bags.table(table))
            layout.table(codes, table).copy_(rows)
            scale_offset[key : key + len(scales)] = scales
        self.register_buffer("codes", codes)
        self.register_buffer("scale_offset", scale_offset)
        self.register_buffer("feature_data", layout.feature_data(device), persistent=False)

    def forward(
        self,
        ids: Tensor,
        offsets: Tensor,
        sample_weights: Tensor | None = None,
        *,
        pooling: str = "sum",
        check_ids: bool = False,
    ) -> Tensor:
        """Look up as `EmbeddingBags.forward` does."""
        check_batch(self.layout, ids, offsets, sample_weights, pooling)
        if check_ids:
            check_values(self.layout, ids, offsets)
        if torch.compiler.is_compiling():
            return registered.quantized_embedding_bag(  # type: ignore[no-any-return]
                self.codes, self.scale_offset, self.feature_data, ids, offsets, sample_weights,
                self.layout.num_rows, self.layout.dims, self.layout.feature_tables,
                POOLINGS[pooling],
            )  # fmt: skip
        batch = Batch(ids, offsets, sample_weights, POOLINGS[pooling])
        return dispatch.lookup(self.layout, self.codes, self.scale_offset, self.feature_data, batch)
