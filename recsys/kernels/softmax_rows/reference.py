"""The kernel of ``softmax_rows`` in plain torch.

Axes: P positions, C candidates.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


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
