"""Triton kernel of softmaxes over long rows: a program a row, which it reads twice.

Axes: P positions, C candidates.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_BLOCK = 8_192
"""Columns that a program holds at a time."""


@triton.jit
def _scores(at, log_inclusion_at, label, columns, num_columns, corrected: tl.constexpr):
    inside = columns < num_columns
    scores = tl.load(at + columns, mask=inside, other=-float("inf")).to(tl.float32)
    if corrected:
        logs = tl.load(log_inclusion_at + columns, mask=inside, other=0.0).to(tl.float32)
        scores -= tl.where(columns == label, 0.0, logs)
    return scores


@triton.jit
def _softmax_rows(
    scores_at, log_inclusion_at, labels_at, sums_at, highest_at,
    num_columns, stride, corrected: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Overwrite a row by exp(score - highest), 0 behind its columns; write their sum."""
    row = tl.program_id(0).to(tl.int64)
    at = scores_at + row * stride
    label = tl.load(labels_at + row)
    # The label is finite, so a sum of nothing is only ever followed by something.
    highest = tl.full((), -1e30, tl.float32)
    total = tl.full((), 0.0, tl.float32)
    for begin in range(0, num_columns, block):
        columns = begin + tl.arange(0, block)
        scores = _scores(at, log_inclusion_at, label, columns, num_columns, corrected)
        higher = tl.maximum(highest, tl.max(scores, 0))
        total = total * tl.exp(highest - higher) + tl.sum(tl.exp(scores - higher), 0)
        highest = higher
    tl.store(sums_at + row, total)
    tl.store(highest_at + row, highest)
    for begin in range(0, stride, block):
        columns = begin + tl.arange(0, block)
        scores = _scores(at, log_inclusion_at, label, columns, num_columns, corrected)
        weights = tl.exp(scores - highest)
        tl.store(at + columns, weights.to(scores_at.dtype.element_ty), mask=columns < stride)


def softmax_rows(
    scores: Tensor, log_inclusion: Tensor | None, labels: Tensor, num_columns: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Launch the kernel; arguments and results as of ``op.softmax_rows``."""
    num_rows, stride = scores.shape
    sums = torch.empty(num_rows, 1, device=scores.device, dtype=torch.float32)
    highest = torch.empty_like(sums)
    block = min(MAX_BLOCK, max(128, triton.next_power_of_2(stride)))
    if num_rows:
        _softmax_rows[(num_rows,)](
            scores, log_inclusion if log_inclusion is not None else scores, labels, sums, highest,
            num_columns, stride, corrected=log_inclusion is not None, block=block,
            num_warps=8 if block > 1_024 else 4,
        )  # fmt: skip
    return scores, sums, highest
