"""Features of a blend: the scored lists of several sources, item by item.

Scores of two sources mean different things, so each list is first brought to its own scale. Every
feature is 0 where the source does not have the item and never less where it has, so that with
weights >= 0 no item loses by being in one more list, but for that of repeats (learned.py).

Axes: B queries, S sources, F features of a source, L items of all lists of a query together,
k list length.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from recsys.data.top_k import NO_ROW, TopK

ABSENT = 0
"""Rank of an item in a source that does not have it."""
CONSTANT = 60.0
"""Added to every rank; the paper's."""


class Blended(NamedTuple):
    """Merged lists, best first, and where each item came from."""

    scores: Tensor
    """[B, k] float32, -inf where the list is short."""
    item_rows: Tensor
    """[B, k] int64, -1 where the list is short."""
    source_ranks: Tensor
    """[B, k, S] int64, the item's rank from 1 in each source, `ABSENT` where it is not."""
    sources: tuple[str, ...]
    """Names of the S sources, in the order given."""
    contributions: Tensor | None = None
    """[B, k, S] float32, what each source added to the score; None where only ranks count."""

    def first(self, k: int) -> Blended:
        """Take the first places."""
        scores, rows, ranks, sources, shares = self
        shares = None if shares is None else shares[:, :k]
        return Blended(scores[:, :k], rows[:, :k], ranks[:, :k], sources, shares)


FEATURES = ("lead", "z_score", "reciprocal_rank", "presence")
"""lead: score above the list's last one, in the source's own unit; it is small where the source is
undecided, which the others do not show. z_score: the same in standard deviations of the list.
reciprocal_rank: of reciprocal rank fusion, 1 at rank 1, so weights on it alone give that fusion.
presence: 1."""
NO_ITEM = torch.iinfo(torch.int64).max
"""Sorts holes after all items."""


class MergedCandidates(NamedTuple):
    """The distinct items of each query's lists, in the order of reciprocal rank fusion."""

    item_rows: Tensor
    """[B, L] int64, `NO_ROW` at the end of queries with fewer items."""
    ranks: Tensor
    """[B, L, S] int64, from 1 in each source, `ABSENT` where it does not have the item."""
    leads: Tensor
    """[B, L, S] float32, 0 where absent."""
    z_scores: Tensor
    """[B, L, S] float32, 0 where absent."""

    def features(self, scales: Tensor) -> Tensor:
        """Derive all features, [B, L, S, F] float32.

        Args:
            scales: By source, what its leads are multiplied by, [S].
        """
        present = self.ranks != ABSENT
        reciprocal = (1 + CONSTANT) / (CONSTANT + self.ranks)
        reciprocal = reciprocal.masked_fill(~present, 0)
        leads = self.leads * scales
        return torch.stack([leads, self.z_scores, reciprocal, present.float()], dim=3)

    def of_items(self, values: Tensor) -> Tensor:
        """Look up each item's value, [N] -> [B, L] float64; 0 for rows beyond and holes."""
        inside = (self.item_rows > 0) & (self.item_rows < len(values))
        return values.double()[self.item_rows.where(inside, 0)].masked_fill(~inside, 0)

    def in_equal_parts(self, values: Tensor) -> Tensor:
        """Share out values, [B, L], among the sources that list the item, [B, L, S] float64."""
        present = self.ranks != ABSENT
        return values[:, :, None] * present / present.sum(2, keepdim=True).clamp_min(1)

    def take(self, places: Tensor) -> MergedCandidates:
        """Pick items by place, [B, C] -> C items a query."""
        wide = places[:, :, None].expand(-1, -1, self.ranks.shape[2])
        return MergedCandidates(
            self.item_rows.gather(1, places),
            self.ranks.gather(1, wide),
            self.leads.gather(1, wide),
            self.z_scores.gather(1, wide),
        )


class ListScores(NamedTuple):
    """Scores of a list counted from its last one; 0 at holes and where all are equal."""

    leads: Tensor
    """[B, k] float32, in the source's own unit."""
    z_scores: Tensor
    """[B, k] float32, in standard deviations of the list."""


