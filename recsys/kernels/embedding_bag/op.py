"""Embedding bags over many tables, with the optimizer inside the backward.

The only file that checks arguments and chooses between the Triton kernels and plain PyTorch. The
operations are registered with `torch.library`, so a compiled model keeps one graph.

Axes: T tables, F features, B batch, M ids, D width, R rows of all tables.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from recsys.kernels.embedding_bag import grouping, reference
from recsys.kernels.embedding_bag.layout import TableLayout, table_layout
from recsys.kernels.embedding_bag.optimizer import (
    Optimizer,
    OptimizerConfig,
    OptimizerState,
    counts_steps,
    new_state,
)
from recsys.kernels.embedding_bag.reference import MEAN, SUM, UNPOOLED

POOLINGS = {"sum": SUM, "mean": MEAN, "none": UNPOOLED}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def _interpreting() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


def _layout(sizes: Sequence[Sequence[int]]) -> TableLayout:
    return table_layout(tuple(sizes[0]), tuple(sizes[1]), tuple(sizes[2]))


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


def _output(
    ids: Tensor, offsets: Tensor, sizes: Sequence[Sequence[int]], pooling: int, like: Tensor
) -> Tensor:
    """Make the unwritten result of a lookup."""
    _num_rows, dims, feature_tables = sizes
    if pooling == UNPOOLED:
        return like.new_empty(ids.shape[0], dims[0], dtype=torch.float32)
    batch = (offsets.shape[0] - 1) // len(feature_tables)
    columns = sum(dims[table] for table in feature_tables)
    return like.new_empty(batch, columns, dtype=torch.float32)


@torch.library.custom_op("recsys::embedding_bag", mutates_args=())
def _embedding_bag(
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
    layout = _layout((num_rows, dims, feature_tables))
    if not weights.is_cuda and not _interpreting():
        out = reference.forward(layout, weights, ids, offsets, sample_weights, pooling)
        return out.float()
    from recsys.kernels.embedding_bag import triton_kernel

    out = _output(ids, offsets, (num_rows, dims, feature_tables), pooling, weights)
    return triton_kernel.forward(
        layout, weights, None, feature_data, ids, offsets, sample_weights, pooling, out
    )


@_embedding_bag.register_fake
def _(  # type: ignore[no-untyped-def]
    weights, feature_data, ids, offsets, sample_weights, anchor, state, grad_scale, skip,
    num_rows, dims, feature_tables, pooling, rule, constants, seed, stochastic,
) -> Tensor:  # fmt: skip
    return _output(ids, offsets, (num_rows, dims, feature_tables), pooling, weights)


@torch.library.custom_op("recsys::quantized_embedding_bag", mutates_args=())
def _quantized_embedding_bag(
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
    layout = _layout((num_rows, dims, feature_tables))
    if not codes.is_cuda and not _interpreting():
        return reference.quantized_forward(
            layout, codes, scale_offset, ids, offsets, sample_weights, pooling
        )
    from recsys.kernels.embedding_bag import triton_kernel

    out = _output(ids, offsets, (num_rows, dims, feature_tables), pooling, codes)
    return triton_kernel.forward(
        layout, codes, scale_offset, feature_data, ids, offsets, sample_weights, pooling, out
    )


@_quantized_embedding_bag.register_fake
def _(  # type: ignore[no-untyped-def]
    codes, scale_offset, feature_data, ids, offsets, sample_weights, num_rows, dims,
    feature_tables, pooling,
) -> Tensor:  # fmt: skip
    return _output(ids, offsets, (num_rows, dims, feature_tables), pooling, codes)


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
    layout = _layout((num_rows, dims, feature_tables))
    config = _config(rule, constants, seed, stochastic)
    state = OptimizerState(first, second, step, learning_rate)
    batch = (ids, offsets, sample_weights, pooling)
    if counts_steps(config):
        step += 1 if skip is None else (skip == 0).to(step.dtype)
    if weights.is_cuda or _interpreting():
        scalars = (grad_scale, skip)
        grouping.update(layout, config, weights, state, feature_data, batch, grad, scalars)
    else:
        reference.update(layout, config, weights, state, batch, grad, grad_scale, skip)


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
    layout = _layout((num_rows, dims, feature_tables))
    if not weights.is_cuda and not _interpreting():
        found = reference.sample_weight_gradient(layout, weights, ids, offsets, grad, pooling)
        return found.float()
    from recsys.kernels.embedding_bag import triton_kernel

    keys, places = grouping.key_ids(layout, feature_data, ids, offsets, pooling)
    out = torch.zeros(len(ids), dtype=torch.float32, device=ids.device)
    return triton_kernel.sample_weight_gradient(
        layout, weights, feature_data, keys, places, offsets, grad, pooling, out
    )


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


_embedding_bag.register_autograd(_backward, setup_context=_save_for_backward)


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
        config = self.config
        return _embedding_bag(  # type: ignore[no-any-return]
            self.weights, self.feature_data, ids, offsets, sample_weights, self.anchor,
            [self.first, self.second, self.step, self.learning_rate], grad_scale, skip,
            self.layout.num_rows, self.layout.dims, self.layout.feature_tables, POOLINGS[pooling],
            int(config.rule),
            (config.epsilon, config.beta1, config.beta2, config.max_row_norm or 0.0), config.seed,
            config.stochastic_rounding,
        )  # fmt: skip


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
        scale_offset = torch.zeros(layout.total_rows, 2, device=device)
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
        return _quantized_embedding_bag(  # type: ignore[no-any-return]
            self.codes, self.scale_offset, self.feature_data, ids, offsets, sample_weights,
            self.layout.num_rows, self.layout.dims, self.layout.feature_tables, POOLINGS[pooling],
        )  # fmt: skip


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
    if offsets.shape[0] < 1 or (offsets.shape[0] - 1) % num_features:
        raise ValueError(
            f"offsets must have F * B + 1 entries with F = {num_features}, got {len(offsets)}"
        )
    if ids.shape[0] >= 2**31 - grouping.BLOCK:
        raise ValueError(f"{len(ids)} ids in one batch; at most 2^31 are possible, split the batch")
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
    keys, bags = reference.row_keys(layout, ids.cpu(), starts)
    wrong = (keys == layout.total_rows).nonzero().flatten()
    if len(wrong):
        place = int(wrong[0])
        feature = int(bags[place]) // ((len(starts) - 1) // len(layout.feature_tables))
        table = layout.feature_tables[feature]
        raise ValueError(
            f"id {int(ids[place])} at place {place} (feature {feature}) is not in table {table}; "
            f"its rows are 0 to {layout.num_rows[table] - 1}. Map unknown ids to a row first"
        )
