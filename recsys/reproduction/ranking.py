"""Rank a split's users on the device that holds the model, without moving every score to the host.

Ties go as everywhere: score descending, then item row ascending (data/top_k.py).

Axes: B queries of a batch, U queries of a split, M targets, N item rows, k list length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from recsys.data.batch import Jagged, JaggedBatch
from recsys.data.dataset import Rows, Sequences
from recsys.data.held_out import HeldOut
from recsys.data.top_k import TopK, select_top_k
from recsys.evaluation.ranking import UNRANKED, per_user_metric

Score = Callable[[JaggedBatch], Tensor]
METRICS = ("recall@5", "recall@10", "recall@50", "ndcg@5", "ndcg@10", "ndcg@50", "mrr@10")
MAX_SCORES = 1 << 24
MAX_QUERIES = 512


class Ranked(NamedTuple):
    """What a source lists for each query of a split, and where the targets are."""

    lists: TopK
    """[U, k], on the host."""
    ranks: Tensor
    """[M] int64 rank of each target from 1, `UNRANKED` where it has none."""


class Found(NamedTuple):
    """The same for one batch, on the device."""

    lists: TopK
    ranks: Tensor


class Source(Protocol):
    """Ranks what each query may be shown."""

    def __call__(self, queries: JaggedBatch, allowed: Tensor, targets: Jagged, k: int) -> Found:
        """List the k best of each query and rank its targets.

        Args:
            queries: On the device.
            allowed: What each may be shown, [B, N] bool.
            targets: Item rows of each query.
        """
        ...


class ScoredSource:
    """A model that scores every item."""

    def __init__(self, score: Score) -> None:
        self._score = score

    @torch.no_grad()
    def __call__(self, queries: JaggedBatch, allowed: Tensor, targets: Jagged, k: int) -> Found:
        # Counting models make their tensors on the default device.
        with allowed.device:
            scores = self._score(queries).float()
        # A model from before the catalogue grew has nothing to say of what is new.
        missing = allowed.shape[1] - scores.shape[1]
        scores = functional.pad(scores, (0, missing), value=-torch.inf)
        scores = scores.masked_fill(~allowed, -torch.inf)
        return Found(select_top_k(scores, k), ranks_of(scores, targets))


def ranks_of(scores: Tensor, targets: Jagged) -> Tensor:
    """Rank targets among all columns: 1 + those above + equal ones in a lower row, [M].

    Args:
        scores: [B, N] without NaN; -inf is not eligible.
        targets: Item rows of each of the B queries.
    """
    queries, rows = targets.segments(), targets.values
    known = (rows > 0) & (rows < scores.shape[1])
    columns = torch.where(known, rows, 0)
    own = scores[queries, columns]
    ranks = torch.zeros_like(rows)
    places = torch.arange(len(rows), device=rows.device)
    for part in torch.split(places, max(1, len(scores))):
        others, score = scores[queries[part]], own[part, None]
        lower = torch.arange(scores.shape[1], device=rows.device) < columns[part, None]
        ranks[part] = 1 + ((others > score) | ((others == score) & lower)).sum(1)
    return ranks.masked_fill(~known | (own == -torch.inf), UNRANKED)


class Question(NamedTuple):
    """What a split asks: queries, what they may be shown, what they went on to."""

    sequences: Sequences
    held_out: HeldOut
    user_features: Mapping[str, Rows]
    num_item_rows: int
    max_history: int
    eligible: Tensor | None = None
    """Items that any list may hold, [N] bool; None for all."""
    beside: Jagged | None = None
    """Further items that each query's list may hold, U queries."""
    exclude_history: bool = True

    def history_lengths(self) -> Tensor:
        """Count the events that sources read of each query, [U]."""
        return self.held_out.seen.lengths().clamp(max=self.max_history)

    def batches(self, device: torch.device) -> Iterator[tuple[JaggedBatch, Tensor, Jagged]]:
        """Yield queries, allowed items and targets, on the device."""
        size = max(1, min(MAX_QUERIES, MAX_SCORES // self.num_item_rows))
        for begin in range(0, len(self.held_out.positions), size):
            positions = self.held_out.positions[begin : begin + size]
            rows = torch.arange(begin, begin + len(positions))
            queries = self.sequences.queries(
                positions, max_history=self.max_history, user_features=self.user_features
            )
            beside = None if self.beside is None else self.beside.take(rows).to(device)
            allowed = self._allowed(self.held_out.seen.take(rows).to(device), beside)
            yield queries.to(device), allowed, self.held_out.targets.take(rows).to(device)

    def _allowed(self, seen: Jagged, beside: Jagged | None) -> Tensor:
        device = seen.offsets.device
        allowed = torch.ones(seen.batch_size, self.num_item_rows, dtype=torch.bool, device=device)
        if self.eligible is not None:
            allowed &= self.eligible.to(device)
        if beside is not None:
            allowed[beside.segments(), beside.values] = True
        if self.exclude_history:
            allowed[seen.segments(), seen.values] = False
        allowed[:, 0] = False
        return allowed


def rank_all(source: Source, question: Question, k: int, device: torch.device) -> Ranked:
    """Ask a source for every query of a split."""
    lists, ranks = [], []
    for queries, allowed, targets in question.batches(device):
        found = source(queries, allowed, targets, k)
        lists.append(TopK(*(part.cpu() for part in found.lists)))
        ranks.append(found.ranks.cpu())
    return Ranked(TopK(*(torch.cat(parts) for parts in zip(*lists, strict=True))), torch.cat(ranks))


def metrics_of(ranks: Tensor, targets: Jagged) -> dict[str, float]:
    """Mean of every metric over the queries with a target."""
    ragged = Jagged(ranks, targets.offsets)
    return {name: float(per_user_metric(ragged, name).nanmean()) for name in METRICS}
