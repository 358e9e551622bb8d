"""Reciprocal rank fusion of many queries in torch, which served lists are held against.

Axes: B queries, S sources, L items of all lists of a query together, k list length.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from recsys.data.top_k import NO_ROW, no_items
from recsys.retrieval.blend.source_features import ABSENT, CONSTANT, Blended


def reciprocal_rank_fusion(
    lists: Mapping[str, Tensor],
    k: int,
    weights: Mapping[str, float] | None = None,
) -> Blended:
    """Merge ranked lists; ties by item_row ascending.

    Args:
        lists: Item rows best first by source, each [B, k_s]; rows < 1 are holes and keep their
            rank. An item named twice in one list counts at its better rank.
        k: List length; lists with fewer distinct items end in row -1, score -inf.
        weights: By source, >= 0; sources left out weigh 1. At 0 a source's items come last,
            which lets it fill lists up.
    """
    sources = tuple(lists)
    chosen = [(weights or {}).get(name, 1.0) for name in lists]
    weight = torch.tensor(chosen, dtype=torch.float64)  # [S]
    rows, source, rank = _flattened(lists)  # [B, L], [L], [L]
    num_queries, length = rows.shape
    blended = no_items(num_queries, k, rows.device)
    ranks = torch.full((num_queries, k, len(sources)), ABSENT, device=rows.device)
    if length == 0:
        return Blended(*blended, ranks, sources)

    # Equal rows become neighbours and share a place; holes sort to the end.
    hole = torch.iinfo(torch.int64).max
    rows, order = rows.masked_fill(rows < 1, hole).sort(dim=1, stable=True)
    changes = (rows[:, 1:] != rows[:, :-1]).long()
    place = torch.cat([torch.zeros_like(rows[:, :1]), changes.cumsum(1)], dim=1)  # [B, L]
    items = torch.full_like(rows, hole).scatter_(1, place, rows)  # [B, L] distinct, ascending
    unseen = length + 1
    best = torch.full((num_queries, length * len(sources)), unseen, device=rows.device)
    best.scatter_reduce_(1, place * len(sources) + source[order], rank[order], "amin")
    best = best.view(num_queries, length, len(sources))  # [B, L, S]

    shares = torch.where(best < unseen, weight / (CONSTANT + best), 0.0)
    # Added smallest first: equal sets of shares give equal sums whatever source each is from.
    scores = shares.sort(dim=2).values.sum(2).masked_fill(items == hole, -torch.inf)
    scores, order = scores.sort(dim=1, descending=True, stable=True)  # [B, L]
    kept = min(k, length)
    scores, order = scores[:, :kept], order[:, :kept]
    blended.scores[:, :kept] = scores.float()
    blended.item_rows[:, :kept] = items.gather(1, order).masked_fill(scores == -torch.inf, NO_ROW)
    chosen = best.gather(1, order[:, :, None].expand(-1, -1, len(sources)))
    chosen = chosen.masked_fill((chosen == unseen) | (scores == -torch.inf)[:, :, None], ABSENT)
    ranks[:, :kept] = chosen
    return Blended(*blended, ranks, sources)


def _flattened(lists: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Lay all lists side by side: rows [B, L], and source and rank of each column [L]."""
    columns = [
        torch.stack([torch.full((rows.shape[1],), place), torch.arange(1, rows.shape[1] + 1)])
        for place, rows in enumerate(lists.values())
    ]
    source, rank = torch.cat(columns, dim=1)
    rows = torch.cat(list(lists.values()), dim=1)
    return rows, source.to(rows.device), rank.to(rows.device)
