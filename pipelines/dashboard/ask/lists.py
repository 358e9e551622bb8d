"""Two lists of items side by side: what is in both, what moved, how alike the orders are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Place(NamedTuple):
    """Where an item stands in two lists, from 1; None where it is not in one."""

    item_id: str
    first: int | None
    second: int | None

    @property
    def moved(self) -> int | None:
        """Places that it is higher in the second list; None where it is in one alone."""
        return None if self.first is None or self.second is None else self.first - self.second


def places(first: Sequence[str], second: Sequence[str]) -> list[Place]:
    """List all items by their best place, those of the first list before equal ones."""
    in_first = {item: rank for rank, item in enumerate(first, start=1)}
    in_second = {item: rank for rank, item in enumerate(second, start=1)}
    found = [
        Place(item, in_first.get(item), in_second.get(item))
        for item in dict.fromkeys((*first, *second))
    ]
    return sorted(found, key=lambda one: min(one.first or 1 << 30, one.second or 1 << 30))


def overlap(first: Sequence[str], second: Sequence[str], k: int) -> float | None:
    """Share of the first k places that hold the same items; None where both lists are empty.

    Of lists shorter than k, the share of the longer one.
    """
    ours, theirs = set(first[:k]), set(second[:k])
    longest = max(len(ours), len(theirs))
    return len(ours & theirs) / longest if longest else None


def kendall(first: Sequence[str], second: Sequence[str]) -> float | None:
    """Kendall's tau of the items in both lists: 1 for the same order, -1 for the reverse.

    None where fewer than two items are in both.
    """
    in_second = {item: rank for rank, item in enumerate(second)}
    ranks = [in_second[item] for item in first if item in in_second]
    number = len(ranks) * (len(ranks) - 1) // 2
    if not number:
        return None
    agreeing = sum(low < high for at, low in enumerate(ranks) for high in ranks[at + 1 :])
    return 2 * agreeing / number - 1
