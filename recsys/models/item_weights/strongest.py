"""Keep each item's strongest weights of blocks that are computed one after the other.

Axes: N item rows, S items of a block, C columns, M kept weights of an item.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recsys.models.item_weights.model import WeightTable


class WeightBlock(NamedTuple):
    """The weights from some items."""

    rows: NDArray[np.int64]
    """[S] item rows, each in one block alone."""
    columns: Tensor
    """[C] item rows that get the weights."""
    weights: Tensor
    """[S, C] float32 on the columns' device; 0 is none."""


class Strongest:
    """Collects blocks, in any order of their items."""

    def __init__(self, num_item_rows: int, limit: int) -> None:
        self._limit = limit
        self._num_item_rows = num_item_rows
        self._sources = [torch.empty(0, dtype=torch.int64)]
        self._rows: list[Tensor] = [torch.empty(0, dtype=torch.int32)]
        self._weights: list[Tensor] = [torch.empty(0)]

    def add(self, block: WeightBlock) -> None:
        """Keep the strongest of a block on the host, by absolute value."""
        limit = min(self._limit, block.weights.shape[1])
        found = block.weights.abs().topk(limit, dim=1).indices  # [S, M]
        weights = block.weights.gather(1, found).cpu()
        rows = block.columns[found].cpu()
        present = (weights != 0) & (rows != 0)
        source = torch.from_numpy(block.rows)[:, None].expand_as(present)
        self._sources.append(source[present])
        self._rows.append(rows[present].to(torch.int32))
        self._weights.append(weights[present])

    def add_pairs(self, rows: Tensor, columns: Tensor, weights: Tensor) -> None:
        """Keep the strongest of some items, each of whose pairs are all here.

        Args:
            rows: [Q] items that the weights are from, ascending.
            columns: [Q] item rows that get them.
            weights: [Q] float32; 0 is none.
        """
        present = (weights != 0) & (columns != 0)
        rows, columns, weights = rows[present], columns[present], weights[present]
        order = weights.abs().argsort(descending=True, stable=True)
        order = order[rows[order].argsort(stable=True)]  # by item, the strongest first
        rows = rows[order]
        place = torch.arange(len(rows)) - torch.searchsorted(rows, rows)
        kept = place < self._limit
        self._sources.append(rows[kept])
        self._rows.append(columns[order][kept].to(torch.int32))
        self._weights.append(weights[order][kept])

    def table(self) -> WeightTable:
        """Join what was kept."""
        sources, order = torch.cat(self._sources).sort(stable=True)
        lengths = torch.bincount(sources, minlength=self._num_item_rows)
        return WeightTable(
            torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]),
            torch.cat(self._rows)[order],
            torch.cat(self._weights)[order],
        )
