"""Routes that write to the online store: events in, people forgotten, items changed.

The same for the server's front, which runs them itself, and for the application in one process.
A write is acknowledged once it is durable.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from serving.online.events import Event, EventsRequest
from serving.online.store import ItemState, StoreError
from serving.online.writer import EventWriter, WriterBusyError
from serving.replies import EventsReply, ForgottenReply, ItemsChanged, Removed
from serving.schemas import ItemsRequest, to_json
from serving.web.http import Answer, RefusedError, parsed_json, validated

NO_STORE = "this server has no online store; start it with --store sqlite:FOLDER or a Redis URL"


async def take_events(writer: EventWriter | None, head: Mapping[str, Any], body: bytes) -> Answer:
    """Store the events of a body; the reply counts those that were new."""
    sent = _checked(EventsRequest, head, body)
    now_ms = int(1_000 * time.time())
    try:
        events = [Event.received(one, now_ms) for one in sent.events]
    except ValueError as error:
        raise RefusedError(422, "invalid_request", str(error)) from None
    new = await _written(_required(writer).add(events))
    counted = EventsReply(accepted=sum(new), duplicates=len(new) - sum(new))
    return Answer(200, to_json(counted), {"num_events": len(new)})


async def forget_user(writer: EventWriter | None, user_id: str) -> Answer:
    """Remove a user's events and served lists, and forget what bundles know of them."""
    if not user_id:
        raise RefusedError(422, "invalid_request", "name the user: DELETE /v1/users/{user_id}")
    removed = await _written(_required(writer).forget(user_id, int(1_000 * time.time())))
    counted = Removed(events=removed.num_events, lists=removed.num_requests)
    return Answer(200, to_json(ForgottenReply(counted)), {})


async def change_items(writer: EventWriter | None, head: Mapping[str, Any], body: bytes) -> Answer:
    """Hide, show and describe items."""
    sent = _checked(ItemsRequest, head, body)
    changes: dict[str, ItemState | None] = {}
    for item in sent.items:
        if item.reset and (item.hidden or item.properties):
            message = f"item {item.item_id!r} has reset beside other changes; send one of them"
            raise RefusedError(422, "invalid_request", message)
        changes[item.item_id] = None if item.reset else ItemState(item.hidden, item.properties)
    version = await _written(_required(writer).change_items(changes))
    return Answer(200, to_json(ItemsChanged(version)), {"num_items": len(changes)})


def _checked(schema: Any, head: Mapping[str, Any], body: bytes) -> Any:
    return validated(schema, parsed_json(head["type"], head["encoding"], body))


def _required(writer: EventWriter | None) -> EventWriter:
    if writer is None:
        raise RefusedError(503, "no_store", NO_STORE)
    return writer


async def _written(writing: Any) -> Any:
    """Wait until something is durable.

    Raises:
        RefusedError: 503; nothing of it counts, send it again.
    """
    try:
        return await writing
    except WriterBusyError:
        message = "more is sent than the store can keep; send it again in 1 s"
        raise RefusedError(503, "store_busy", message) from None
    except StoreError as error:
        raise RefusedError(503, "store_failed", f"{error}; nothing was stored") from None
