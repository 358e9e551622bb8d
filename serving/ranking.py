"""Merge the sources' lists into one, and build the items of a reply, with reasons if requested.

Surface ``home`` uses the bundle's learned blend if there is one; others merge by reciprocal rank.

Axes: k list length, n items listed, S sources, C candidates of a source.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from recsys.data.top_k import OneList
from recsys.kernels.one_query.op import leading
from recsys.models.names import CONTENT, MODELS, POPULARITY, TWO_TOWER
from recsys.retrieval.blend.one import MergedOne, fused_one
from recsys.retrieval.blend.source_features import ABSENT, CONSTANT
from serving.bundle.load import Bundle
from serving.items import ItemCards
from serving.query import Query
from serving.schemas import RecommendedItem
from serving.surfaces import RULES, SEARCH

Rows = NDArray[np.int64]
FILLER = POPULARITY.name
LAST = np.iinfo(np.int64).max
BY_SOURCE = {
    **{one.name: one.reason for one in MODELS},
    RULES: "is put here by a rule",
    SEARCH: "is what was searched for",
}
"""Reason of each source, unless another one explains an item better."""


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

    def leading(self) -> list[str]:
        """Return the source that added most to each item; among equals the better rank."""
        if len(self.item_rows) == 0:
            return []
        if (found := leading(self.ranks, self.contributions)) is not None:
            return [self.sources[place] if place >= 0 else RULES for place in found]
        present = self.ranks != ABSENT
        parts = np.where(present, self.contributions, -np.inf)
        most = parts == parts.max(1, keepdims=True)
        places = np.where(most & present, self.ranks, LAST).argmin(1)
        listed = present.any(1).tolist()
        return [
            self.sources[place] if there else RULES
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
    used = {name: weights[name] for name in candidates}
    if not any(used.values()):
        used = dict.fromkeys(used, 1.0)
    weight = np.array(list(used.values()), np.float32)
    if candidates.keys() == {FILLER}:
        rows = candidates[FILLER].item_rows[:k]
        ranks = np.arange(1, len(rows) + 1)
        shares = (weight / (CONSTANT + ranks)).astype(np.float32)
        return RankedItems(rows, shares, (FILLER,), ranks[:, None], shares[:, None])
    fused = fused_one(candidates, k, used)
    shares = np.where(fused.ranks == ABSENT, 0, weight / (CONSTANT + fused.ranks))
    shares = shares.astype(np.float32)
    return RankedItems(fused.item_rows, fused.scores, tuple(used), fused.ranks, shares)


def build_items(
    ranked: RankedItems | None, query: Query, bundle: Bundle, cards: ItemCards, names_history: bool
) -> list[RecommendedItem]:
    """Build the items of a reply, with reasons if requested.

    Args:
        names_history: Whether a reason may name items of the user's stored history; without it,
            only items that the request itself sent are named.
    """
    if ranked is None:
        return []
    rows, sources = ranked.item_rows.tolist(), ranked.leading()
    why: Sequence[str | None] = [None] * len(rows)
    shares: Sequence[dict[str, float] | None] = [None] * len(rows)
    if query.request.explain:
        why = _explain(rows, sources, query, bundle, names_history)
        shares = ranked.shares()
    return [
        RecommendedItem(card, score, source, reason, parts)
        for card, score, source, reason, parts in zip(
            map(cards.of, rows), ranked.scores.tolist(), sources, why, shares, strict=True
        )
    ]


def _explain(
    item_rows: Sequence[int],
    sources: Sequence[str],
    query: Query,
    bundle: Bundle,
    names_history: bool,
) -> list[str]:
    """Explain why each item is recommended, by the source that put it there."""
    rows = np.array(item_rows, np.int64)
    seeds = {
        name: model.strongest_seeds(rows, query.history)
        for name, model in bundle.item_weights.items()
        if name in sources
    }
    title_of = bundle.catalogue.title_of
    sent = set(query.sent.tolist())
    found = []
    for place, (row, source) in enumerate(zip(item_rows, sources, strict=True)):
        seed = int(seeds[source][place]) if source in seeds else 0
        if seed == row:
            found.append("was taken before")
        elif seed:
            named = names_history or seed in sent
            found.append(f"goes with {title_of(seed) if named else 'the history'}")
        elif source == CONTENT.name:
            like = title_of(query.item_row) if query.item_row else "the history"
            new = not query.item_row and row >= bundle.num_released_rows
            found.append(f"is about the same as {like}{', and is new' if new else ''}")
        elif source == TWO_TOWER.name and query.item_row:
            found.append(f"is like {title_of(query.item_row)}")
        else:
            outside = bundle.outside.get(source)
            found.append(outside.names.reason if outside else BY_SOURCE[source])
    return found
