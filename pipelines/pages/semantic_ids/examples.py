"""Example items with the items that share their prefixes and their nearest neighbours by content.

Chosen by rule: the most and the least popular items, each with another first code.

Axes: N item rows (row 0 is padding), M items with an ID, L levels, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pipelines.pages.semantic_ids.data import ReportedIds

NUM_EACH = 4
"""Popular items, and items of the tail."""
LISTED = 8
MOVED_EACH = 3
"""Moved items shown of each level that changed first."""
COMPANIONS = 3
MAX_TITLE = 200


@dataclass(frozen=True, kw_only=True)
class Listed:
    """An item of a list; ``num_shared`` of its first codes are the example's."""

    title: str
    semantic_id: str
    num_shared: int
    similarity: float
    """Cosine of the contents."""


@dataclass(frozen=True, kw_only=True)
class PrefixGroup:
    """Who shares the first ``num_shared`` codes of an example."""

    num_shared: int
    num_items: int
    """All items that do, the example left out, those of longer prefixes counted."""
    listed: list[Listed]
    """Those that share no more codes, the nearest by content first."""


@dataclass(frozen=True, kw_only=True)
class PrefixExample:
    """One item."""

    kind: Literal["popular", "tail", "spread"]
    title: str
    categories: list[str]
    popularity: int
    semantic_id: str
    groups: list[PrefixGroup]
    """Longest prefix first."""
    nearest: list[Listed]
    """Nearest by content."""


@dataclass(frozen=True, kw_only=True)
class MovedItem:
    """An item with an ID in both versions whose codes differ."""

    title: str
    before: str
    after: str
    num_kept: int
    """Codes at the beginning that stayed."""
    neighbours_before: list[str]
    """Titles of the items that had its longest prefix, the nearest by content first."""
    neighbours_after: list[str]


class Neighbourhood:
    """The catalogue's items that have an ID in one version, by item row."""

    def __init__(self, reported: ReportedIds, codes: Tensor) -> None:
        self.reported = reported
        self.codes = codes  # [N, L]
        self.rows = (codes[:, 0] >= 0).nonzero().flatten()  # [M]
        self.own = codes[self.rows]  # [M, L]

    def title(self, row: int) -> str:
        return self.reported.catalogue.titles[row][:MAX_TITLE]

    def text(self, row: int) -> str:
        return "-".join(str(code) for code in self.codes[row].tolist())

    def num_shared(self, row: int) -> Tensor:
        """Count the leading codes that each item shares with one, [M]; 0 for the item itself."""
        shared = (self.own == self.codes[row]).int().cumprod(1).sum(1)
        return torch.where(self.rows == row, 0, shared)

    def nearest(self, row: int, among: Tensor, shared: Tensor, most: int) -> list[Listed]:
        """List the items ``among`` [M] bool by similarity of content, equal ones by row."""
        places = among.nonzero().flatten()
        found = self.reported.vectors[self.rows[places]].float()
        own = self.reported.vectors[row].float()
        cosines = torch.nn.functional.cosine_similarity(found, own[None], dim=1)
        order = cosines.sort(descending=True, stable=True).indices[:most]
        return [
            Listed(
                title=self.title(int(self.rows[place])),
                semantic_id=self.text(int(self.rows[place])),
                num_shared=int(shared[place]),
                similarity=round(float(cosines[at]), 4),
            )
            for at, place in zip(order.tolist(), places[order].tolist(), strict=True)
        ]

    def companions(self, row: int) -> list[str]:
        """Name who stands closest by codes."""
        shared = self.num_shared(row)
        deepest = int(shared.max())
        if deepest == 0:
            return []
        listed = self.nearest(row, shared == deepest, shared, COMPANIONS)
        return [one.title for one in listed]

    def example(self, row: int, kind: Literal["popular", "tail", "spread"]) -> PrefixExample:
        """Show one item's surroundings."""
        shared = self.num_shared(row)
        catalogue = self.reported.catalogue
        groups = [
            PrefixGroup(
                num_shared=depth,
                num_items=int((shared >= depth).sum()),
                listed=self.nearest(row, shared == depth, shared, LISTED),
            )
            for depth in range(self.codes.shape[1] - 1, 0, -1)
        ]
        return PrefixExample(
            kind=kind,
            title=self.title(row),
            categories=list(catalogue.categories[row]),
            popularity=int(catalogue.popularity[row]),
            semantic_id=self.text(row),
            groups=groups,
            nearest=self.nearest(row, self.rows != row, shared, LISTED),
        )


def with_different_beginnings(rows: Sequence[int], codes: Tensor, most: int) -> list[int]:
    """Take rows in order while their first codes differ, then the first of the others."""
    first: dict[int, int] = {}
    for row in rows:
        first.setdefault(int(codes[row, 0]), row)
        if len(first) == most:
            break
    chosen = list(first.values())
    return [*chosen, *(row for row in rows[:most] if row not in chosen)][:most]


def prefix_examples(items: Neighbourhood) -> list[PrefixExample]:
    """Choose popular items and some of the tail; evenly spread rows where nothing is popular."""
    rows = items.rows.tolist()
    popularity = items.reported.catalogue.popularity
    if not popularity.any():
        step = max(1, len(rows) // (2 * NUM_EACH))
        return [items.example(row, "spread") for row in rows[::step][: 2 * NUM_EACH]]
    order = sorted(rows, key=lambda row: (-int(popularity[row]), row))
    popular = with_different_beginnings(order, items.codes, NUM_EACH)
    others = [row for row in reversed(order) if row not in popular]
    tail = with_different_beginnings(others, items.codes, NUM_EACH)
    return [
        *(items.example(row, "popular") for row in popular),
        *(items.example(row, "tail") for row in tail),
    ]


def moved_items(now: Neighbourhood, before: Neighbourhood) -> list[MovedItem]:
    """Choose the most popular moved items of each level that is the first to differ."""
    both = (now.codes[:, 0] >= 0) & (before.codes[:, 0] >= 0)
    kept = (now.codes == before.codes).int().cumprod(1).sum(1)
    popularity = now.reported.catalogue.popularity
    chosen: list[tuple[int, int]] = []
    for level in range(now.codes.shape[1]):
        rows = (both & (kept == level)).nonzero().flatten().tolist()
        rows.sort(key=lambda row: (-int(popularity[row]), row))
        chosen += [(row, level) for row in rows[:MOVED_EACH]]
    return [
        MovedItem(
            title=now.title(row),
            before=before.text(row),
            after=now.text(row),
            num_kept=level,
            neighbours_before=before.companions(row),
            neighbours_after=now.companions(row),
        )
        for row, level in chosen
    ]
