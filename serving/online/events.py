"""Events of visitors, as clients send them and as the online store keeps them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from serving.schemas import Id, Strict

EventType = Literal[
    "view", "click", "cart", "purchase", "like", "impression", "hide", "dislike", "undo"
]
HISTORY_TYPES: tuple[EventType, ...] = ("view", "click", "cart", "purchase", "like")
"""Types that become part of a history; an impression does not."""
REFUSAL_TYPES: tuple[EventType, ...] = ("hide", "dislike", "undo")
"""Types by which a visitor refuses an item, and takes that back; no part of a history."""
MAX_EVENTS = 1_000
"""Events of one request."""
MAX_SLOT = 100_000
MAX_AHEAD_MS = 300_000
"""How far a client's clock may be ahead; such an event counts as happening when it arrives."""


class SentEvent(Strict):
    """One event of a visitor."""

    event_id: Annotated[str, Field(min_length=1, max_length=128)]
    """Chosen by the client, unique: an event that is sent again is stored once."""
    user_id: Id
    """Id of the user, or of the session of an anonymous visitor."""
    item_id: Id
    event_type: EventType
    unix_time: Annotated[float, Field(ge=0, lt=1 << 40, allow_inf_nan=False)] | None = None
    """When it happened, in unix seconds; by default when it arrives."""
    value: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """Such as a price or a rating."""
    request_id: Annotated[str, Field(pattern="^[0-9a-f]{32}$")] | None = None
    """``request_id`` of the list in which the item was shown."""
    slot: Annotated[int, Field(ge=1, le=MAX_SLOT)] | None = None
    """Place in that list, from 1."""
    domain: Id | None = None
    session_id: Id | None = None


class EventsRequest(Strict):
    """Events of any visitors; all of them are stored, or none."""

    events: list[SentEvent] = Field(min_length=1, max_length=MAX_EVENTS)


@dataclass(frozen=True, slots=True)
class Event:
    """An event as it is stored; the fields of `SentEvent` with settled times."""

    event_id: str
    user_id: str
    item_id: str
    event_type: str
    time_ms: int
    """When it happened, in unix milliseconds."""
    received_ms: int
    """When it arrived."""
    value: float | None = None
    request_id: str | None = None
    slot: int | None = None
    domain: str | None = None
    session_id: str | None = None

    @classmethod
    def received(cls, sent: SentEvent, now_ms: int) -> Event:
        """Settle the times of an event that arrives now.

        Raises:
            ValueError: It is further in the future than a client's clock may be.
        """
        time_ms = now_ms if sent.unix_time is None else int(1_000 * sent.unix_time)
        if time_ms > now_ms + MAX_AHEAD_MS:
            raise ValueError(
                f"event {sent.event_id!r} has unix_time {sent.unix_time}, which is "
                f"{(time_ms - now_ms) / 1_000:.0f} s ahead of the server's clock; at most "
                f"{MAX_AHEAD_MS // 1_000} are allowed, send unix seconds"
            )
        others = {name: value for name, value in sent if name != "unix_time"}
        return cls(**others, time_ms=min(time_ms, now_ms), received_ms=now_ms)
