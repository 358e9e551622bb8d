"""Softmaxes over long rows of scores: our kernels on CUDA, else torch.

In torch, scores that a product of halves gave are copied to float32, corrected, subtracted from,
exponentiated and copied back, each a pass over memory; the kernel reads them twice and writes once.
The softmax of labels against drawn items keeps no scores: 65,536 queries against as many take 17 GB
in float32, ten passes over which were most of a step.

Axes: P positions or queries, C candidates, D width.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from recsys.kernels.choice import Config, runs

NAME = "softmax_rows"
MULTIPLE = 8
"""Rows of this many halves begin at whole 16 bytes, which fast matrix products need."""
FORWARD: Config = {"block_p": 64, "block_c": 128, "num_warps": 4, "num_stages": 3}
BACKWARD: Config = {"block_p": 128, "block_c": 64, "num_warps": 4, "num_stages": 3}
"""Tiles of bfloat16; on an H100 65,536 queries of width 64 take 3.9 and 3.7 ms."""
WIDE: Config = {"block_p": 64, "block_c": 32, "num_warps": 4, "num_stages": 2}
"""Tiles of vectors of over 128 numbers, or of float32."""


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


class LogNormalizers(torch.autograd.Function):
    """The log of each query's sum of exponentials, [P].

    The sum has the label's score, and the scores of the candidates less ``log_expected`` but for
    those that are the label. A score is a dot product, in the type of the autocast.
    """

    @staticmethod
    def forward(ctx: Any, *arguments: Tensor) -> Tensor:
        """Take queries [P, D], vectors, log_expected and items of candidates [C], labels, scores.

        Args:
            arguments: Labels are items too, [P], and scores the labels', [P].
        """
        from recsys.kernels.softmax_rows.triton_kernel import normalizers

        queries, vectors, logs, items, labels, scores = arguments
        device, ctx.dtypes = queries.device.type, (queries.dtype, vectors.dtype)
        dtype = torch.float32
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
        low = queries.to(dtype).contiguous(), vectors.to(dtype).contiguous()
        rest = logs.float(), items.int(), labels.int()
        ctx.is_wide = queries.shape[1] > 128 or dtype == torch.float32
        found, means = normalizers(*low, *rest, scores.float(), WIDE if ctx.is_wide else FORWARD)
        ctx.save_for_backward(*low, *rest, scores, found, means)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        from recsys.kernels.softmax_rows.triton_kernel import candidate_gradients

        queries, vectors, logs, items, labels, scores, found, means = ctx.saved_tensors
        factors, config = gradients[0].contiguous(), WIDE if ctx.is_wide else BACKWARD
        of_vectors = candidate_gradients(
            queries, vectors, logs, items, labels, found, factors, config
        )
        of_queries = (means * factors[:, None]).to(ctx.dtypes[0])
        of_scores = (factors * torch.exp(scores - found)).to(scores.dtype)
        return of_queries, of_vectors.to(ctx.dtypes[1]), None, None, None, of_scores
