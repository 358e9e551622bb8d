"""Triton kernels of softmaxes: over long rows, and over drawn items, whose scores are kept nowhere.

Of a row a program reads the scores twice. Over drawn items a program scores a block of queries with
all candidates (the reverse in the backward) tile by tile, as attention kernels do.

Axes: P positions or queries, C candidates, D width.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from recsys.kernels.choice import Config

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


@triton.jit
def _tile(at, places, count, columns, width: tl.constexpr):
    """Read rows of [count, width]; zeros after the last and beyond the width."""
    inside = (places[:, None] < count) & (columns[None, :] < width)
    return tl.load(at + places[:, None].to(tl.int64) * width + columns[None, :], inside, other=0.0)


@triton.jit
def _normalizers(
    queries_at, vectors_at, logs_at, items_at, labels_at, scores_at, normalizers_at, means_at,
    num_queries, num_candidates,
    width: tl.constexpr, room: tl.constexpr, block_p: tl.constexpr, block_c: tl.constexpr,
    precision: tl.constexpr,
):  # fmt: skip
    """Write the log of each query's sum of exponentials and the mean vector by its softmax."""
    places = tl.program_id(0) * block_p + tl.arange(0, block_p)
    columns, inside = tl.arange(0, room), places < num_queries
    query = _tile(queries_at, places, num_queries, columns, width)
    label = tl.load(labels_at + places, inside, other=-1)
    own = tl.load(scores_at + places, inside, other=0.0)
    # The label's score is in the sum from the start, so no sum is empty.
    highest, total = own, tl.full((block_p,), 1.0, tl.float32)
    mean = tl.zeros((block_p, room), tl.float32)
    for begin in range(0, num_candidates, block_c):
        others = begin + tl.arange(0, block_c)
        vectors = _tile(vectors_at, others, num_candidates, columns, width)
        logs = tl.load(logs_at + others, others < num_candidates, other=float("inf"))
        items = tl.load(items_at + others, others < num_candidates, other=-2)
        scores = tl.dot(query, vectors.T, input_precision=precision) - logs[None, :]
        scores = tl.where(items[None, :] == label[:, None], -float("inf"), scores)
        higher = tl.maximum(highest, tl.max(scores, 1))
        weights, kept = tl.exp(scores - higher[:, None]), tl.exp(highest - higher)
        total = total * kept + tl.sum(weights, 1)
        mean = mean * kept[:, None]
        mean = tl.dot(weights.to(vectors.dtype), vectors, mean, input_precision=precision)
        highest = higher
    tl.store(normalizers_at + places, tl.log(total) + highest, inside)
    at = means_at + places[:, None].to(tl.int64) * width + columns[None, :]
    tl.store(at, mean / total[:, None], inside[:, None] & (columns[None, :] < width))


@triton.jit
def _candidate_gradients(
    queries_at, vectors_at, logs_at, items_at, labels_at, normalizers_at, factors_at, gradients_at,
    num_queries, num_candidates,
    width: tl.constexpr, room: tl.constexpr, block_p: tl.constexpr, block_c: tl.constexpr,
    precision: tl.constexpr,
):  # fmt: skip
    """Write the gradient of a block of candidates, the queries by their softmax times a factor."""
    others = tl.program_id(0) * block_c + tl.arange(0, block_c)
    columns, inside = tl.arange(0, room), others < num_candidates
    vectors = _tile(vectors_at, others, num_candidates, columns, width)
    logs = tl.load(logs_at + others, inside, other=float("inf"))
    items = tl.load(items_at + others, inside, other=-2)
    found = tl.zeros((block_c, room), tl.float32)
    for begin in range(0, num_queries, block_p):
        places = begin + tl.arange(0, block_p)
        query = _tile(queries_at, places, num_queries, columns, width)
        label = tl.load(labels_at + places, places < num_queries, other=-1)
        normalizer = tl.load(normalizers_at + places, places < num_queries, other=0.0)
        factor = tl.load(factors_at + places, places < num_queries, other=0.0)
        scores = tl.dot(vectors, query.T, input_precision=precision)
        weights = tl.exp(scores - logs[:, None] - normalizer[None, :]) * factor[None, :]
        weights = tl.where(items[:, None] == label[None, :], 0.0, weights)
        found = tl.dot(weights.to(query.dtype), query, found, input_precision=precision)
    at = gradients_at + others[:, None].to(tl.int64) * width + columns[None, :]
    tl.store(at, found, inside[:, None] & (columns[None, :] < width))


def _settings(queries: Tensor, config: Config) -> dict[str, object]:
    width = queries.shape[1]
    exact = "ieee" if queries.dtype == torch.float32 else "tf32"
    room = max(16, triton.next_power_of_2(width))
    return {"width": width, "room": room, "precision": exact, **config}


def normalizers(
    queries: Tensor, vectors: Tensor, logs: Tensor, items: Tensor, labels: Tensor,
    label_scores: Tensor, config: Config,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Launch the forward: normalizers [P] and mean vectors [P, D], float32."""
    found = torch.empty(len(queries), device=queries.device, dtype=torch.float32)
    means = torch.empty_like(queries, dtype=torch.float32)
    grid = (triton.cdiv(len(queries), config["block_p"]),)
    _normalizers[grid](
        queries, vectors, logs, items, labels, label_scores, found, means,
        len(queries), len(vectors), **_settings(queries, config),
    )  # fmt: skip
    return found, means


def candidate_gradients(
    queries: Tensor, vectors: Tensor, logs: Tensor, items: Tensor, labels: Tensor,
    normalizers: Tensor, factors: Tensor, config: Config,
) -> Tensor:  # fmt: skip
    """Launch the backward: gradients of the candidates' vectors [C, D], float32."""
    found = torch.empty_like(vectors, dtype=torch.float32)
    grid = (triton.cdiv(len(vectors), config["block_c"]),)
    _candidate_gradients[grid](
        queries, vectors, logs, items, labels, normalizers, factors, found,
        len(queries), len(vectors), **_settings(queries, config),
    )  # fmt: skip
    return found
