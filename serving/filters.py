"""Filter: compile categories, exclusions and seen items into one mask of eligible items.

What the request itself demands always holds: its categories and its exclusions are never relaxed,
and where they leave nothing the list is empty and says so. Only the rule that leaves out the
history gives way, where nothing else is left; the reply then says that too.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from recsys.data.item_mask import ItemMask
from serving.bundle.load import Bundle
from serving.query import MAX_NAMED, Query
from serving.schemas import Degraded

Allowed = NDArray[np.bool_]
SEEN_ITEMS_SHOWN = Degraded("seen_items_shown")


def eligible_items(query: Query, bundle: Bundle) -> tuple[ItemMask, tuple[Degraded, ...]]:
    """Compile the eligible items, and say what the filters could not do."""
    left_out = [*_rows_of(query.request.exclude, bundle), query.item_row]
    if query.request.filter.categories is None:
        rows = np.array(left_out, np.int64)
        if query.surface.exclude_seen:
            rows = np.concatenate([rows, query.seen])
        mask = ItemMask.all_but(bundle.num_item_rows, rows)
        if mask.count():
            return mask, ()

    notes: list[Degraded] = []
    allowed = _in_categories(query, bundle, notes)
    allowed[[0, query.item_row]] = False
    in_categories = bool(allowed.any())
    allowed[left_out] = False
    if not allowed.any():
        why = "exclude" if in_categories else "filter.categories"
        return ItemMask(allowed), (*notes, Degraded("nothing_eligible", why))

    if query.surface.exclude_seen and len(query.seen):
        unseen = allowed.copy()
        unseen[query.seen] = False
        if unseen.any():
            return ItemMask(unseen), tuple(notes)
        notes.append(SEEN_ITEMS_SHOWN)
    return ItemMask(allowed), tuple(notes)


def _rows_of(item_ids: list[str], bundle: Bundle) -> list[int]:
    rows = (bundle.catalogue.row_of(item_id) for item_id in item_ids)
    return [row for row in rows if row is not None]


def _in_categories(query: Query, bundle: Bundle, notes: list[Degraded]) -> Allowed:
    names = query.request.filter.categories
    if names is None:
        return np.ones(bundle.num_item_rows, np.bool_)
    found = {name: bundle.catalogue.category_names.row_of(name) for name in names}
    unknown = [name for name, row in found.items() if not row]
    notes.extend(Degraded("unknown_category", name) for name in unknown[:MAX_NAMED])
    if len(unknown) > MAX_NAMED:
        notes.append(Degraded("unknown_categories", f"{len(unknown) - MAX_NAMED} more"))
    allowed = np.zeros(bundle.num_item_rows, np.bool_)
    allowed[bundle.catalogue.rows_in_categories([row for row in found.values() if row])] = True
    return allowed
