"""The served blend as a model of its own, so that it is measured like the others.

Each source ranks what the user has not seen, and the lists are merged with the weights of
serving's ``home`` surface; a test holds the lists equal to what a Recommender answers.

Axes: B queries, N item rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from recsys.data.batch import Jagged, JaggedBatch
from recsys.data.top_k import top_k_of_scores
from recsys.retrieval.blend import reciprocal_rank_fusion
from serving.surfaces import HOME, Surface

SOURCE_OF_MODEL = {
    "popularity": "popular",
    "item_to_item": "item_to_item",
    "two_tower": "two_tower",
}


class BlendedScores:
    """Scores of the merged list; whatever is in no source's list scores -inf."""

    def __init__(
        self, models: Mapping[str, Callable[[JaggedBatch], Tensor]], surface: Surface = HOME
    ) -> None:
        self.models = {SOURCE_OF_MODEL[name]: score for name, score in models.items()}
        self.surface = surface

    def __call__(self, queries: JaggedBatch) -> Tensor:
        """Score a batch that has ``seen``, the items that no list repeats, [B, N]."""
        lists, num_item_rows = {}, 0
        # Content finds items that are appended after a release; there is nothing to measure yet.
        weights = {name: w for name, w in self.surface.weights.items() if name in self.models}
        for name in weights:
            scores = without(self.models[name](queries), queries["seen"])  # [B, N]
            num_item_rows = scores.shape[1]
            k = min(self.surface.num_candidates, num_item_rows - 1)
            lists[name] = top_k_of_scores(scores, k).item_rows
        length = sum(rows.shape[1] for rows in lists.values())
        blended = reciprocal_rank_fusion(lists, length, weights)
        found = torch.full((queries.batch_size, num_item_rows), -torch.inf)
        # Holes (-1) go to row 0, which is no item.
        found.scatter_(1, blended.item_rows.clamp(min=0), blended.scores)
        found[:, 0] = -torch.inf
        return found


def without(scores: Tensor, seen: Jagged) -> Tensor:
    """Give what each user has seen -inf, in a copy."""
    scores = scores.detach().clone()
    scores[seen.segments(), seen.values] = -torch.inf
    return scores
