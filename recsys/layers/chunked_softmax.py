"""Softmax over very many items without a tensor of every score.

Training all positions of all sequences against a whole catalogue makes B T N scores: 102 GB for
512 x 50 positions and a million items. Here a block of positions is scored at a time, and its part
of both gradients is taken while the scores are there; so nothing is kept for the backward but the
gradients themselves, and nothing is computed twice.

Axes: P positions, C candidates, D width, X pairs of a position and an item to leave out.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional

from recsys.data.batch import Jagged
from recsys.data.windows import SampledItems
from recsys.kernels.choice import runs
from recsys.kernels.softmax_rows.op import LogNormalizers, room_for_columns, softmax_rows
from recsys.layers.embedding.tables import looked_up

MAX_SCORES = 1 << 26
"""Scores that are in memory at a time, 256 MiB in float32."""
CACHED_SCORES, MIN_POSITIONS = 1 << 20, 96
"""Scores of a block on a CPU, 4 MiB, so that they are still in its cache when they are read again;
but no fewer positions, since each block also goes over the gradients of all candidates."""


class SoftmaxCandidates(NamedTuple):
    """Items that labels are ranked against: distinct, each label among them."""

    vectors: Tensor
    """[C, D]"""
    log_inclusion: Tensor | None = None
    """[C] log of the probability that the item is among the candidates; None where all items
    are. Taking it off the score makes the sum over the candidates an unbiased estimate of the sum
    over all items (Horvitz and Thompson, 1952), as the logQ correction does for repeated draws."""


def softmax_loss(
    queries: Tensor,
    candidates: SoftmaxCandidates,
    labels: Tensor,
    weights: Tensor,
    *,
    label_smoothing: float = 0.0,
    excluded: Jagged | None = None,
    max_scores: int = MAX_SCORES,
) -> Tensor:
    """Cross-entropy of each label against all candidates, the weighted mean over the positions.

    The label enters with its plain score, since it is always there.

    Args:
        queries: [P, D]; a score is the dot product, so scale one side by 1 / temperature.
        labels: Column of each position's label among the candidates, [P].
        weights: How much each position counts, [P] >= 0; with 0 it is left out.
    """
    total = weights.sum().clamp(min=1e-12)
    share = (weights / total).float()  # [P]
    pairs = (None, None) if excluded is None else (excluded.values, excluded.offsets)
    apply: Any = _LogNormalizer.apply
    vectors, log_inclusion = candidates
    normalizer = apply(queries, vectors, log_inclusion, labels, share, *pairs, max_scores)
    own = looked_up(vectors, labels)  # [P, D]
    label_scores = (queries.float() * own.float()).sum(1)  # [P]
    loss = normalizer - (1 - label_smoothing) * (share * label_scores).sum()
    if label_smoothing > 0:
        # The mean of all scores is the score of the mean vector.
        even = vectors.new_zeros(len(vectors)) if log_inclusion is None else -log_inclusion
        mean = torch.softmax(even.float(), dim=0) @ vectors.float()  # [D]
        loss = loss - label_smoothing * (share * (queries.float() @ mean)).sum()
    return cast("Tensor", loss)


def sampled_softmax_loss(
    queries: Tensor,
    vectors: Tensor,
    candidates: SampledItems,
    labels: Tensor,
    label_scores: Tensor,
    label_smoothing: float = 0.0,
    temperature: float = 1.0,
) -> Tensor:
    """Cross-entropy of each label against the candidates, the mean over the batch.

    Candidates that equal the label (accidental hits, its own in-batch column included) are left
    out: the label enters the softmax exactly once, with its plain score. On a GPU no score is kept.

    Args:
        queries: [P, D]; a score is the dot product, over the temperature.
        vectors: Of the candidates, [C, D].
        labels: Item rows, [P].
        label_scores: Score of each query's label, [P].
    """
    uniform = candidates.num_uniform
    if runs("softmax_rows", queries):
        queries, apply = queries / temperature, cast("Any", LogNormalizers.apply)
        drawn = candidates.log_expected, candidates.rows
        normalizers: Tensor = apply(queries, vectors, *drawn, labels, label_scores)
        even = queries.float() @ vectors[-uniform:].float().mean(0) if label_smoothing else 0.0
    else:
        scores = queries @ vectors.T / temperature  # [P, C]
        even = scores[:, -uniform:].mean(dim=1) if label_smoothing else 0.0
        corrected = scores - candidates.log_expected
        # In place, because a copy of [P, C] costs as much as the softmax.
        corrected.masked_fill_(labels[:, None] == candidates.rows, -torch.inf)
        normalizers = torch.logsumexp(torch.cat([label_scores[:, None], corrected], dim=1), dim=1)
    target = (1 - label_smoothing) * label_scores + label_smoothing * even
    return (normalizers - target).mean()


def positions_of_block(num_candidates: int, max_scores: int, device: str) -> int:
    """Return how many positions are scored at a time."""
    most = max(1, max_scores // max(1, num_candidates))
    if device != "cpu":
        return most
    return min(most, max(MIN_POSITIONS, CACHED_SCORES // max(1, num_candidates)))


class _LogNormalizer(torch.autograd.Function):
    """The sum of share x log(sum of exp(scores)) over all positions, a block at a time."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        queries, vectors, log_inclusion, labels, share, columns, offsets, max_scores = arguments
        device = queries.device.type
        dtype = torch.float32
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
        wanted = any(ctx.needs_input_grad)
        with torch.autocast(device, enabled=False):
            num_candidates = len(vectors)
            columns_made = room_for_columns(vectors, num_candidates)
            low_queries, low_vectors = queries.to(dtype), vectors.to(dtype)
            if columns_made > num_candidates:
                low_vectors = functional.pad(low_vectors, (0, 0, 0, columns_made - num_candidates))
            total: Tensor = share.new_zeros(())
            d_queries = torch.empty_like(queries, dtype=torch.float32) if wanted else None
            d_vectors = torch.zeros_like(low_vectors, dtype=torch.float32) if wanted else None
            step = positions_of_block(num_candidates, max_scores, device)
            excluded = _Excluded.of(columns, offsets, len(queries))
            for begin in range(0, len(queries), step):
                part = slice(begin, min(begin + step, len(queries)))
                scores = low_queries[part] @ low_vectors.T  # [p, C or more]
                if excluded is not None:
                    excluded.leave_out(scores, labels[part], begin)
                weights, sums, highest = softmax_rows(
                    scores, log_inclusion, labels[part], num_candidates
                )
                total += (share[part] * (sums.log() + highest)[:, 0]).sum()
                if d_queries is None or d_vectors is None:
                    continue
                # The softmax is never made: its factor goes to the side with fewer columns.
                factor = share[part, None] / sums
                d_queries[part] = (weights @ low_vectors) * factor
                weighted = (queries[part] * factor).to(dtype)
                if dtype == torch.float32:
                    d_vectors.addmm_(weights.T, weighted)
                else:
                    d_vectors += weights.T @ weighted
        if d_queries is not None and d_vectors is not None:
            ctx.save_for_backward(d_queries, d_vectors[:num_candidates])
            ctx.dtypes = queries.dtype, vectors.dtype
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        d_queries, d_vectors = ctx.saved_tensors
        to_queries, to_vectors = ctx.dtypes
        (scale,) = gradients
        both = (d_queries * scale).to(to_queries), (d_vectors * scale).to(to_vectors)
        return *both, None, None, None, None, None, None


