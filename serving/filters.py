"""Filter: compile the request's filter, exclusions and seen items into one mask of eligible items.

What the request itself demands always holds: its filter and its exclusions are never relaxed, and
where they leave nothing the list is empty and says so. Only the rule that leaves out the history
gives way, where nothing else is left; the reply then says that too.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from recsys.data.item_mask import ItemMask
from serving.bundle.load import Bundle
from serving.filtering.compile import in_categories, in_domain, matching
from serving.filtering.expression import parse
from serving.query import MAX_NAMED, NOTHING, Query, session_rows
from serving.schemas import Degraded, Filter

Allowed = NDArray[np.bool_]
Rows = NDArray[np.int64]
SEEN_ITEMS_SHOWN = Degraded("seen_items_shown")


class Limits(NamedTuple):
    """What a list may show, whatever its request demands."""

    left_out: Rows = NOTHING
    allowed: Allowed | None = None
    """[N], None for every item."""
    notes: tuple[Degraded, ...] = ()
    """What could not be known."""
    shown: tuple[str, ...] = ()
    """Items that the user was shown lately, and that are left out for it."""


ANYTHING = Limits()


def allowed_on(where: str | None, domain: str | None, bundle: Bundle) -> Allowed | None:
    """Compile what a surface lets through: its filter, and a domain that restricts it.

    Returns:
        [N], None for every item.

    Raises:
        FilterError: The bundle has no such property.
    """
    allowed = None if where is None else matching(parse(where), bundle)
    if domain is None:
        return allowed
    found = in_domain(domain, bundle)
    return found if allowed is None else allowed & found


def eligible_items(
    query: Query, bundle: Bundle, limits: Limits = ANYTHING
) -> tuple[ItemMask, tuple[Degraded, ...]]:
    """Compile the eligible items, and say what the filters could not do.

    Raises:
        FilterError: The filter names a property that the bundle does not have, or another kind.
    """
    own = [*_rows_of(query.request.exclude, bundle), query.item_row]
    left_out = np.concatenate([np.array(own, np.int64), limits.left_out])
    notes: list[Degraded] = []
    allowed, empty = _let_through(query.request.filter, bundle, notes)
    if limits.allowed is not None:
        if allowed is None or allowed.any():
            empty = "query" if query.request.query is not None else "surface"
        allowed = limits.allowed if allowed is None else allowed & limits.allowed
    if query.request.candidates is not None:
        return _among(query, bundle, allowed, left_out, notes)
    if allowed is None:
        rows = left_out
        if query.surface.exclude_seen:
            rows = np.concatenate([rows, query.seen])
        mask = ItemMask.all_but(bundle.num_item_rows, rows)
        if mask.count():
            return mask, ()
        allowed = np.ones(bundle.num_item_rows, np.bool_)

    allowed[[0, query.item_row]] = False
    in_filter = bool(allowed.any())
    allowed[left_out] = False
    if not allowed.any():
        why = "exclude" if in_filter else empty
        return ItemMask(allowed), (*notes, Degraded("nothing_eligible", why))

    if query.surface.exclude_seen and len(query.seen):
        unseen = allowed.copy()
        unseen[query.seen] = False
        if unseen.any():
            return ItemMask(unseen), tuple(notes)
        notes.append(SEEN_ITEMS_SHOWN)
    return ItemMask(allowed), tuple(notes)


def _among(
    query: Query, bundle: Bundle, allowed: Allowed | None, left_out: Rows, notes: list[Degraded]
) -> tuple[ItemMask, tuple[Degraded, ...]]:
    """Allow the request's own candidates, items of the history too."""
    among = np.zeros(bundle.num_item_rows, np.bool_)
    among[session_rows(query.request.candidates or [], bundle, notes)] = True
    if allowed is not None:
        among &= allowed
    among[[0, query.item_row]] = False
    among[left_out] = False
    if not among.any():
        notes.append(Degraded("nothing_eligible", "candidates"))
    return ItemMask(among), tuple(notes)


def _rows_of(item_ids: list[str], bundle: Bundle) -> list[int]:
    rows = (bundle.catalogue.row_of(item_id) for item_id in item_ids)
    return [row for row in rows if row is not None]


def _let_through(
    filter_: Filter, bundle: Bundle, notes: list[Degraded]
) -> tuple[Allowed | None, str]:
    """Tell which items the filter lets through, and what of it to name where it leaves none.

    None where there is no filter.
    """
    allowed, empty = None, "filter.categories"
    if filter_.categories is not None:
        _note_unknown(filter_.categories, bundle, notes)
        allowed = in_categories(filter_.categories, bundle)
    if filter_.where is not None:
        if allowed is None or allowed.any():
            empty = "filter.where"
        found = matching(parse(filter_.where), bundle)
        allowed = found if allowed is None else allowed & found
    return allowed, empty


def _note_unknown(names: list[str], bundle: Bundle, notes: list[Degraded]) -> None:
    known = bundle.catalogue.category_names
    unknown = [name for name in dict.fromkeys(names) if not known.row_of(name)]
    notes.extend(Degraded("unknown_category", name) for name in unknown[:MAX_NAMED])
    if len(unknown) > MAX_NAMED:
        notes.append(Degraded("unknown_categories", f"{len(unknown) - MAX_NAMED} more"))
