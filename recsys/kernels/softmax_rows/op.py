"""Softmaxes over long rows of scores: our kernel on CUDA, else torch.

In torch, scores that a product of halves gave are copied to float32, corrected, subtracted from,
exponentiated and copied back, each a pass over memory; the kernel reads them twice and writes once.

Axes: P positions, C candidates.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from recsys.kernels.choice import runs


class SoftmaxRows(NamedTuple):
    """Softmaxes of rows of scores, before the division by their sums."""

    weights: Tensor
    """[P, C] exp(score - highest), in the scores' type."""
    sums: Tensor
    """[P, 1] of them, float32."""
    highest: Tensor
    """[P, 1] largest score, float32."""


def softmax_rows_reference(
    scores: Tensor, log_inclusion: Tensor | None, labels: Tensor
) -> SoftmaxRows:
    """Take the log of the inclusion off every score but the label's, and exponentiate.

    Args:
        scores: [P, C]; overwritten where they are float32.
        log_inclusion: [C] float32; None is zeros.
        labels: Column of each row that keeps its score, [P].
    """
    exact = scores.float()
    if log_inclusion is not None:
        exact -= log_inclusion
        exact.scatter_add_(1, labels[:, None], log_inclusion[labels][:, None].to(exact.dtype))
    highest = exact.amax(1, keepdim=True)
    exact = exact.sub_(highest).exp_()
    sums = exact.sum(1, keepdim=True)
    return SoftmaxRows(exact.to(scores.dtype), sums, highest)


NAME = "softmax_rows"
MULTIPLE = 8
"""Rows of this many halves begin at whole 16 bytes, which fast matrix products need."""


def room_for_columns(vectors: Tensor, num_columns: int) -> int:
    """Return how many columns the scores of some vectors should have, so that products are fast."""
    return -(-num_columns // MULTIPLE) * MULTIPLE if runs(NAME, vectors) else num_columns


def softmax_rows(
    scores: Tensor, log_inclusion: Tensor | None, labels: Tensor, num_columns: int
) -> SoftmaxRows:
    """Take the log of the inclusion off every score but the label's, and exponentiate.

    Args:
        scores: [P, C or more], contiguous; overwritten. Columns after C count for
            nothing.
        log_inclusion: [C] float32; None is zeros.
        labels: Column of each row that keeps its score, which is finite, [P].
    """
    if not (scores.ndim == 2 and scores.is_contiguous() and 0 < num_columns <= scores.shape[1]):
        raise ValueError(
            f"scores must be [P, C or more] and contiguous with C = {num_columns} >= 1, got "
            f"{tuple(scores.shape)} with strides {scores.stride()}"
        )
    if labels.shape != scores.shape[:1]:
        raise ValueError(f"labels must be [{len(scores)}], got {tuple(labels.shape)}")
    if log_inclusion is not None and log_inclusion.shape != (num_columns,):
        raise ValueError(f"log_inclusion must be [{num_columns}], got {tuple(log_inclusion.shape)}")
    if runs(NAME, scores):
        from recsys.kernels.softmax_rows.triton_kernel import softmax_rows as fused

        return SoftmaxRows(*fused(scores, log_inclusion, labels, num_columns))
    if num_columns == scores.shape[1]:
        return softmax_rows_reference(scores, log_inclusion, labels)
    found = softmax_rows_reference(scores[:, :num_columns].contiguous(), log_inclusion, labels)
    scores.zero_()[:, :num_columns] = found.weights
    return found._replace(weights=scores)
