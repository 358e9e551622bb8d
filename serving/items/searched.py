"""The items that a text finds, for a list."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recsys.data.item_mask import ItemMask
from recsys.data.top_k import OneList
from recsys.models.text_search.search import Candidates, TextSearch
from recsys.models.text_search.tokens import shared_parts, split
from serving.items.title_search import TitleIndex
from serving.schemas import Degraded

MAX_FOUND = 1_000
LEAST_SHARED = 0.4
"""Share of a query's parts of words that a title has to have where no item has a word of it."""


@dataclass(frozen=True)
class Searched:
    """Items found by a text, best first."""

    item_rows: tuple[int, ...]
    notes: tuple[Degraded, ...] = ()
    """Notes on a corrected query, or that no item has any of its words."""
    search: TextSearch | None = None
    candidates: Candidates | None = None
    """Features of each item; None if titles alone were searched."""

    def listed(self, eligible: ItemMask, personal: NDArray[np.int64] | None = None) -> OneList:
        """List what may be shown; scores fall with the place.

        Args:
            personal: Some or all of the items in the order of the user's own list.
        """
        rows = np.array(self.item_rows, np.int64)
        if personal is not None and self.search is not None and self.candidates is not None:
            rows, _ = self.search.order(self.candidates, self.candidates.personal(personal))
        rows = rows[eligible.allows(rows)]
        return OneList((1 / np.arange(1, len(rows) + 1)).astype(np.float32), rows)


@dataclass(frozen=True)
class ItemSearch:
    """Finds items by a text in one bundle."""

    titles: TitleIndex
    text_search: TextSearch | None
    popularity: NDArray[np.float32]
    """Popularity by item row, 0 to 1, [N]."""
    title_of: Callable[[int], str]
    """Gives an item's title."""

    def find(self, query: str) -> Searched:
        """Find items by their titles, and where the bundle can by all their words and spellings.

        Words that no title has are corrected.
        """
        found, notes = self.titles.search(query, MAX_FOUND), tuple[Degraded, ...]()
        known = self.text_search is not None and self.text_search.words.knows(split(query))
        if not found and not known and (corrected := self.titles.corrected(query)) is not None:
            found = self.titles.search(corrected, MAX_FOUND)
            notes, query = (Degraded("corrected_query", corrected),), corrected
        if self.text_search is None or not query.strip():
            return Searched(tuple(found), notes)
        candidates = self.text_search.candidates(query, found, self.popularity)
        rows, _ = self.text_search.order(candidates, candidates.features)
        if not candidates.has_word:
            words = split(query)
            alike = [shared_parts(words, split(self.title_of(int(row)))) for row in rows]
            rows = rows[np.array(alike, np.float64) >= LEAST_SHARED]
            notes = (Degraded("no_word_found"),) if len(rows) else ()
        return Searched(tuple(rows.tolist()), notes, self.text_search, candidates)
