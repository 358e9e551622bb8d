"""Decide which items a list may show, and record why each other item is left out.

No other module leaves an item out of a list. The reasons, in the order in which `why` reports them:

    hidden on every surface, or by a rule of this one    always
    refused by the visitor                               always
    the request's ``exclude``, and its own item          always
    shown on an earlier page                             always
    in the history                                       unless nothing else is left
    shown to the user lately                             always
    not among the request's candidates                   always; the history is then allowed
    not found by the search                              always
    outside the surface's filter or domain               always
    outside the request's filter                         always

If only items of the history are left they are shown, and the reply says ``seen_items_shown``; if
nothing is left at all the list is empty, and the reply says ``nothing_eligible``.

A cursor names what the earlier pages of a list showed, and the moment of the first one. It needs
no memory in the server, so that any worker of any server can read it, after a swap or a restart
too. It is not signed: who changes it changes what their own list leaves out.

Axes: N item rows.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from recsys.data.filters import parse
from recsys.data.top_k import ItemMask
from serving.arrangement.rules import RuleRows
from serving.bundle.load import Bundle
from serving.configuration.rules import Rule
from serving.filtering.compile import in_categories, in_domain, matching
from serving.items import Searched
from serving.live import LiveState
from serving.online.store import NOBODY, Visitor
from serving.query import MAX_NAMED, Query, session_rows
from serving.schemas import MAX_CURSOR, Degraded, WhyNotCode

Mask = NDArray[np.bool_]
Rows = NDArray[np.int64]
NO_ROWS: Rows = np.empty(0, np.int64)
SEEN_ITEMS_SHOWN = Degraded("seen_items_shown")
BY_REQUEST = "the request's filter leaves it out"


START = "start"
"""Cursor of a request for the first page."""
MAX_SHOWN = 1_000
"""Items of all pages together; there is no cursor after them."""
MAX_CURSOR_BYTES = 1 << 20


class CursorError(ValueError):
    """A cursor that no reply has given."""


class Cursor(NamedTuple):
    """Position of a visitor in a list."""

    now_ms: int
    """The clock of the first page; later pages are made as of the same moment."""
    shown: tuple[str, ...]
    """Items of the pages so far."""

    def after(self, item_ids: Sequence[str]) -> str | None:
        """Write the cursor after a page; None if it is the last."""
        shown = [*self.shown, *item_ids]
        if not item_ids or len(shown) >= MAX_SHOWN:
            return None
        packed = zlib.compress(orjson.dumps([self.now_ms, shown]), 1)
        text = base64.urlsafe_b64encode(packed).rstrip(b"=").decode()
        return text if len(text) <= MAX_CURSOR else None


def read_cursor(text: str, now_ms: int) -> Cursor:
    """Read what a reply gave, or ``start``.

    Raises:
        CursorError: It is neither.
    """
    if text == START:
        return Cursor(now_ms, ())
    try:
        packed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        inflate = zlib.decompressobj()
        first_ms, shown = orjson.loads(inflate.decompress(packed, MAX_CURSOR_BYTES))
        if not isinstance(first_ms, int) or not 0 <= first_ms < 1 << 48:
            raise ValueError
        if len(shown) > MAX_SHOWN or not all(isinstance(item_id, str) for item_id in shown):
            raise ValueError
    except (ValueError, TypeError, binascii.Error, zlib.error):
        raise CursorError(
            f"cursor is neither {START!r} nor one that a reply gave; send it unchanged, or begin "
            f"again with {START!r}"
        ) from None
    return Cursor(first_ms, tuple(shown))


class Exclusion(NamedTuple):
    """One reason to leave items out; it has either the items or those that it lets through."""

    code: WhyNotCode
    detail: str
    rows: Rows | None = None
    """The items that are left out."""
    allowed: Mask | None = None
    """Every other item is left out, [N]."""
    part: str = ""
    """Part of the request to report if no item is let through."""

    def holds_for(self, item_row: int) -> bool:
        """True if this leaves an item out."""
        if self.allowed is not None:
            return not self.allowed[item_row]
        return self.rows is not None and item_row in self.rows


class Eligible(NamedTuple):
    """The items that a list may show, and the reasons for all others."""

    mask: ItemMask
    exclusions: Sequence[Exclusion]
    notes: tuple[Degraded, ...]
    """Unknown names, and conditions that were relaxed."""
    shown: tuple[str, ...]
    """Items that are left out because the user was shown them lately."""

    def why(self, item_row: int) -> Exclusion | None:
        """Return the first reason that leaves an item out; None if the list may show it."""
        return next((one for one in self.exclusions if one.holds_for(item_row)), None)


@dataclass(frozen=True, kw_only=True)
class Exclusions:
    """Decides what lists of one bundle leave out."""

    bundle: Bundle
    rule_rows: RuleRows
    live: LiveState

    @cached_property
    def everything(self) -> ItemMask:
        """Mask of a list that leaves nothing out."""
        return ItemMask.all(self.bundle.num_item_rows)

    def decide(
        self,
        query: Query,
        rules: Sequence[Rule] = (),
        searched: Searched | None = None,
        page: Cursor | None = None,
        wished: Sequence[Exclusion] = (),
        visitor: Visitor = NOBODY,
        now_ms: int = 0,
    ) -> Eligible:
        """Decide for one list.

        Args:
            rules: The rules that hold for the request.
            searched: What the request's text found; None without a text.
            page: End of the page before; None for a first page.
            wished: Exclusions by wishes of the visitor.
            visitor: Names what the user was shown lately; if it does not, the store is read.
            now_ms: The clock in unix milliseconds.

        Raises:
            FilterError: A filter names a property that the bundle does not have, or another kind.
        """
        lately, shown, notes = self._shown_lately(query, visitor, now_ms)
        always = [*wished, *self._left_out(query, rules, page)]
        masks, unknown = self._masks(query, searched)
        found = () if searched is None else searched.notes
        mask, exclusions, lost = self._combined(query, always, lately, masks)
        return Eligible(mask, exclusions, (*notes, *found, *unknown, *lost), shown)

    def _combined(
        self,
        query: Query,
        always: Sequence[Exclusion],
        lately: Sequence[Exclusion],
        masks: Sequence[Exclusion],
    ) -> tuple[ItemMask, Sequence[Exclusion], tuple[Degraded, ...]]:
        """Combine all reasons; the history gives way if nothing else is left."""
        num_rows, has_candidates = self.bundle.num_item_rows, query.request.candidates is not None
        parts = [one.rows for one in (*always, *lately) if one.rows is not None]
        own = np.concatenate(parts) if parts else NO_ROWS
        reported = (*always, *lately, *masks[::-1])
        leaves_seen = query.surface.exclude_seen and not has_candidates and len(query.seen) > 0
        with_history = reported
        if leaves_seen:
            detail = "the visitor has had it, and this surface shows what is new"
            history = Exclusion("in_history", detail, rows=query.seen)
            with_history = (*always, history, *lately, *masks[::-1])
        allowed, empty = _intersect(masks)
        if allowed is None:
            rows = own
            if leaves_seen:
                rows = np.concatenate([own, query.seen]) if len(own) else query.seen
            mask = ItemMask.all_but(num_rows, rows) if len(rows) else self.everything
            if mask.count():
                return mask, with_history if leaves_seen else reported, ()
            allowed = np.ones(num_rows, np.bool_)
        allowed[[0, query.item_row]] = False
        in_filter = bool(allowed.any())
        allowed[own] = False
        if not allowed.any():
            part = "candidates" if has_candidates else "exclude" if in_filter else empty
            return ItemMask(allowed), reported, (Degraded("nothing_eligible", part),)
        if not leaves_seen:
            return ItemMask(allowed), reported, ()
        unseen = allowed.copy()
        unseen[query.seen] = False
        if not unseen.any():
            return ItemMask(allowed), reported, (SEEN_ITEMS_SHOWN,)
        return ItemMask(unseen), with_history, ()

    def _left_out(
        self, query: Query, rules: Sequence[Rule], page: Cursor | None
    ) -> Iterator[Exclusion]:
        """List what no filter brings back: hidden items and those that the request names."""
        if len(self.live.hidden):
            yield Exclusion("hidden", "it is hidden on every surface", rows=self.live.hidden)
        for rule in rules:
            if rule.kind == "hide":
                detail = f"rule {rule.name!r} hides it on this surface"
                yield Exclusion("hidden", detail, rows=self.rule_rows.hidden(rule))
        if query.request.exclude or query.item_row:
            own = (query.item_row,) if query.item_row else ()
            named = self._find_rows(query.request.exclude, *own)
            yield Exclusion("excluded", "the request leaves it out", rows=named)
        if page is not None:
            detail = "a page before this one showed it"
            yield Exclusion("on_an_earlier_page", detail, rows=self._find_rows(page.shown))

    def _shown_lately(
        self, query: Query, visitor: Visitor, now_ms: int
    ) -> tuple[Sequence[Exclusion], tuple[str, ...], tuple[Degraded, ...]]:
        """List the items that the user was shown lately, and note a store that failed."""
        within, shown = query.surface.not_shown_within, visitor.shown
        notes: tuple[Degraded, ...] = ()
        if within is None:
            return (), (), ()
        if shown is None:
            since_ms = now_ms - int(1_000 * within.total_seconds())
            shown, notes = self.live.shown_items(query.request, since_ms)
        detail = f"it was shown to the visitor within {within}"
        lately = Exclusion("filtered", detail, rows=self._find_rows(shown))
        return (lately,), tuple(shown), notes

    def _masks(
        self, query: Query, searched: Searched | None
    ) -> tuple[list[Exclusion], list[Degraded]]:
        """Compile the masks of the request, the surface, a search and candidates.

        Returns:
            One exclusion for each that there is, and a note for each name that is unknown.
        """
        request, bundle = query.request, self.bundle
        masks: list[Exclusion] = []
        notes: list[Degraded] = []

        def take(code: WhyNotCode, detail: str, allowed: Mask, part: str) -> None:
            masks.append(Exclusion(code, detail, allowed=allowed, part=part))

        names, where = request.filter.categories, request.filter.where
        if names is not None:
            _note_unknown(names, bundle, notes)
            take("filtered", BY_REQUEST, in_categories(names, bundle), "filter.categories")
        if where is not None:
            take("filtered", BY_REQUEST, matching(parse(where), bundle), "filter.where")
        surface, limits = query.surface, "surface" if request.query is None else "query"
        shows = f"surface {surface.name!r} shows only items of "
        if surface.filter is not None:
            found = matching(parse(surface.filter), bundle)
            take("not_on_surface", f"{shows}{surface.filter!r}", found, limits)
        domain = request.context.domain if surface.domain == "restrict" else None
        if domain is not None:
            found = in_domain(domain, bundle)
            take("not_on_surface", f"{shows}domain {domain!r}", found, limits)
        if searched is not None:
            detail = f"its title does not have the words {request.query!r}"
            take("not_found", detail, self._only(searched.item_rows), limits)
        if request.candidates is not None:
            chosen = session_rows(request.candidates, bundle, notes)
            take("not_a_candidate", "the request has other candidates", self._only(chosen), "")
        return masks, notes

    def _only(self, item_rows: Sequence[int] | Rows) -> Mask:
        """Build a mask of some rows alone, [N]."""
        allowed = np.zeros(self.bundle.num_item_rows, np.bool_)
        allowed[np.asarray(item_rows, np.int64)] = True
        return allowed

    def _find_rows(self, item_ids: Iterable[str], *others: int) -> Rows:
        """Look items up, unknown ones are left out; others follow by their rows."""
        rows = map(self.bundle.catalogue.row_of, item_ids)
        return np.array([*(row for row in rows if row is not None), *others], np.int64)


def _intersect(masks: Sequence[Exclusion]) -> tuple[Mask | None, str]:
    """Return the items that all masks let through, and the part after which none was left."""
    allowed, part = None, "filter.categories"
    for mask in masks:
        if allowed is None and mask.allowed is not None:
            allowed, part = mask.allowed.copy(), mask.part
        elif allowed is not None and allowed.any() and mask.allowed is not None:
            allowed &= mask.allowed
            part = mask.part
    return allowed, part


def _note_unknown(names: list[str], bundle: Bundle, notes: list[Degraded]) -> None:
    known = bundle.catalogue.category_names
    unknown = [name for name in dict.fromkeys(names) if not known.row_of(name)]
    notes.extend(Degraded("unknown_category", name) for name in unknown[:MAX_NAMED])
    if len(unknown) > MAX_NAMED:
        notes.append(Degraded("unknown_categories", f"{len(unknown) - MAX_NAMED} more"))
