"""Purity: share of items with one prefix in one category, and how much of that is chance.

Deep prefixes hold one item each and are pure whatever they mean, so a purity says something only
beside the purity of the same prefixes with the categories dealt out at random.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

NO_CATEGORY = -1
NUM_SHUFFLES = 5
MOST_ITEMS = 0.5
"""A category of more items than this share separates nothing."""


def main_categories(categories: Sequence[Sequence[str]]) -> tuple[Tensor, list[str]]:
    """Choose one category for each item: the commonest of its own.

    One that more than half of the items have counts only where an item has no other.

    Args:
        categories: Of each item, [N] lists; ties are broken by name.

    Returns:
        The category's number per item, [N] int64, -1 without one, and the names by number.
    """
    counts = Counter(name for names in categories for name in set(names))
    most = MOST_ITEMS * sum(bool(names) for names in categories)
    names = sorted(counts, key=lambda name: (counts[name] > most, -counts[name], name))
    place = {name: number for number, name in enumerate(names)}
    found = [min((place[name] for name in own), default=NO_CATEGORY) for own in categories]
    return torch.tensor(found, dtype=torch.int64), names


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
