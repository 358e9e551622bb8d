"""Reciprocal rank fusion of many queries by its formula, which served lists are held against."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from recsys.data.top_k import no_items
from recsys.retrieval.blend.source_features import ABSENT, CONSTANT, Blended


def reciprocal_rank_fusion(
    lists: Mapping[str, Tensor], k: int, weights: Mapping[str, float] | None = None
) -> Blended:
    """Merge ranked lists of item rows, [B, k_s] by source; ties by item_row ascending.

    Rows < 1 are holes and keep their rank. An item named twice in one list counts at its better
    rank. Sources weigh 1 if ``weights`` does not say otherwise.
    """
    num_queries = len(next(iter(lists.values())))
    blended = no_items(num_queries, k)
    ranks = torch.full((num_queries, k, len(lists)), ABSENT)
    for query in range(num_queries):
        shares: dict[int, dict[int, float]] = {}
        for source, (name, rows) in enumerate(lists.items()):
            weight = (weights or {}).get(name, 1.0)
            for rank, row in enumerate(rows[query].tolist(), start=1):
                if row >= 1 and source not in shares.setdefault(row, {}):
                    shares[row][source] = weight / (CONSTANT + rank)
        scores = {row: math.fsum(own.values()) for row, own in shares.items()}
        for place, row in enumerate(sorted(scores, key=lambda row: (-scores[row], row))[:k]):
            blended.item_rows[query, place], blended.scores[query, place] = row, scores[row]
            for source in shares[row]:
                rows = list(lists.values())[source][query].tolist()
                ranks[query, place, source] = rows.index(row) + 1
    return Blended(*blended, ranks, tuple(lists))
