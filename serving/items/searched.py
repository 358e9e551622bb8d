"""The items that a text finds, for a list."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recsys.data.item_mask import ItemMask
from recsys.data.top_k import OneList
from serving.items.title_search import TitleIndex
from serving.schemas import Degraded

MAX_FOUND = 1_000


@dataclass(frozen=True)
class Searched:
    """What was found, best first."""

    item_rows: tuple[int, ...]
    notes: tuple[Degraded, ...] = ()
    """Which words were searched for instead."""

    def listed(self, eligible: ItemMask) -> OneList:
        """List what may be shown; scores fall with the place."""
        rows = np.array(self.item_rows, np.int64)
        rows = rows[eligible.allows(rows)]
        return OneList((1 / np.arange(1, len(rows) + 1)).astype(np.float32), rows)


def search_titles(titles: TitleIndex, query: str) -> Searched:
    """Find items by their titles; words that no title has are corrected."""
    found = titles.search(query, MAX_FOUND)
    if not found and (corrected := titles.corrected(query)) is not None:
        found = titles.search(corrected, MAX_FOUND)
        return Searched(tuple(found), (Degraded("corrected_query", corrected),))
    return Searched(tuple(found))
