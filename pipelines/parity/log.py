"""Log of served lists, the events of their users in order of arrival, and what differs in a list.

Differences are found in the order in which a list is made, so that the first one of a request is
the cause of the later ones.
"""

from __future__ import annotations

import heapq
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from features.forget_list import NOBODY, ForgetList
from pipelines.inputs.online_events import EVENTS_PER_PART, LISTS_PER_PART
from serving.online.events import HISTORY_TYPES
from serving.online.store import OnlineStore, RecentEvent, Visitor

Document = Mapping[str, Any]
END_MS = 1 << 48
SETTLE_MS = 2_000
ITEM_FIELDS = ("source", "propensity", "rules")
LIST_FIELDS = ("degraded", "fallback", "adapter", "ranker")
NamedDifference = tuple[str, float]
"""What differs, and by how much: 1 unless it is a number or a number of events or items."""


class StoredEvent(NamedTuple):
    """An event of a user's history."""

    event: RecentEvent
    received_ms: int


@dataclass(frozen=True, kw_only=True)
class Log:
    """A sample of the served lists with all that their histories may hold."""

    documents: Sequence[Document]
    """In the order of their ids."""
    num_requests: int
    """Lists there are, sampled or not."""
    events: Mapping[str, Sequence[StoredEvent]]
    forgotten: ForgetList = NOBODY
    items_version: int | None = None
    hidden: Sequence[str] = ()
    """Items that are hidden as of that version."""

    def forgotten_ms(self, user_id: str | None) -> int | None:
        """Return when a user was forgotten; None if never."""
        return None if user_id is None else self.forgotten.moment(user_id)


def log_of_store(store: OnlineStore, sample: int, since_ms: int = 0) -> Log:
    """Sample the lists of a store."""
    documents, number = _sampled(_stored(store, since_ms), sample)
    users = {document.get("user_id") for document in documents}
    events: dict[str, list[StoredEvent]] = {}
    place = 0
    while found := store.events_after(place, EVENTS_PER_PART):
        place = found[-1][0]
        for _, event in found:
            if event.user_id in users and event.event_type in HISTORY_TYPES:
                recent = RecentEvent(event.item_id, event.event_type, event.time_ms)
                own = events.setdefault(event.user_id, [])
                own.append(StoredEvent(recent, event.received_ms))
    version, hidden = store.hidden_items()
    return Log(
        documents=documents,
        num_requests=number,
        events=events,
        forgotten=store.forgotten(),
        items_version=version,
        hidden=hidden,
    )


def _stored(store: OnlineStore, since_ms: int) -> Iterator[tuple[str, bytes]]:
    last = ""
    while records := store.requests_between(since_ms, END_MS, LISTS_PER_PART, last):
        last = records[-1].request_id
        for record in records:
            yield record.request_id, record.document


def _sampled(records: Iterable[tuple[str, bytes]], sample: int) -> tuple[list[Document], int]:
    """Choose by the drawn part of the ids, the same ones each time.

    Those with the lowest digits keep their features too (`is_kept` of
    serving/list_record.py): of a long log the sample is made of them.
    """
    number = 0

    def counted() -> Iterator[tuple[str, bytes]]:
        nonlocal number
        for record in records:
            number += 1
            yield record

    chosen = heapq.nsmallest(sample, counted(), key=lambda record: record[0][12:])
    return [json.loads(document) for _, document in sorted(chosen)], number


class History(NamedTuple):
    """Events of a list's visitor."""

    events: Sequence[RecentEvent]
    """Those that had arrived by then, or of those being committed the ones that were read."""
    logged: Sequence[RecentEvent]


