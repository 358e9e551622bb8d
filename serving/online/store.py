"""Contract of an online store, which one test holds SQLite and Redis to.

One process writes (the server's front, through `serving.online.writer`), many read (its workers, at
every request). Several servers may share a store. A store keeps ids as clients sent them and knows
nothing of a bundle's rows.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from features.forget_list import ForgetList
from serving.online.events import Event

MAX_MS = 1 << 48
MAX_REFUSALS = 1_000
"""Events of `REFUSAL_TYPES` that count for a user, the newest."""


class StoreError(Exception):
    """The store did not answer in time, is full, broken or of another version; says what to do."""


class RecentEvent(NamedTuple):
    """One event of a user's history."""

    item_id: str
    event_type: str
    time_ms: int


@dataclass(frozen=True, slots=True)
class Visitor:
    """The store's data of a user when a list is made."""

    events: Sequence[RecentEvent] = ()
    """The newest, oldest first by (time_ms, order of arrival); impressions are not among them."""
    forgotten_ms: int | None = None
    """When the user was forgotten: what a bundle released before knows of them does not count."""
    items_version: int = 0
    """Grows with every change of items; the worker then reads `items` again."""
    shown: Sequence[str] | None = None
    """Items that the user was shown lately, of a list that is made again; None to ask the store."""
    refused: Sequence[RecentEvent] = ()
    """Hides and dislikes in force, oldest first."""
    topics: str = ""
    """JSON of the topics that the user said, see serving/online/topics.py; empty without."""


NOBODY = Visitor()


def in_force(refusals: Iterable[RecentEvent]) -> tuple[RecentEvent, ...]:
    """Return the hides and dislikes that no later ``undo`` of their item takes back.

    Args:
        refusals: Events of `REFUSAL_TYPES`, oldest first.
    """
    found: dict[str, RecentEvent] = {}
    for event in refusals:
        found.pop(event.item_id, None)
        if event.event_type != "undo":
            found[event.item_id] = event
    return tuple(found.values())


class RequestRecord(NamedTuple):
    """One list that was served."""

    request_id: str
    """32 hexadecimal digits; the first 12 are unix milliseconds, so that ids ascend."""
    time_ms: int
    user_id: str | None
    document: bytes
    """JSON, see serving/online/records.py."""


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Number of removed events and lists of a user."""

    num_events: int
    num_requests: int


def new_request_id(now_ms: int | None = None) -> str:
    """Make an id: 12 hexadecimal digits of unix milliseconds, then 20 random ones."""
    now_ms = int(1_000 * time.time()) if now_ms is None else now_ms
    return f"{now_ms % MAX_MS:012x}{os.urandom(10).hex()}"


def first_id(time_ms: int) -> str:
    """Write the beginning of the lowest id of a list that is served at a time."""
    return f"{min(max(time_ms, 0), MAX_MS - 1):012x}"


def time_of(request_id: str) -> int:
    """Read the unix milliseconds at which an id was made."""
    return int(request_id[:12], 16)


def read_seed(request_id: str) -> int:
    """Return the seed of a list's draws."""
    return int(request_id[16:], 16)


class OnlineStore(Protocol):
    """Any method raises `StoreError`."""

    def add_events(self, events: Sequence[Event]) -> list[bool]:
        """Keep events whose ids are new; they are durable on return.

        An event that was received no later than its user was forgotten is not kept: another server
        may have held it meanwhile.

        Returns:
            For each event whether it was kept.
        """

    def add_requests(self, records: Sequence[RequestRecord]) -> None:
        """Keep records of served lists; the latest may be lost with the machine.

        Lists that were made before their user was forgotten are not kept.
        """

    def visitor(self, user_id: str | None, limit: int, before_ms: int | None = None) -> Visitor:
        """Read a user's newest events, at most ``limit``, those strictly before a moment.

        Refusals and topics are read as they are now. Nobody (None) has no events; the version of
        items is read all the same.
        """

    def shown_items(self, user_id: str, since_ms: int) -> list[str]:
        """List items that a user was shown since a moment: impressions, and served lists."""

    def request(self, request_id: str) -> RequestRecord | None:
        """Find a served list."""

    def put_topics(self, user_id: str, topics: str) -> None:
        """Keep a user's topics in place of those before, or none (empty); durable on return."""

    def change_items(self, changes: Mapping[str, bool]) -> int:
        """Hide (True) or show items by id; durable on return.

        Returns:
            The version of items after it.
        """

    def hidden_items(self) -> tuple[int, list[str]]:
        """Read the version and the ids of hidden items, at a cost that grows with these alone."""

    def forget(self, user_id: str, now_ms: int) -> Forgotten:
        """Remove a user's events, lists and topics, and remember when; durable on return.

        Of several moments the latest counts, so a slow clock moves none back.
        """

    def forgotten(self) -> ForgetList:
        """Read when users were forgotten, with the keys that their ids are hashed with."""

    def events_after(self, place: int, limit: int) -> list[tuple[int, Event]]:
        """Read events in the order of their arrival, with their places, after one (0 first)."""

    def requests_between(
        self, since_ms: int, before_ms: int, limit: int, after_id: str = ""
    ) -> list[RequestRecord]:
        """Read served lists in the order of their ids, for export, a page at a time."""

    def remove_old(self, events_before_ms: int, requests_before_ms: int) -> None:
        """Remove events and lists beyond their retention, by the time of arrival."""

    def close(self) -> None:
        """Close connections."""
