"""The online store as it was when a list was made, from the events in the order of their arrival.

A list reads the events that were committed by then: those up to some place of that order. Which
place, its record does not say: an event that arrived in the same second may have been committed
before the reading or after it. So the place is looked for among those of the seconds around it; an
event that is older than these and was not read is a difference, however late it is noticed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pipelines.parity.log import Document, Log, StoredEvent
from serving.online.store import RecentEvent, Visitor

SETTLE_MS = 2_000
"""How long before and after a list's moment an event's commit may lie elsewhere than its arrival
says."""
END_MS = 1 << 62


class History(NamedTuple):
    """What a list's visitor had done."""

    events: Sequence[RecentEvent]
    """As of the list's moment, as ``visitor`` of a store gives them."""
    logged: Sequence[RecentEvent]
    """As the record has them."""
    is_exact: bool
    """Whether they are those that had arrived by then; else some were on their way."""


class PastStore:
    """Reads what `serving.live.LiveState` reads, as of one record after the other."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._document: Document = {}
        self._versions: dict[tuple[str, ...], int] = {(): 0}
        self.history: History | None = None
        """Of the record; None until it is read."""

    def at(self, document: Document) -> None:
        """Go to the moment of a record."""
        self._document, self.history = document, None

    def visitor(self, user_id: str | None, limit: int, before_ms: int | None = None) -> Visitor:
        """Read a user's events as of then."""
        version = self._versions.setdefault(self._hidden(), len(self._versions))
        if user_id is None:
            return Visitor(items_version=version)
        logged = [RecentEvent(*event) for event in self._document.get("live", ())]
        moment = self._document["unix_ms"]
        forgotten_ms = self._log.forgotten_ms(user_id)
        # A store removes what came before, and takes in none of it later.
        known = [
            event
            for event in self._log.events.get(user_id, ())
            if forgotten_ms is None or event.received_ms > forgotten_ms
        ]
        exact = _latest(known, _arrived(known, moment), limit, before_ms)
        events = exact
        if events != logged:
            places = _places(known, moment)
            near = (_latest(known, place, limit, before_ms) for place in places)
            events = next((found for found in near if found == logged), exact)
        self.history = History(events, logged, events == exact)
        return Visitor(events, forgotten_ms, version)

    def hidden_items(self) -> tuple[int, list[str]]:
        """Read what was hidden then."""
        hidden = self._hidden()
        return self._versions.setdefault(hidden, len(self._versions)), list(hidden)

    def shown_items(self, user_id: str, since_ms: int) -> list[str]:
        """Name what the record says that the user had been shown."""
        return list(self._document.get("shown", ()))

    def _hidden(self) -> tuple[str, ...]:
        # Where a record only has a version it is the one that the log has.
        many = self._log.hidden if "items_version" in self._document else ()
        return tuple(self._document.get("hidden", many))


def _arrived(events: Sequence[StoredEvent], moment_ms: int) -> int:
    """Give the place behind the last event that had arrived at a moment."""
    return max(
        (place for place, event in enumerate(events, 1) if event.received_ms <= moment_ms),
        default=0,
    )


def _places(events: Sequence[StoredEvent], moment_ms: int) -> Iterator[int]:
    """Give the places that may have been the last ones, those of late commits first."""
    last = _arrived(events, moment_ms + SETTLE_MS)
    return iter(range(last, _arrived(events, moment_ms - SETTLE_MS) - 1, -1))


def _latest(
    events: Sequence[StoredEvent], place: int, limit: int, before_ms: int | None
) -> list[RecentEvent]:
    """List the newest of the first so many, oldest first; equal times in the order of arrival."""
    before = END_MS if before_ms is None else before_ms
    found = [one.event for one in events[:place] if one.event.time_ms < before]
    found.sort(key=lambda event: event.time_ms)
    return found[-limit:] if limit else []
