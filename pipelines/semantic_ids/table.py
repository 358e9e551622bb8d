"""One version's IDs of a catalogue as a table sorted by code.

Axes: N item rows (row 0 is padding), M items with an ID, L levels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from pipelines.semantic_ids.items import Items, Rows
from recsys.semantic_ids.codes import NO_CODE, SemanticIds, id_keys
from recsys.semantic_ids.quality import NO_CATEGORY

TYPICAL = 3
"""Titles that describe a first code: its most popular items."""


@dataclass(frozen=True, kw_only=True, eq=False)
class IdTable:
    """One version's IDs of a run's items."""

    version: str
    parent: str | None
    level_sizes: tuple[int, ...]
    codes: NDArray[np.int32]
    """Codes by item row, [N, L]; -1 without an ID."""
    keys: Rows
    """IDs as numbers, ascending, [M]."""
    rows: Rows
    """Their item rows, [M]."""
    num_departed: int
    """IDs of items that are not in the catalogue."""

    @classmethod
    def of(cls, ids: SemanticIds, id_rows: Rows) -> IdTable:
        """Sort a catalogue's codes.

        Args:
            id_rows: Id row of each item row, [N]; 0 without an ID.
        """
        codes = ids.by_item_row(torch.from_numpy(np.array(id_rows, np.int64))).codes
        rows = (codes[:, 0] != NO_CODE).nonzero().flatten()
        keys, order = id_keys(codes[rows], ids.level_sizes).sort()
        return cls(
            version=ids.version,
            parent=ids.parent,
            level_sizes=ids.level_sizes,
            codes=codes.numpy(),
            keys=keys.numpy(),
            rows=rows[order].numpy(),
            num_departed=len(ids.item_rows) - len(rows),
        )

    @property
    def num_levels(self) -> int:
        return len(self.level_sizes)

    @property
    def own(self) -> torch.Tensor:
        """Codes of the items with an ID, [M, L], in the order of ``rows``."""
        return torch.from_numpy(self.codes[self.rows])


@dataclass(frozen=True, kw_only=True)
class Group:
    """The items of a first code."""

    code: int
    num_items: int
    titles: tuple[str, ...]
    """Titles of its most popular items."""
    category: str
    """The commonest; empty if no item has one."""
    purity: float | None
    """Share of the items with a category that have the commonest."""


def most_popular(items: Items, rows: Rows, most: int) -> list[int]:
    """Return the most popular of some item rows, equal ones by row."""
    popularity = items.popularity[rows]
    if len(rows) > 4 * most:
        # Only the largest need an order.
        least = np.partition(popularity, len(rows) - most)[len(rows) - most]
        kept = popularity >= least
        rows, popularity = rows[kept], popularity[kept]
    order = np.lexsort((rows, -popularity))[:most]
    found: list[int] = rows[order].tolist()
    return found


def describe_group(items: Items, code: int, rows: Rows) -> Group:
    """Describe the item rows of a first code."""
    numbers = items.categories[rows]
    numbers = numbers[numbers != NO_CATEGORY]
    category, purity = "", None
    if len(numbers):
        counts = np.bincount(numbers)
        best = int(counts.argmax())
        category, purity = items.names[best], float(counts[best] / len(numbers))
    return Group(
        code=code,
        num_items=len(rows),
        titles=tuple(items.title(row) for row in most_popular(items, rows, TYPICAL)),
        category=category,
        purity=purity,
    )


def describe_first_codes(table: IdTable, items: Items, most: int) -> list[Group]:
    """Describe the items of the largest first codes, the largest first."""
    # Rows are sorted by code, so those of one first code follow each other.
    codes = table.codes[table.rows, 0]
    starts = np.flatnonzero(np.diff(codes, prepend=NO_CODE))
    groups = list(zip(codes[starts].tolist(), np.split(table.rows, starts[1:]), strict=False))
    groups.sort(key=lambda group: (-len(group[1]), group[0]))
    return [describe_group(items, code, rows) for code, rows in groups[:most]]
