"""Small catalogues that many models are built on."""

from __future__ import annotations

import torch

from recsys.data.batch import Jagged
from recsys.models.item_tower import ItemCatalogue


def drawn_catalogue(
    num_rows: int, content_dim: int = 0, num_categories: int = 3, seed: int = 0
) -> ItemCatalogue:
    """Draw content; items take the categories 1, 2, ... in turn. Row 0 has neither."""
    content = torch.randn(num_rows, content_dim, generator=torch.Generator().manual_seed(seed))
    content[0] = 0
    lists = [[], *([1 + row % num_categories] for row in range(num_rows - 1))]
    return ItemCatalogue(content, Jagged.from_lists(lists))
