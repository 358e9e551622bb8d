"""What an embedding bag's arguments must be."""

from __future__ import annotations

import torch
from torch import Tensor

from recsys.kernels.embedding_bag.layout import TableLayout
from recsys.kernels.embedding_bag.reference import MEAN, SUM, UNPOOLED, row_keys

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