class _Excluded(NamedTuple):
    """Items that are not ranked against each position's label."""

    columns: Tensor
    """[X]"""
    offsets: Tensor
    """[P + 1]"""
    positions: Tensor
    """[X], ascending."""

    @classmethod
    def of(
        cls, columns: Tensor | None, offsets: Tensor | None, num_positions: int
    ) -> _Excluded | None:
        """Return the position of each column; None where nothing is left out."""
        if columns is None or offsets is None:
            return None
        # Without the size a GPU would be waited for.
        positions = torch.repeat_interleave(offsets.diff(), output_size=len(columns))
        return cls(columns, offsets[: num_positions + 1], positions)

    def cut_out(self, labels: Tensor, begin: int) -> tuple[Tensor, Tensor]:
        """Return the columns and places of a block's positions, those of the labels [p]."""
        first, end = self.offsets[begin], self.offsets[begin + len(labels)]
        return self.columns[first:end], self.positions[first:end] - begin

    def turned_to(self, labels: Tensor, begin: int) -> tuple[Tensor, Tensor]:
        """Do the same without waiting for a GPU: numbers of other blocks go to a label."""
        places = self.positions - begin
        here = (places >= 0) & (places < len(labels))
        return torch.where(here, self.columns, labels[0]), torch.where(here, places, 0)

    def leave_out(self, scores: Tensor, labels: Tensor, begin: int) -> None:
        """Return the columns of positions ``begin`` and on -inf but the labels', in place."""
        own = scores.gather(1, labels[:, None])
        columns, positions = self.columns, self.positions
        if len(scores) + 1 < len(self.offsets):
            of_block = self.turned_to if scores.is_cuda else self.cut_out
            columns, positions = of_block(labels, begin)
        # Not by a number of the host, which would be copied: no graph could be captured.
        scores.index_put_((positions, columns), scores.new_full((), -torch.inf))
        scores.scatter_(1, labels[:, None], own)
