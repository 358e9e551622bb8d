"""Neighbours of items: whose ids an item reads besides its own.

An item with few events has little to learn its id from; the items that occur near it in histories
say where it belongs. They are counted in the events that the model is fitted on, so a new item has
none, and a refit counts them again: no weight depends on which they are.

Axes: E events, U users, N item rows, K neighbours of an item.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from recsys.models.configs import ItemToItemConfig
from recsys.models.item_to_item import Rows, count_neighbours
from recsys.models.item_weights.model import WeightTable

WINDOW = 20
"""Largest distance between two events that make their items neighbours, chosen on validation."""


class ItemNeighbours(NamedTuple):
    """The nearest items of each item, strongest first."""

    rows: Tensor
    """[N, K] int64; 0 where there are fewer."""
    shares: Tensor
    """[N, K] float32, of an item they sum to 1, or to 0 where it has none."""

    @classmethod
    def counted(
        cls, item_rows: Rows, starts: Rows, ends: Rows, num_item_rows: int, num_neighbours: int
    ) -> ItemNeighbours:
        """Count which items occur near each other, either way; near ones count more.

        Args:
            item_rows: All users' events, oldest first within a user, [E].
            starts: Where each user's visible events begin, [U].
            ends: Where they end (exclusive), [U].
            num_item_rows: Item rows with row 0.
        """
        # One more than K, because an item that repeats is near itself.
        config = ItemToItemConfig(
            num_neighbours=num_neighbours + 1,
            window=WINDOW,
            distance_power=1.0,
            reverse_weight=1.0,
            source_power=0.5,
            target_power=0.5,
        )
        counted = count_neighbours(item_rows, starts, ends, num_item_rows, config)
        return cls.of(counted, num_neighbours)

    @classmethod
    def of(cls, neighbours: WeightTable, num_neighbours: int) -> ItemNeighbours:
        """Keep at most so many others of each item, with the shares of their weights."""
        lengths = neighbours.offsets.diff()
        item = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
        other = neighbours.rows.long() != item
        item, rows = item[other], neighbours.rows[other].long()
        first = torch.searchsorted(item, item)  # of the same item
        place = torch.arange(len(item)) - first
        kept = place < num_neighbours
        item, place = item[kept], place[kept]
        table = torch.zeros(len(lengths), num_neighbours, dtype=torch.int64)
        weights = torch.zeros(len(lengths), num_neighbours)
        table[item, place] = rows[kept]
        weights[item, place] = neighbours.weights[other][kept]
        return cls(table, weights / weights.sum(1, keepdim=True).clamp(min=1e-30))
