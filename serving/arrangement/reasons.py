"""The items of a reply, each with its reason."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from recsys.models.names import CONTENT, MODELS, TWO_TOWER
from recsys.retrieval.ranked import RankedItems
from serving.bundle.load import Bundle
from serving.items import ItemCards
from serving.query import Query
from serving.schemas import RecommendedItem
from serving.surfaces import RULES, SEARCH

BY_SOURCE = {
    **{one.name: one.reason for one in MODELS},
    RULES: "is put here by a rule",
    SEARCH: "is what was searched for",
}
"""Reason of each source, unless another one explains an item better."""


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
    rows, sources = ranked.item_rows.tolist(), ranked.leading(RULES)
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
