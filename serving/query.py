"""Hydrate: turn a request into rows and features; unknown ids are noted, not refused.

A history is what the bundle knows of the user, then the online store's events since, then the items
of the request itself. Context features have the same definitions as in training, as of the
request's moment: its ``context.unix_time``, else the clock. If the newest event of the bundle is
old, or in the future, the moment is just after that event, since no model was trained on users who
were all away for years; replies then say ``stale_data``.

Axes: H history values of the one query.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from features.point_in_time import FEATURES, UserState
from recsys.data.dataset import PastEvents
from recsys.retrieval.sources import SourceQuery
from serving.bundle.load import Bundle
from serving.bundle.users import Users
from serving.online.store import NOBODY, RecentEvent, Visitor
from serving.schemas import Degraded, Request
from serving.surfaces import Kind, Surface

Rows = NDArray[np.int64]
STALE_SECONDS = 30 * 24 * 3600


def settle_moment(
    given: int | None, clock: int, names: Mapping[str, int], users: Users, degraded: list[Degraded]
) -> int:
    """Settle the unix second as of which a request's features are computed."""
    if given is not None:
        return given
    newest = users.newest_time
    if newest is None or 0 <= clock - newest <= STALE_SECONDS:
        return clock
    if any(FEATURES[name].needs_time for name in names):
        as_of = datetime.fromtimestamp(newest, UTC)
        degraded.append(Degraded("stale_data", f"{as_of:%Y-%m-%d}"))
    return newest + 1


def context_rows(
    names: Mapping[str, int], times: Rows | None, num_events: int, num_session: int, moment: int
) -> dict[str, int]:
    """Compute each feature's categorical row.

    Times are Unix seconds, ascending, before ``moment``, or None; the session just happened.
    """
    if not names:
        return {}
    if times is None:
        state, moment = build_state(np.arange(num_events + num_session)), num_events + num_session
    else:
        state = build_state(times)
        for _ in range(num_session):
            state.update(max(moment - 1, state.latest_time or 0))
    return {name: FEATURES[name].value(state, moment) for name in names}


def build_state(times: Rows) -> UserState:
    """Compute the state after UserState.update with each of these ascending times, at once."""
    if len(times) == 0:
        return UserState()
    first_of_latest = int(np.searchsorted(times, times[-1], side="left"))
    return UserState(
        num_before=first_of_latest,
        num_latest=len(times) - first_of_latest,
        latest_time=int(times[-1]),
        time_before=int(times[first_of_latest - 1]) if first_of_latest else None,
    )


NOTHING: Rows = np.empty(0, np.int64)
NEEDS: Mapping[Kind, str | None] = {
    "home": None,
    "related": "item_id",
    "cart": "session",
    "session": "session",
    "search": "query",
}
WHERE_TO_SEND = {
    "item_id": "put it into session, or name a surface of kind 'related'",
    "query": "name a surface of kind 'search'",
}
MAX_NAMED = 5
"""Unknown items, and unknown categories, named one by one in a reply; the rest are counted."""


class UnknownItemError(ValueError):
    """The item of surface ``related`` is not in the catalogue."""


@dataclass(kw_only=True)
class Query(SourceQuery):
    """A request in the bundle's rows; ``history`` has at most surface.max_history items."""

    request: Request
    surface: Surface
    seen: Rows
    """Every item of the history, oldest first."""
    sent: Rows
    """Items of the request itself; the rest of the history comes from the bundle and the store."""
    moment: int | None
    """Unix second as of which features are computed; None for surface ``related``."""
    degraded: tuple[Degraded, ...]
    """Ids of the request that the bundle does not know, and the like."""

    @property
    def domain(self) -> str | None:
        return self.request.context.domain


class RequestError(ValueError):
    """A request that its surface does not take."""


def fitted(request: Request, surface: Surface) -> Request:
    """Check a request against its surface, or raise RequestError; fill in the default k."""
    needed, name = NEEDS[surface.kind], surface.name
    if needed is not None and not getattr(request, needed):
        raise RequestError(f"surface {name!r} is of kind {surface.kind!r} and needs {needed}")
    for field in ("item_id", "query"):
        if field != needed and getattr(request, field) is not None:
            raise RequestError(
                f"surface {name!r} is of kind {surface.kind!r} and takes no {field}; "
                f"{WHERE_TO_SEND[field]}"
            )
    if surface.kind == "related" and (request.user_id is not None or request.session is not None):
        raise RequestError(f"surface {name!r} takes item_id, not user_id or session")
    if "k" not in request.model_fields_set and surface.k != request.k:
        request = request.model_copy(update={"k": surface.k})
    if not surface.min_k <= request.k <= surface.max_k:
        raise RequestError(
            f"surface {name!r} takes k from {surface.min_k} to {surface.max_k}, got {request.k}"
        )
    return request


