"""The tree of prefixes: what lies below one, and what its items have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipelines.dashboard.semantic_ids.catalogue import Items, Rows
from pipelines.dashboard.semantic_ids.versions import IdTable, Prefix
from recsys.semantic_ids.purity import NO_CATEGORY

TYPICAL = 3
"""Titles that stand for a prefix: its most popular items."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """The items of a prefix."""

    prefix: Prefix
    num_items: int
    share: float
    """Of the items of the prefix above."""
    titles: tuple[str, ...]
    """Of its most popular items."""
    category: str
    """The commonest; empty where no item has one."""
    purity: float | None
    """Share of the items with a category that have the commonest."""

    @property
    def text(self) -> str:
        return "-".join(map(str, self.prefix))


def most_popular(items: Items, rows: Rows, most: int) -> list[int]:
    """Take the most popular of some item rows, equal ones by row."""
    popularity = items.popularity[rows]
    if len(rows) > 4 * most:
        # Only the largest need an order.
        least = np.partition(popularity, len(rows) - most)[len(rows) - most]
        kept = popularity >= least
        rows, popularity = rows[kept], popularity[kept]
    order = np.lexsort((rows, -popularity))[:most]
    found: list[int] = rows[order].tolist()
    return found


def group_of(items: Items, prefix: Prefix, rows: Rows, among: int) -> Group:
    """Describe the items of a prefix.

    Args:
        rows: Their item rows.
        among: Items of the prefix above.
    """
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
        share=len(rows) / max(1, among),
        titles=tuple(items.title(row) for row in most_popular(items, rows, TYPICAL)),
        category=category,
        purity=purity,
    )


def children_of(table: IdTable, items: Items, prefix: Prefix) -> list[Group]:
    """Describe what follows a prefix, the largest first."""
    if len(prefix) == table.num_levels:
        return []
    edges = table.edges(prefix)
    among = int(edges[-1] - edges[0])
    codes = np.flatnonzero(np.diff(edges)).tolist()
    found = [
        group_of(items, (*prefix, code), table.rows[edges[code] : edges[code + 1]], among)
        for code in codes
    ]
    return sorted(found, key=lambda group: (-group.num_items, group.prefix))


def path_to(table: IdTable, items: Items, prefix: Prefix) -> Sequence[Group]:
    """Describe the prefixes on the way to one, itself included."""
    found, among = [], len(table.rows)
    for length in range(1, len(prefix) + 1):
        low, high = table.bounds(prefix[:length])
        found.append(group_of(items, prefix[:length], table.rows[low:high], among))
        among = high - low
    return found
