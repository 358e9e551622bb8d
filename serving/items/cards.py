"""Item cards: what a reply or a page says of an item.

Decoding a title and categories costs microseconds an item, so cards of popular items are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from serving.bundle.catalogue import MAX_TITLE
from serving.bundle.load import Bundle
from serving.schemas import ItemCard

MAX_KEPT = 16_384
"""Cards in memory, about 10 MB."""


class ItemCards:
    """The cards of a bundle's items by row; safe to share between threads."""

    def __init__(self, bundle: Bundle) -> None:
        catalogue, semantic_ids = bundle.catalogue, bundle.semantic_ids

        # Nothing here refers to itself: a cycle would keep a swapped bundle's files open.
        @lru_cache(MAX_KEPT)
        def made(item_row: int) -> ItemCard:
            return ItemCard(
                item_id=catalogue.item_ids[item_row],
                title=catalogue.display_texts[item_row][:MAX_TITLE] or None,
                categories=tuple(catalogue.categories_of(item_row)) or None,
                semantic_id=semantic_ids.text(item_row) or None if semantic_ids else None,
            )

        self.of: Callable[[int], ItemCard] = made
        """The card of an item row."""