def hydrate(
    request: Request,
    bundle: Bundle,
    surface: Surface,
    visitor: Visitor = NOBODY,
    clock: int | None = None,
    without: Rows = NOTHING,
) -> Query:
    """Look up the user, session or item of a request, as of ``clock`` in Unix seconds (now).

    An unknown user is user row 0 with an empty history; unknown items of a session are left out.

    Raises:
        UnknownItemError: The item of surface ``related`` is not in the catalogue.
    """
    degraded: list[Degraded] = []
    user_row = 0
    if request.user_id is not None and not (user_row := bundle.users.row_of(request.user_id) or 0):
        degraded.append(Degraded("unknown_user"))

    item_row, moment = 0, None
    categorical: dict[str, int] = {}
    if request.item_id is not None:
        item_row = bundle.catalogue.row_of(request.item_id) or 0
        if not item_row:
            raise UnknownItemError(
                f"item {request.item_id!r} is not in the catalogue of bundle {bundle.version}; "
                "send an item_id of the data it was built from"
            )
        sent = np.array([item_row], np.int64)
        events = PastEvents(sent, None, None)
    else:
        sent = session_rows(request.session or [], bundle, degraded)
        clock = int(time.time()) if clock is None else clock
        names, given = bundle.context_features, request.context.unix_time
        moment = settle_moment(given, clock, names, bundle.users, degraded)
        known = events = _before(moment, user_row, bundle, visitor.forgotten_ms)
        if visitor.events:
            late = 0 if given is not None else moment - clock
            known = events = _with_live(known, visitor.events, late, moment, sent, bundle)
        if len(sent):
            # They have just happened; their types are not known.
            newest = [] if known.times is None else known.times[-1:].tolist()
            events = known.then(sent, max([moment - 1, *newest]), 0)
        categorical["user"] = features_row = 0 if visitor.forgotten_ms is not None else user_row
        people = bundle.users.features
        categorical |= {f"user.{name}": int(rows[features_row]) for name, rows in people.items()}
        found = context_rows(names, known.times, len(known.rows), len(sent), moment)
        categorical |= {f"context.{name}": row for name, row in found.items()}
    if len(events.rows) == 0 and surface.kind != "search":
        degraded.append(Degraded("empty_history"))

    history, times, types = events.take(slice(-surface.max_history, None))
    return Query(
        request=request,
        surface=surface,
        item_row=item_row,
        seen=events.rows,
        sent=sent,
        moment=moment,
        history=history,
        times=times,
        types=types,
        categorical=categorical,
        degraded=tuple(degraded),
        negative_types=bundle.users.negative_types,
    ).without(without)


def session_rows(session: list[str], bundle: Bundle, degraded: list[Degraded]) -> Rows:
    """Look items up; unknown ones are left out and noted."""
    if not session:
        return NOTHING
    found = [(item_id, bundle.catalogue.row_of(item_id)) for item_id in session]
    unknown = list(dict.fromkeys(item_id for item_id, row in found if row is None))
    degraded.extend(Degraded("unknown_item", item_id) for item_id in unknown[:MAX_NAMED])
    if len(unknown) > MAX_NAMED:
        degraded.append(Degraded("unknown_items", f"{len(unknown) - MAX_NAMED} more"))
    return np.array([row for _, row in found if row is not None], np.int64)


def _before(moment: int, user_row: int, bundle: Bundle, forgotten_ms: int | None) -> PastEvents:
    """The user's events in the bundle strictly before a moment.

    Of a user who was forgotten only those count that came after it.
    """
    known = bundle.users.events(user_row)
    times = known.times
    if times is None:
        return known if forgotten_ms is None else known.take(slice(0))
    end = int(times.searchsorted(moment))
    first = 0
    if forgotten_ms is not None:
        first = int(np.searchsorted(times, -(-forgotten_ms // 1_000), side="left"))
    return known.take(slice(first, end))


def _with_live(
    known: PastEvents,
    events: Sequence[RecentEvent],
    late: int,
    moment: int,
    sent: Rows,
    bundle: Bundle,
) -> PastEvents:
    """Append the store's events to the bundle's, without those that bundle or request contain."""
    row_of, own, type_rows = bundle.catalogue.row_of, set(sent.tolist()), bundle.event_types
    found = [
        (row, event.time_ms // 1_000, type_rows.get(event.event_type, 0))
        for event in events
        if (row := row_of(event.item_id)) is not None and row not in own
    ]
    known_times = known.times
    if known_times is not None and len(known_times) and found and found[0][1] <= known_times[-1]:
        first = np.searchsorted(known_times, found[0][1], side="left")
        there = set(zip(known.rows[first:].tolist(), known_times[first:].tolist(), strict=True))
        found = [one for one in found if one[:2] not in there]
    rows, times, types = np.array(found, np.int64).reshape(-1, 3).T
    times = times + late
    if known_times is None:
        return known.then(rows, times, types)
    if late and len(known_times):
        times = np.maximum(times, known_times[-1])
    every = known.then(rows, times, types)
    assert every.times is not None
    times = np.minimum(every.times, moment - 1)
    return every._replace(times=times).take(np.argsort(times, kind="stable"))