class PastStore:
    """The online store as it was when a list was made, for `serving.live.LiveState`.

    A list reads the events that were committed by then. Its record does not say which: an event
    that arrived in the same second may have been committed before the reading or after it. So the
    last event is searched among those of the seconds around it; an older event that was not read
    is a difference.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._document: Document = {}
        self._versions: dict[tuple[str, ...], int] = {(): 0}
        self.history: History | None = None

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
        first, exact, last = (
            _arrived(known, moment + by_ms) for by_ms in (-SETTLE_MS, 0, SETTLE_MS)
        )
        near = (
            _latest(known, place, limit, before_ms)
            for place in (exact, *range(last, first - 1, -1))
        )
        events = next(
            (found for found in near if found == logged), _latest(known, exact, limit, before_ms)
        )
        self.history = History(events, logged)
        refused = [RecentEvent(*event) for event in self._document.get("refused", ())]
        topics = self._document.get("topics", "")
        return Visitor(events, forgotten_ms, version, refused=refused, topics=topics)

    def hidden_items(self) -> tuple[int, list[str]]:
        """Read the items that were hidden then."""
        hidden = self._hidden()
        return self._versions.setdefault(hidden, len(self._versions)), list(hidden)

    def shown_items(self, user_id: str, since_ms: int) -> list[str]:
        """List the items that the user had been shown, by the record."""
        return list(self._document.get("shown", ()))

    def _hidden(self) -> tuple[str, ...]:
        # Where a record only has a version it is the one that the log has.
        many = self._log.hidden if "items_version" in self._document else ()
        return tuple(self._document.get("hidden", many))


def _arrived(events: Sequence[StoredEvent], moment_ms: int) -> int:
    """Count the events that had arrived at a moment."""
    return max(
        (place for place, event in enumerate(events, 1) if event.received_ms <= moment_ms),
        default=0,
    )


def _latest(
    events: Sequence[StoredEvent], place: int, limit: int, before_ms: int | None
) -> list[RecentEvent]:
    """List the newest of the first ``place`` events, oldest first; equal times by arrival."""
    before = END_MS if before_ms is None else before_ms
    found = [one.event for one in events[:place] if one.event.time_ms < before]
    found.sort(key=lambda event: event.time_ms)
    return found[-limit:] if limit else []


def compare_records(
    logged: Document, online: Document, history: History | None
) -> Iterator[NamedDifference]:
    """Compare a record with that of the same list, made once more.

    Args:
        history: What the event log says of the visitor; None without a user.
    """
    has_features = "features" in logged
    was, now = (_facts(one, has_features) for one in (logged, online))
    yield from _differing(was, now, ("experiment", "rules"))
    if history is not None:
        yield from _compare_events(history)
    inputs = [name for name in {**was, **now} if name not in (*LIST_FIELDS, "experiment", "rules")]
    yield from _differing(was, now, inputs)
    yield from _compare_items(logged, online)
    yield from _differing(was, now, LIST_FIELDS)


def _facts(document: Document, has_features: bool) -> dict[str, Any]:
    """List what a record says of the list as a whole, by the name of a difference."""
    features = document["features"] if has_features else {"query": {}, "history": None}
    return {
        **{name: document.get(name) for name in ("experiment", "rules", *LIST_FIELDS)},
        "when the user was forgotten": document.get("forgotten_ms"),
        "moment of the features": document.get("unix_time"),
        **{f"feature {name}": value for name, value in sorted(features["query"].items())},
        "history that models read": features["history"],
    }


def _differing(
    was: Mapping[str, Any], now: Mapping[str, Any], names: Iterable[str]
) -> Iterator[NamedDifference]:
    """List the names whose values differ, with the distance of numbers."""
    for name in names:
        before, after = was.get(name), now.get(name)
        if before != after:
            apart = 1.0
            if isinstance(before, int | float) and isinstance(after, int | float):
                apart = float(abs(after - before))
            yield name, apart


def _compare_events(history: History) -> Iterator[NamedDifference]:
    """Compare the events that a list was made of with those that had arrived."""
    logged, events = history.logged, history.events
    if [one.item_id for one in logged] == [one.item_id for one in events]:
        both = list(zip(logged, events, strict=True))
        if kinds := sum(one.event_type != other.event_type for one, other in both):
            yield "history: types of events", kinds
        if apart := max((abs(one.time_ms - other.time_ms) for one, other in both), default=0):
            yield "history: times of events", apart / 1_000
        return
    read, known = (Counter((one.item_id, one.time_ms) for one in side) for side in (logged, events))
    if lacking := (known - read).total():
        yield "history: events that the list was made without", lacking
    if surplus := (read - known).total():
        yield "history: events that the event log lacks", surplus
    if read == known:
        yield "history: order of events", 1.0


def _compare_items(logged: Document, online: Document) -> Iterator[NamedDifference]:
    """Compare the shown items: scores, items, order, sources, propensities, rules."""
    was, now = (
        {item["item_id"]: item for item in one.get("items", [])} for one in (logged, online)
    )
    both = [name for name in was if name in now]
    if apart := max((abs(was[one]["score"] - now[one]["score"]) for one in both), default=0.0):
        yield "score", apart
    if was.keys() != now.keys():
        yield "items", len(was.keys() ^ now.keys())
    elif moved := sum(one != other for one, other in zip(was, now, strict=True)):
        scores = ([item["score"] for item in side.values()] for side in (was, now))
        yield "order of equal scores" if next(scores) == next(scores) else "order", moved
    for name in ITEM_FIELDS:
        if other := sum(was[one].get(name) != now[one].get(name) for one in both):
            yield f"{name} of an item", other
