"""Triton kernels of a softmax over drawn items whose scores are never in memory.

A program scores a block of queries against all candidates (or the reverse in the backward) tile by
tile, as attention kernels do; only sums leave it.

Axes: P queries, C candidates, D width.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from recsys.kernels.choice import Config


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
