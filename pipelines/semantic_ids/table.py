"""One version's IDs of a catalogue as a table sorted by code: the tree of prefixes.

Axes: N item rows (row 0 is padding), M items with an ID, L levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray

from pipelines.semantic_ids.items import Items, Rows
from recsys.semantic_ids.codes import NO_CODE, SemanticIds, id_keys
from recsys.semantic_ids.quality import NO_CATEGORY

TYPICAL = 3
"""Titles that describe a prefix: its most popular items."""
Prefix = tuple[int, ...]


def prefix_text(codes: Sequence[int]) -> str:
    """Write codes as ``12-250-3``."""
    return "-".join(map(str, codes))


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

    def edges(self, prefix: Prefix) -> Rows:
        """Place in ``rows`` at which the items of each next code begin, [K + 1]."""
        key, level = 0, len(prefix)
        for code, size in zip(prefix, self.level_sizes, strict=False):
            key = key * size + code
        size, below = self.level_sizes[level], prod(self.level_sizes[level + 1 :])
        wanted = (key * size + np.arange(size + 1, dtype=np.int64)) * below
        return np.searchsorted(self.keys, wanted).astype(np.int64)

    def members(self, prefix: Prefix) -> Rows:
        """Return the item rows of a prefix, by code."""
        if not prefix:
            return self.rows
        edges = self.edges(prefix[:-1])
        return self.rows[edges[prefix[-1]] : edges[prefix[-1] + 1]]

    def text(self, row: int) -> str:
        """Write an item's ID as ``12-250-3``; empty without one."""
        codes = self.codes[row].tolist()
        return "" if codes[0] == NO_CODE else prefix_text(codes)

    def read_prefix(self, text: str) -> Prefix:
        """Read a prefix as `prefix_text` writes it."""
        if not text:
            return ()
        try:
            prefix = tuple(int(code) for code in text.split("-"))
        except ValueError:
            prefix = (-1,)
        inside = all(0 <= code < size for code, size in zip(prefix, self.level_sizes, strict=False))
        if len(prefix) > self.num_levels or not inside:
            sizes = ", ".join(f"0 to {size - 1}" for size in self.level_sizes)
            raise ValueError(
                f"prefix is {text!r}; it has to be codes with dashes between them such as 12-4, at "
                f"most {self.num_levels}, each of its level: {sizes}"
            )
        return prefix


@dataclass(frozen=True, kw_only=True)
class Group:
    """The items of a prefix."""

    prefix: Prefix
    num_items: int
    titles: tuple[str, ...]
    """Titles of its most popular items."""
    category: str
    """The commonest; empty if no item has one."""
    purity: float | None
    """Share of the items with a category that have the commonest."""

    @property
    def text(self) -> str:
        return prefix_text(self.prefix)


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


def describe_group(items: Items, prefix: Prefix, rows: Rows) -> Group:
    """Describe the item rows of a prefix."""
    numbers = items.categories[rows]
    numbers = numbers[numbers != NO_CATEGORY]
    category, purity = "", None
    if len(numbers):
        counts = np.bincount(numbers)
        best = int(counts.argmax())
        category, purity = items.names[best], float(counts[best] / len(numbers))
    return Group(
        prefix=prefix,
        num_items=len(rows),
        titles=tuple(items.title(row) for row in most_popular(items, rows, TYPICAL)),
        category=category,
        purity=purity,
    )


def list_children(table: IdTable, items: Items, prefix: Prefix) -> list[Group]:
    """Describe the prefixes one code longer, the largest first."""
    if len(prefix) == table.num_levels:
        return []
    edges = table.edges(prefix)
    found = [
        describe_group(items, (*prefix, code), table.rows[edges[code] : edges[code + 1]])
        for code in np.flatnonzero(np.diff(edges)).tolist()
    ]
    return sorted(found, key=lambda group: (-group.num_items, group.prefix))


def path_to(table: IdTable, items: Items, prefix: Prefix) -> list[Group]:
    """Describe the prefixes on the way to one, itself included."""
    ways = [prefix[:length] for length in range(1, len(prefix) + 1)]
    return [describe_group(items, one, table.members(one)) for one in ways]


def grouped(rows: Rows, values: Rows) -> dict[int, Rows]:
    """Group item rows by a value, the rows of each ascending."""
    order = np.argsort(values, kind="stable")
    starts = np.flatnonzero(np.diff(values[order], prepend=-1))
    members = np.split(rows[order], starts[1:])
    return dict(zip(values[order][starts].tolist(), members, strict=bool(len(starts))))