def list_scores(scores: Tensor, item_rows: Tensor) -> ListScores:
    """Count the scores of lists [B, k] from their last ones."""
    is_item = item_rows > 0
    number = is_item.sum(1, keepdim=True).clamp_min(1)
    known = scores.double().masked_fill(~is_item, 0)
    mean = known.sum(1, keepdim=True) / number
    deviation = (
        (known - mean).masked_fill(~is_item, 0).square().sum(1, keepdim=True) / number
    ).sqrt()
    lowest = (
        known.masked_fill(~is_item, torch.inf).amin(1, keepdim=True) if scores.shape[1] else mean
    )
    # Rounding alone spreads equal scores: what is a billionth of their size is no spread.
    size = known.abs().amax(1, keepdim=True) if scores.shape[1] else mean
    flat = deviation <= 1e-9 * size
    leads = (known - lowest).masked_fill(~is_item | flat, 0)
    return ListScores(leads.float(), (leads / deviation.masked_fill(flat, 1)).float())


def lead_scales(lists: Mapping[str, TopK]) -> Tensor:
    """Return what brings each source's leads to a mean square of 1, [S] float32; 1 without any."""
    found = []
    for top in lists.values():
        leads, number = list_scores(*top).leads.double(), int((top.item_rows > 0).sum())
        size = float((leads.square().sum() / max(1, number)).sqrt())
        found.append(1 / size if size > 0 else 1.0)
    return torch.tensor(found)


def merge_lists(lists: Mapping[str, TopK]) -> MergedCandidates:
    """Bring equal items of all lists together."""
    check_lists(lists)
    tops = list(lists.values())
    num_sources = len(tops)
    rows = torch.cat([top.item_rows for top in tops], dim=1)  # [B, L]
    counted = [list_scores(*top) for top in tops]
    values = torch.stack([torch.cat(part, dim=1) for part in zip(*counted, strict=True)], dim=2)
    lengths = torch.tensor([top.item_rows.shape[1] for top in tops])
    source = torch.repeat_interleave(torch.arange(num_sources), lengths)  # [L]
    rank = torch.cat([torch.arange(1, int(length) + 1) for length in lengths])
    num_queries, length = rows.shape

    # Equal rows become neighbours, those of one source by rank, and share a place.
    rows, order = rows.masked_fill(rows < 1, NO_ITEM).sort(dim=1, stable=True)
    source, rank = source[order], rank[order]
    values = values.gather(1, order[:, :, None].expand(-1, -1, 2))  # [B, L, 2]
    changes = rows[:, 1:] != rows[:, :-1]
    first = torch.ones_like(rows, dtype=torch.bool)
    first[:, 1:] = changes | (source[:, 1:] != source[:, :-1])
    place = torch.zeros_like(rows)
    place[:, 1:] = changes.long().cumsum(1)
    items = torch.full_like(rows, NO_ITEM).scatter_(1, place, rows)  # [B, L], ascending
    # Repeats and holes are written behind the end, which is cut off.
    target = (place * num_sources + source).masked_fill(
        ~first | (rows == NO_ITEM), length * num_sources
    )
    table = torch.zeros(num_queries, length * num_sources + 1, 2)
    table.scatter_(1, target[:, :, None].expand(-1, -1, 2), values)
    leads, z_scores = table[:, :-1].view(num_queries, length, num_sources, 2).unbind(3)
    table = torch.zeros(num_queries, length * num_sources + 1, dtype=torch.int64)
    ranks = table.scatter_(1, target, rank)[:, :-1].view(num_queries, length, num_sources)

    fused = torch.where(ranks == ABSENT, 0.0, 1 / (CONSTANT + ranks.double()))
    # Added smallest first, so that the order of sources decides nothing.
    by_fusion = fused.sort(dim=2).values.sum(2).sort(dim=1, descending=True, stable=True).indices
    merged = MergedCandidates(items.masked_fill(items == NO_ITEM, NO_ROW), ranks, leads, z_scores)
    return merged.take(by_fusion)


def check_lists(lists: Mapping[str, TopK]) -> None:
    """Refuse what cannot be laid side by side."""
    if not lists:
        raise ValueError("there is no source to blend; give at least one scored list")
    for name, top in lists.items():
        bad = ~torch.isfinite(top.scores) & (top.item_rows > 0)
        if bad.any():
            query, place = bad.nonzero()[0].tolist()
            raise ValueError(
                f"source {name!r} scores item row {int(top.item_rows[query, place])} of query "
                f"{query} {float(top.scores[query, place])}; scores must be finite, and holes have "
                "item row -1"
            )
