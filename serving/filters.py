"""Filter: compile categories, exclusions and seen items into one mask of eligible items.

Where nothing is left, filters are relaxed and the reply says so: categories first, then seen items.
Items that the request excludes are never shown.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from recsys.data.item_mask import ItemMask
from serving.bundle.load import Bundle
from serving.query import Query

Allowed = NDArray[np.bool_]


def eligible_items(query: Query, bundle: Bundle) -> tuple[ItemMask, tuple[str, ...]]:
    """Compile the eligible items, and name the filters that had to be relaxed."""
    excluded = np.zeros(bundle.num_item_rows, np.bool_)
    excluded[_rows_of(query.request.exclude, bundle)] = True
    excluded[[0, query.item_row]] = True
    allowed = ~excluded

    in_categories = _in_categories(query, bundle)
    unseen: Allowed | None = None
    if query.surface.exclude_seen and len(query.seen):
        unseen = np.ones(bundle.num_item_rows, np.bool_)
        unseen[query.seen] = False

    given_up: list[str] = []
    wanted = allowed if in_categories is None else allowed & in_categories
    if not wanted.any() and in_categories is not None:
        given_up.append("everything_filtered: categories ignored")
        wanted = allowed
    fresh = wanted if unseen is None else wanted & unseen
    if not fresh.any() and wanted.any():
        given_up.append("everything_filtered: seen items shown")
        fresh = wanted
    if not fresh.any():
        given_up.append("everything_excluded")
    return ItemMask(fresh), tuple(given_up)


def _rows_of(item_ids: list[str], bundle: Bundle) -> list[int]:
    rows = (bundle.catalogue.row_of(item_id) for item_id in item_ids)
    return [row for row in rows if row is not None]


def _in_categories(query: Query, bundle: Bundle) -> Allowed | None:
    names = query.request.filter.categories
    if names is None:
        return None
    rows = (bundle.catalogue.category_names.row_of(name) for name in names)
    allowed = np.zeros(bundle.num_item_rows, np.bool_)
    allowed[bundle.catalogue.rows_in_categories([row for row in rows if row])] = True
    return allowed
