"""How often two items have the same users, counted row by row of the items' matrix.

Each user's item counts once.

Axes: E events, U users, P distinct items of all users, N item rows, S items of a block, C columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recsys.data.dataset import concatenated_ranges
from recsys.models.item_weights.model import WeightTable

Rows = NDArray[np.int64]
Values = NDArray[np.float32]
MAX_CELLS = 1 << 22
"""Cells of a block of rows, and pairs that are in memory at a time, about 200 MiB."""


@dataclass(frozen=True)
class UserItems:
    """The distinct items of each user, users one after the other."""

    rows: Rows
    """[P]"""
    offsets: Rows
    """[U + 1]"""
    num_item_rows: int

    @classmethod
    def of(
        cls, item_rows: Rows, starts: Rows, ends: Rows, num_item_rows: int, max_events: int
    ) -> UserItems:
        """Take the latest events of each user that a model may see.

        Args:
            item_rows: All users' events, oldest first within a user, [E]; row 0 is no item.
            starts: Where each user's visible events begin, [U].
            ends: Where they end (exclusive), [U].
        """
        starts = np.maximum(starts, ends - max_events)
        places = concatenated_ranges(starts, ends)
        users = np.repeat(np.arange(len(starts)), ends - starts)
        rows = np.asarray(item_rows[places])
        codes = np.unique(users * num_item_rows + rows)
        codes = codes[codes % num_item_rows != 0]
        counts = np.bincount(codes // num_item_rows, minlength=len(starts))
        return cls(
            rows=codes % num_item_rows,
            offsets=np.concatenate([[0], np.cumsum(counts)]),
            num_item_rows=num_item_rows,
        )

    def lengths(self) -> Rows:
        """Count each user's items, [U]."""
        return np.diff(self.offsets)

    def counts(self) -> Rows:
        """Count each item's users, [N]."""
        return np.bincount(self.rows, minlength=self.num_item_rows)


class CoOccurrence:
    """Rows of the matrix of users that items share."""

    def __init__(self, items: UserItems) -> None:
        self.items, self.num_item_rows = items, items.num_item_rows
        users = np.repeat(np.arange(len(items.offsets) - 1), items.lengths())
        ends = np.cumsum(items.counts())
        self._ends, self._begins = ends, ends - items.counts()
        self._users = users[np.argsort(items.rows, kind="stable")]

    def blocks(self, item_rows: Rows, columns: Rows) -> Iterator[tuple[Rows, Values]]:
        """Cut items into blocks that fit into memory: their rows and their counts [S, C].

        Args:
            columns: Items that they are counted with, [C].
        """
        size = max(1, MAX_CELLS // max(1, len(columns)))
        for begin in range(0, len(item_rows), size):
            block = item_rows[begin : begin + size]
            yield block, self.rows_of(block, columns)

    def rows_of(self, item_rows: Rows, columns: Rows) -> Values:
        """Count how much each item shares with others, itself included, [S, C]."""
        places = np.full(self.num_item_rows, len(columns))
        places[columns] = np.arange(len(columns))
        width = len(columns) + 1  # the last place is that of all other items
        begins, ends = self._begins[item_rows], self._ends[item_rows]
        entries = concatenated_ranges(begins, ends)
        source = np.repeat(np.arange(len(item_rows)), ends - begins)
        users = self._users[entries]
        lengths = self.items.lengths()[users]
        cells = len(item_rows) * width
        found = np.zeros(cells)
        before = np.cumsum(lengths) - lengths
        cuts = np.searchsorted(before, np.arange(0, int(lengths.sum()) + 1, MAX_CELLS))
        bounds = [*cuts.tolist(), len(entries)]
        for first, end in pairwise(bounds):
            if first == end:
                continue
            some = users[first:end]
            pairs = concatenated_ranges(self.items.offsets[some], self.items.offsets[some + 1])
            code = np.repeat(source[first:end] * width, lengths[first:end])
            code += places[self.items.rows[pairs]]
            found += np.bincount(code, minlength=cells)
        return found.astype(np.float32).reshape(len(item_rows), width)[:, :-1]


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

    def table(self) -> WeightTable:
        sources, order = torch.cat(self._sources).sort(stable=True)
        lengths = torch.bincount(sources, minlength=self._num_item_rows)
        return WeightTable(
            torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]),
            torch.cat(self._rows)[order],
            torch.cat(self._weights)[order],
        )
