"""The table of queries: who found the item, at which rank; a window at a time.

Axes: M queries.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pipelines.dashboard.context import Context
from pipelines.dashboard.data.items import catalogue_of, user_ids, users_matching
from pipelines.dashboard.query import Query
from pipelines.dashboard.why.outcomes import OUTCOMES, gain
from pipelines.dashboard.why.shown import Shown
from pipelines.pages.columns import counts, numbers, texts
from pipelines.pages.document import Cell, Column, Link, LinkedCell, Rows, Window

ALL = "all"
NOWHERE = 255
"""Sorts a rank that is not there behind all others."""


def columns_of(first: str, second: str) -> list[Column]:
    """Name the columns."""
    return [
        *texts("user", "held-out item"),
        *counts("events before"),
        *counts(first, second, note="rank of the item"),
        *numbers("gain", format="signed", note="of the second side, by the discount of NDCG@100"),
        *texts("outcome"),
    ]


def rows_of(context: Context, shown: Shown, query: Query, window: Window) -> Rows:
    """Return a window of the queries."""
    kept = _kept(context, shown, query, window.search)
    order = _ordered(shown, kept, window)
    part = order[window.start : window.start + window.length]
    return Rows(total=len(shown.pairs.known), found=len(kept), rows=_cells(context, shown, part))


def window_rows(
    context: Context, shown: Shown, query: Query
) -> Sequence[Sequence[Cell | LinkedCell]]:
    """Return the first rows, for a file."""
    return rows_of(context, shown, query, Window(length=25)).rows


def example_users(shown: Shown) -> list[str]:
    """Name the users who gain and who lose most."""
    known = shown.pairs.known
    if shown.features is None or not len(known):
        return []
    gains = gain(known)
    rows = {int(known.user_rows[place]) for place in (gains.argmax(), gains.argmin())}
    return sorted(user_ids(shown.features, sorted(rows)).values())


def _kept(context: Context, shown: Shown, query: Query, text: str) -> NDArray[np.int64]:
    """Positions of the queries that the filters and the search leave."""
    known = shown.pairs.known
    keep = np.ones(len(known), np.bool_)
    outcome = query.choice("outcome", (ALL, *OUTCOMES), ALL)
    if outcome != ALL:
        keep &= shown.outcomes == OUTCOMES.index(outcome)
    if shown.features is not None and (item := query.text("item")):
        keep &= known.item_rows == (catalogue_of(context, shown.features).row_of(item) or -1)
    if shown.features is not None and text:
        titles = catalogue_of(context, shown.features).matching(text)
        rows = known.item_rows
        inside = (rows > 0) & (rows < len(titles))
        found = np.isin(known.user_rows, users_matching(shown.features, text).to_numpy())
        found[inside] |= titles[rows[inside]]
        keep &= found
    return np.flatnonzero(keep)


def _ordered(shown: Shown, kept: NDArray[np.int64], window: Window) -> NDArray[np.int64]:
    """Order queries by a column; without one, the greatest gains first."""
    known = shown.pairs.known

    def rank(place: int) -> NDArray[np.int16]:
        ranks = known.ranks[place][kept].astype(np.int16)
        return np.where(ranks == 0, NOWHERE, ranks)

    keys: dict[int | None, NDArray[np.generic]] = {
        0: known.user_rows[kept],
        1: known.item_rows[kept],
        2: known.places[kept],
        6: shown.outcomes[kept],
    }
    if window.order_by in (3, 4):
        keys[window.order_by] = rank(window.order_by - 3)
    descending = window.descending or window.order_by not in range(7)
    key = keys.get(window.order_by)
    if key is None:
        key = gain(known)[kept]
    signed = -key.astype(np.float64) if descending else key
    return kept[np.argsort(signed, kind="stable")]


def _cells(
    context: Context, shown: Shown, places: NDArray[np.int64]
) -> list[list[Cell | LinkedCell]]:
    known = shown.pairs.known
    rows = known.user_rows[places].tolist()
    names = {} if shown.features is None else user_ids(shown.features, rows)
    catalogue = None if shown.features is None else catalogue_of(context, shown.features)
    gains = gain(known)[places]
    labels = [*shown.labels.values()]
    found: list[list[Cell | LinkedCell]] = []
    for number, place in enumerate(places.tolist()):
        user = names.get(rows[number])
        item = int(known.item_rows[place])
        link = Link(label="", page="why", parameters={**shown.parameters, "user": user or ""})
        ranks = [int(one[place]) or None for one in known.ranks[:2]]
        found.append(
            [
                "not known" if user is None else LinkedCell(text=user, link=link),
                "not known" if catalogue is None else catalogue.title(item),
                int(known.places[place]),
                *ranks,
                float(gains[number]),
                labels[shown.outcomes[place]],
            ]
        )
    return found
