"""Items of one list with the parts of their scores, and lists merged by reciprocal rank.

Axes: n items listed, S sources.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from recsys.data.top_k import OneList
from recsys.kernels.one_query.library import load_library
from recsys.kernels.one_query.op import leading
from recsys.models.names import POPULARITY
from recsys.retrieval.blend.one import MergedOne, fused_one
from recsys.retrieval.blend.source_features import ABSENT, CONSTANT

Rows = NDArray[np.int64]
FILLER = POPULARITY.name
LAST = np.iinfo(np.int64).max


def compiled_or_why() -> str:
    """Return ``yes`` if lists are made by compiled functions, else the reason why not."""
    return load_library().reason or "yes"


class RankedItems(NamedTuple):
    """Items of one list, best first."""

    item_rows: Rows
    """[n]."""
    scores: NDArray[np.float32]
    """[n], never rising."""
    sources: tuple[str, ...]
    ranks: Rows
    """[n, S] from 1 in each source's list, 0 where it does not have the item."""
    contributions: NDArray[np.float32]
    """[n, S] what each source added to the score; 0 where it does not have the item."""

    @classmethod
    def of_merged(cls, merged: MergedOne, sources: tuple[str, ...]) -> RankedItems:
        """Take a merged list of these sources."""
        return cls(merged.item_rows, merged.scores, sources, merged.ranks, merged.contributions)

    def at(self, item_rows: Rows, places: Rows) -> RankedItems:
        """Take items in another order.

        Args:
            item_rows: Of the new list.
            places: Place of each in this list; -1 for an item of a rule.
        """
        known = places >= 0
        spread = known[:, None]
        return self._replace(
            item_rows=item_rows,
            scores=np.where(known, self.scores[places], np.float32(0)),
            ranks=np.where(spread, self.ranks[places], ABSENT),
            contributions=np.where(spread, self.contributions[places], np.float32(0)),
        )

    def joined(self, other: RankedItems) -> RankedItems:
        """Append the items that only another list has; they take the score of the last one."""
        new = np.flatnonzero(~np.isin(other.item_rows, self.item_rows))
        sources = tuple(dict.fromkeys((*self.sources, *other.sources)))
        number = len(self.item_rows)
        ranks = np.full((number + len(new), len(sources)), ABSENT, np.int64)
        contributions = np.zeros(ranks.shape, np.float32)
        for part, first, places in ((self, 0, np.arange(number)), (other, number, new)):
            columns = np.array([sources.index(name) for name in part.sources], np.int64)
            where = np.ix_(first + np.arange(len(places)), columns)
            ranks[where], contributions[where] = part.ranks[places], part.contributions[places]
        return RankedItems(
            item_rows=np.concatenate([self.item_rows, other.item_rows[new]]),
            scores=np.pad(self.scores, (0, len(new)), mode="edge"),
            sources=sources,
            ranks=ranks,
            contributions=contributions,
        )

    def leading(self, unranked: str) -> list[str]:
        """Return the source that added most to each item; among equals the better rank.

        Args:
            unranked: Name for an item that no source has.
        """
        if len(self.item_rows) == 0:
            return []
        if len(self.sources) == 1 and self.ranks.all():
            return [self.sources[0]] * len(self.item_rows)
        if (found := leading(self.ranks, self.contributions)) is not None:
            return [self.sources[place] if place >= 0 else unranked for place in found]
        present = self.ranks != ABSENT
        parts = np.where(present, self.contributions, -np.inf)
        most = parts == parts.max(1, keepdims=True)
        places = np.where(most & present, self.ranks, LAST).argmin(1)
        listed = present.any(1).tolist()
        return [
            self.sources[place] if there else unranked
            for place, there in zip(places.tolist(), listed, strict=True)
        ]

    def shares(self) -> list[dict[str, float]]:
        """Return the part of each item's score that each source added, largest first.

        Parts sum to 1; where weights are negative, the sizes do. Nothing where all added 0.
        """
        size = np.abs(self.contributions).sum(1, keepdims=True)
        parts = np.divide(
            self.contributions, size, out=np.zeros_like(self.contributions), where=size > 0
        )
        return [
            {
                self.sources[place]: round(float(own[place]), 4)
                for place in np.argsort(-own, kind="stable").tolist()
                if own[place] != 0
            }
            for own in parts
        ]


def with_new_items(ranked: RankedItems, seen: Rows, k: int, share: float) -> RankedItems:
    """Cut a list to k items, of which items of the history take at most a share.

    More of them follow where there are not enough others; the order stays.
    """
    is_seen = np.isin(ranked.item_rows, seen)
    others = is_seen & (np.cumsum(is_seen) > math.ceil(share * k))
    first = np.flatnonzero(~others)[:k]
    more = np.flatnonzero(others)[: k - len(first)]
    places = np.sort(np.concatenate([first, more]))
    return ranked.at(ranked.item_rows[places], places)


def by_reciprocal_rank(
    candidates: Mapping[str, OneList], weights: Mapping[str, float], k: int
) -> RankedItems:
    """Merge lists by their ranks; a fallback that is alone counts in full."""
    if len(candidates) == 1 and FILLER in candidates:
        rows = candidates[FILLER].item_rows[:k]
        ranks = np.arange(1, len(rows) + 1)
        shares = np.float32(weights[FILLER] or 1.0) / (CONSTANT + ranks).astype(np.float32)
        return RankedItems(rows, shares, (FILLER,), ranks[:, None], shares[:, None])
    used = {name: weights[name] for name in candidates}
    if not any(used.values()):
        used = dict.fromkeys(used, 1.0)
    weight = np.array(list(used.values()), np.float32)
    fused = fused_one(candidates, k, used)
    shares = np.where(fused.ranks == ABSENT, 0, weight / (CONSTANT + fused.ranks))
    shares = shares.astype(np.float32)
    return RankedItems(fused.item_rows, fused.scores, tuple(used), fused.ranks, shares)
