"""Reasons: a few words on why an item is in the list, from the source that put it there.

Axes: k items of the list.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from recsys.models.item_to_item import ItemToItem
from serving.bundle.load import Bundle
from serving.query import Query
from serving.schemas import Source

Rows = NDArray[np.int64]
FOR_A_HISTORY = {
    "two_tower": "fits the history",
    "sequence": "comes next after the history",
    "ensemble": "comes next after the history",
    "generative": "was generated from the history",
}
"""What each source says of an item that no other one explains better."""


def reasons(
    item_rows: Sequence[int],
    sources: Sequence[Source],
    query: Query,
    bundle: Bundle,
    *,
    names_history: bool = True,
) -> list[str]:
    """Say why each item is recommended.

    Args:
        names_history: Whether a reason may name items of the user's stored history; without it,
            only items that the request itself sent are named.
    """
    seeds = np.zeros(len(item_rows), np.int64)
    if bundle.item_to_item is not None:
        seeds = strongest_seeds(np.array(item_rows, np.int64), query.history, bundle.item_to_item)
    texts = bundle.catalogue.display_texts
    sent = set(query.sent.tolist())
    found = []
    for row, seed, source in zip(item_rows, seeds.tolist(), sources, strict=True):
        if source == "item_to_item" and seed:
            named = names_history or seed in sent
            found.append(f"goes with {texts[seed] if named else 'the history'}")
        elif source == "content":
            like = texts[query.item_row] if query.item_row else "the history"
            new = not query.item_row and row >= bundle.num_released_rows
            found.append(f"is about the same as {like}{', and is new' if new else ''}")
        elif source == "two_tower" and query.item_row:
            found.append(f"is like {texts[query.item_row]}")
        else:
            found.append(FOR_A_HISTORY.get(source, "popular"))
    return found


def strongest_seeds(item_rows: Rows, history: Rows, model: ItemToItem) -> Rows:
    """Find the event of the history that adds most to each item's score, [k]; 0 if none does.

    Args:
        item_rows: Distinct items, [k].
        history: Item rows, oldest first.
    """
    offsets, rows, weights = (tensor.numpy() for tensor in model.neighbours)
    best, seeds = np.zeros(len(item_rows)), np.zeros(len(item_rows), np.int64)
    if len(item_rows) == 0:
        return seeds
    order = np.argsort(item_rows)
    latest = history[-model.config.max_history :][::-1]
    for recency, seed in enumerate(latest.tolist(), start=1):
        if seed >= model.num_item_rows:
            continue
        own = slice(offsets[seed], offsets[seed + 1])
        place = order[np.searchsorted(item_rows, rows[own], sorter=order) % len(order)]
        listed = item_rows[place] == rows[own]
        place, weight = place[listed], weights[own][listed] * recency**-model.config.history_power
        stronger = weight > best[place]
        best[place[stronger]], seeds[place[stronger]] = weight[stronger], seed
    return seeds
