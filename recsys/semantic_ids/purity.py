"""Purity: share of items with one prefix in one category, and how much of that is chance.

Deep prefixes hold one item each and are pure whatever they mean, so a purity says something only
beside the purity of the same prefixes with the categories dealt out at random.
"""

from __future__ import annotations

import torch
from torch import Tensor

NO_CATEGORY = -1
NUM_SHUFFLES = 5


def purity(prefix_keys: Tensor, categories: Tensor) -> float:
    """Share of items in the commonest category of their prefix, of those that have a category.

    Args:
        prefix_keys: [N] int64.
        categories: [N] int64, -1 for none.
    """
    known = categories != NO_CATEGORY
    categories = categories[known]
    if len(categories) == 0:
        return 0.0
    _, prefix = torch.unique(prefix_keys[known], return_inverse=True)
    num_categories = int(categories.max()) + 1
    cells, counts = torch.unique(prefix * num_categories + categories, return_counts=True)
    best = torch.zeros(int(prefix.max()) + 1, dtype=torch.int64, device=counts.device)
    best.scatter_reduce_(0, cells // num_categories, counts, "amax")
    return float(best.sum() / len(prefix))


def purity_by_chance(prefix_keys: Tensor, categories: Tensor) -> float:
    """Average the purity over a few shuffles of the categories among the items that have one."""
    known = categories != NO_CATEGORY
    keys, own = prefix_keys[known], categories[known]
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(NUM_SHUFFLES):
        order = torch.randperm(len(own), generator=generator).to(own.device)
        found.append(purity(keys, own[order]))
    return sum(found) / NUM_SHUFFLES
