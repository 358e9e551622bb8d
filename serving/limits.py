"""What no list of a surface may show at a moment, whatever its request demands.

That is what was hidden, what a rule hides, what earlier pages or the last days have shown, what the
surface's own filter and domain leave out, and of a search what it did not find.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from serving.arrangement.slate import Arranger
from serving.bundle.load import Bundle
from serving.configuration.resolve import Resolved
from serving.cursor import Cursor
from serving.filters import Limits, allowed_on
from serving.items.searched import Searched
from serving.live import LiveState
from serving.query import Query
from serving.schemas import Degraded


@dataclass(frozen=True, kw_only=True)
class ListLimits:
    """Finds the limits of lists from one bundle."""

    bundle: Bundle
    arranger: Arranger
    live: LiveState

    def of(
        self,
        query: Query,
        resolved: Resolved,
        searched: Searched | None,
        page: Cursor | None,
        now_ms: int,
    ) -> Limits:
        """Give the limits of one list.

        Args:
            searched: What the request's text found; None where it has none.
            page: Where the page before ended; None where none is requested.
            now_ms: The clock in unix milliseconds.
        """
        surface = resolved.surface
        left_out = [self.live.hidden, self.arranger.rule_rows.hidden(resolved.rules)]
        notes: tuple[Degraded, ...] = ()
        lately: tuple[str, ...] = ()
        names = [] if page is None else list(page.shown)
        if surface.not_shown_within is not None:
            since_ms = now_ms - int(1_000 * surface.not_shown_within.total_seconds())
            shown, notes = self.live.shown_items(query.request, since_ms)
            names += shown
            lately = tuple(shown)
        if names:
            found = [row for row in map(self.bundle.catalogue.row_of, names) if row is not None]
            left_out.append(np.array(found, np.int64))
        domain = query.request.context.domain if surface.domain == "restrict" else None
        allowed = allowed_on(surface.filter, domain, self.bundle)
        if searched is not None:
            among = np.zeros(self.bundle.num_item_rows, np.bool_)
            among[list(searched.item_rows)] = True
            allowed = among if allowed is None else allowed & among
        return Limits(np.concatenate(left_out), allowed, notes, lately)
