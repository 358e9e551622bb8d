"""Routes that write to the online store: events in, users forgotten, items changed.

A server's front calls them, and so does the application in one process. A write is acknowledged
once it is durable.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable
from typing import TypeVar

from serving.online.events import Event, EventsRequest
from serving.online.store import StoreError
from serving.online.topics import TopicsRequest, read_topics, without_topic
from serving.online.writer import EventWriter, WriterBusyError
from serving.replies import (
    EventsReply,
    ForgottenReply,
    ItemsChanged,
    Removed,
    TopicCard,
    TopicsReply,
)
from serving.routes import BY_NAME
from serving.schemas import Degraded, ItemsRequest, TopicParameters, to_json
from serving.web.http import NO_STORE, Head, HttpAnswer, RefusedError, read_input
from serving.web.wish_reading import Reading

Written = TypeVar("Written")


async def write(
    writer: EventWriter | None, head: Head, body: bytes, reading: Reading | None = None
) -> HttpAnswer:
    """Answer a request to a route that writes.

    Args:
        reading: What a language model read in a wish.

    Raises:
        RefusedError: Nothing of it counts.
    """
    given = read_input(BY_NAME[head["route"]], head, body)
    if isinstance(given, EventsRequest):
        return await _take_events(writer, given)
    if isinstance(given, ItemsRequest):
        return await _change_items(writer, given)
    if isinstance(given, TopicsRequest | TopicParameters):
        return await _change_topics(writer, given, head, reading)
    return await _forget(writer, head["value"])


async def _change_topics(
    writer: EventWriter | None,
    given: TopicsRequest | TopicParameters,
    head: Head,
    reading: Reading | None,
) -> HttpAnswer:
    """Keep or delete topics of a user.

    The reply lists all that are kept, to a caller who may not read users those that were sent.
    """
    now = time.time()
    sent = given.said(now) if isinstance(given, TopicsRequest) else []
    sent = sent if reading is None else reading.join(sent, now)

    def change(kept: str) -> str:
        if isinstance(given, TopicsRequest):
            return given.change(kept, now, sent)
        return without_topic(kept, given.words, now)

    kept = read_topics(await _written(_required(writer).change_topics(head["value"], change)))
    if not head["shown"]:
        kept = [topic for topic in kept if topic in sent]
    cards = [TopicCard(*one.wanted, "said", one.until, said_as=one.said_as) for one in kept]
    fault = None if reading is None else reading.fault
    unread = None if fault is None else [Degraded("unread_wish", fault)]
    return HttpAnswer(200, to_json(TopicsReply(cards, unread)), {"num_topics": len(cards)})


async def _take_events(writer: EventWriter | None, sent: EventsRequest) -> HttpAnswer:
    """Store events; the reply counts those that were new."""
    now_ms = int(1_000 * time.time())
    try:
        events = [Event.received(one, now_ms) for one in sent.events]
    except ValueError as error:
        raise RefusedError(422, "invalid_request", str(error)) from None
    new = await _written(_required(writer).add(events))
    counted = EventsReply(accepted=sum(new), duplicates=len(new) - sum(new))
    return HttpAnswer(200, to_json(counted), {"num_events": len(new)})


async def _forget(writer: EventWriter | None, user_id: str) -> HttpAnswer:
    """Remove a user's events and served lists, and forget what bundles know of them."""
    if not user_id:
        raise RefusedError(422, "invalid_request", "name the user: DELETE /v1/users/{user_id}")
    removed = await _written(_required(writer).forget(user_id, int(1_000 * time.time())))
    counted = Removed(events=removed.num_events, lists=removed.num_requests)
    return HttpAnswer(200, to_json(ForgottenReply(counted)), {})


async def _change_items(writer: EventWriter | None, sent: ItemsRequest) -> HttpAnswer:
    """Hide and show items."""
    changes: dict[str, bool] = {}
    for item in sent.items:
        if item.reset and item.hidden:
            message = f"item {item.item_id!r} has hidden and reset; send one of them"
            raise RefusedError(422, "invalid_request", message)
        changes[item.item_id] = item.hidden
    version = await _written(_required(writer).change_items(changes))
    return HttpAnswer(200, to_json(ItemsChanged(version)), {"num_items": len(changes)})


def _required(writer: EventWriter | None) -> EventWriter:
    if writer is None:
        raise RefusedError(503, "no_store", NO_STORE)
    return writer


async def _written(writing: Awaitable[Written]) -> Written:
    """Wait until something is durable; a failure is a 503, and nothing of it counts."""
    try:
        return await writing
    except WriterBusyError:
        message = "more is sent than the store can keep; send it again in 1 s"
        raise RefusedError(503, "store_busy", message) from None
    except StoreError as error:
        raise RefusedError(503, "store_failed", f"{error}; nothing was stored") from None
