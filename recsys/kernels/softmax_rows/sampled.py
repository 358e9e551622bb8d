"""Softmax of each query's label against drawn items, by kernels that keep no score.

In torch the scores of 65,536 queries against as many candidates take 17 GB in float32, ten passes
over which were most of a step.

Axes: P queries, C candidates, D width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from recsys.kernels.choice import Config

FORWARD: Config = {"block_p": 64, "block_c": 128, "num_warps": 4, "num_stages": 3}
BACKWARD: Config = {"block_p": 128, "block_c": 64, "num_warps": 4, "num_stages": 3}
"""Tiles of bfloat16; on an H100 65,536 queries of width 64 take 3.9 and 3.7 ms."""
WIDE: Config = {"block_p": 64, "block_c": 32, "num_warps": 4, "num_stages": 2}
"""Tiles of vectors of over 128 numbers, or of float32."""


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
        from recsys.kernels.softmax_rows.triton_sampled import normalizers

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
        from recsys.kernels.softmax_rows.triton_sampled import candidate_gradients

        queries, vectors, logs, items, labels, scores, found, means = ctx.saved_tensors
        factors, config = gradients[0].contiguous(), WIDE if ctx.is_wide else BACKWARD
        of_vectors = candidate_gradients(
            queries, vectors, logs, items, labels, found, factors, config
        )
        of_queries = (means * factors[:, None]).to(ctx.dtypes[0])
        of_scores = (factors * torch.exp(scores - found)).to(scores.dtype)
        return of_queries, of_vectors.to(ctx.dtypes[1]), None, None, None, of_scores
