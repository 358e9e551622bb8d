"""The table of queries: who found the item, at which rank; a window at a time.

Axes: M queries.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipelines.dashboard.context import Context
from pipelines.dashboard.data.items import catalogue_of, user_ids, users_matching
from pipelines.dashboard.query import Query
from pipelines.dashboard.why.outcomes import OUTCOMES, Contest, contest_of, gain
from pipelines.pages.charts import counts, numbers, texts
from pipelines.pages.document import Cell, Link, LinkedCell, Rows, Table, Window

ALL = "all"
NOWHERE = 255
"""Sorts a rank that is not there after all others."""
EXPORTED = 25


def queries_table(context: Context, shown: Contest, query: Query, title: str) -> Table:
    """List the queries, the second side's greatest gains first."""
    first, second = shown.names
    file = context.exported
    return Table(
        key="queries",
        title=title,
        note=f"Rank of the held-out item by {first} and {second} (of the first 100; empty if it is "
        "not there). A user leads to the history and both lists.",
        columns=[
            *texts("user", "held-out item"),
            *counts("events before"),
            *counts(first, second, note="rank of the item"),
            *numbers("gain", format="signed", note="of the second side, by NDCG@100's discount"),
            *texts("outcome"),
        ],
        source=None if file else "queries",
        rows=rows_of(context, shown, query, Window(length=EXPORTED)).rows if file else (),
        origins=shown.origins,
    )


def window_of_queries(context: Context, query: Query, window: Window) -> Rows:
    """Return a window of the table of queries."""
    return rows_of(context, contest_of(context, query), query, window)


def rows_of(context: Context, shown: Contest, query: Query, window: Window) -> Rows:
    """Return a window of the queries."""
    kept = _kept(context, shown, query, window.search)
    part = _ordered(shown, kept, window)[window.start : window.start + window.length]
    return Rows(total=len(shown.pairs.known), found=len(kept), rows=_cells(context, shown, part))


def example_users(shown: Contest) -> list[str]:
    """Return the users who gain and who lose most."""
    known = shown.pairs.known
    if shown.features is None or not len(known):
        return []
    gains = gain(known)
    rows = {int(known.user_rows[place]) for place in (gains.argmax(), gains.argmin())}
    return sorted(user_ids(shown.features, sorted(rows)).values())


def _kept(context: Context, shown: Contest, query: Query, text: str) -> NDArray[np.int64]:
    """Find the queries that the filters and the search leave."""
    known, features = shown.pairs.known, shown.features
    keep = np.ones(len(known), np.bool_)
    outcome = query.choice("outcome", (ALL, *OUTCOMES), ALL)
    if outcome != ALL:
        keep &= shown.outcomes == OUTCOMES.index(outcome)
    if features is not None and (item := query.text("item")):
        keep &= known.item_rows == (catalogue_of(context, features).row_of(item) or -1)
    if features is not None and text:
        titles = catalogue_of(context, features).matching(text)
        rows = known.item_rows
        inside = (rows > 0) & (rows < len(titles))
        found = np.isin(known.user_rows, users_matching(features, text).to_numpy())
        found[inside] |= titles[rows[inside]]
        keep &= found
    return np.flatnonzero(keep)


def _ordered(shown: Contest, kept: NDArray[np.int64], window: Window) -> NDArray[np.int64]:
    """Order queries by a column; without one, the greatest gains first."""
    known = shown.pairs.known
    first, second = (np.where(one == 0, NOWHERE, one)[kept] for one in known.ranks[:2])
    gains = gain(known)[kept]
    keys = (known.user_rows[kept], known.item_rows[kept], known.places[kept], first, second)
    columns = [*keys, gains, shown.outcomes[kept]]
    is_column = window.order_by is not None and window.order_by < len(columns)
    key = columns[window.order_by or 0] if is_column else gains
    descending = window.descending or not is_column
    signed = -key.astype(np.float64) if descending else key
    return kept[np.argsort(signed, kind="stable")]


def _cells(
    context: Context, shown: Contest, places: NDArray[np.int64]
) -> list[list[Cell | LinkedCell]]:
    known, features = shown.pairs.known, shown.features
    rows = known.user_rows[places].tolist()
    names = {} if features is None else user_ids(features, rows)
    catalogue = None if features is None else catalogue_of(context, features)
    gains, labels = gain(known)[places], [*shown.labels.values()]
    found: list[list[Cell | LinkedCell]] = []
    for number, place in enumerate(places.tolist()):
        user = names.get(rows[number])
        link = Link(label="", page="why", parameters={**shown.parameters, "user": user or ""})
        title = "not known" if catalogue is None else catalogue.title(int(known.item_rows[place]))
        found.append(
            [
                "not known" if user is None else LinkedCell(text=user, link=link),
                title,
                int(known.places[place]),
                *(int(one[place]) or None for one in known.ranks[:2]),
                float(gains[number]),
                labels[shown.outcomes[place]],
            ]
        )
    return found
