"""Calls of the HTTP API, which are the methods of both clients, and how replies are read.

Every call may be sent again: lists and lookups change nothing, events are stored once by their id,
and hiding, showing and forgetting end in the same state however often they arrive.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from random import random
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import httpx2
import orjson
from pydantic import TypeAdapter

from serving.explained import Explanation
from serving.online.events import MAX_EVENTS, EventType
from serving.replies import (
    EventsReply,
    ForgottenReply,
    ItemsChanged,
    ItemsReply,
    RefineReply,
    TopicsReply,
)
from serving.routes import BY_NAME
from serving.schemas import Reply, Request

Result = TypeVar("Result")
TRY_LATER = frozenset((429, 502, 503, 504))
"""Statuses of a server, or a balancer, that is busy; nothing was done."""
FIRST_PAUSE_SECONDS = 0.05
MAX_PAUSE_SECONDS = 2.0


class UnreachableError(Exception):
    """No reply arrived, however often the request was sent."""


class ServerError(Exception):
    """A reply with an error."""

    def __init__(self, status: int, code: str, message: str) -> None:
        """Take what the reply says.

        Args:
            code: For programs, such as ``invalid_request``; docs/serving.md lists them.
            message: For people: the fault and the remedy.
        """
        super().__init__(f"{status} {code}: {message}")
        self.status, self.code, self.message = status, code, message


@dataclass(frozen=True)
class Call(Generic[Result]):
    """One request, and what its reply is."""

    method: str
    path: str
    reply: type[Result]
    body: Mapping[str, Any] | None = None
    parameters: Mapping[str, Any] | None = None

    def request(self, client: httpx2.Client | httpx2.AsyncClient) -> httpx2.Request:
        """Write the request."""
        return client.build_request(
            self.method,
            self.path,
            content=None if self.body is None else orjson.dumps(self.body),
            params=self.parameters,
            headers={} if self.body is None else {"content-type": "application/json"},
        )

    def result(self, response: httpx2.Response) -> Result:
        """Read the reply.

        Raises:
            ServerError: It says that something is wrong.
        """
        if response.status_code == 200:
            kind: Any = self.reply
            found: Result = _reader(kind).validate_json(response.content)
            return found
        try:
            error = orjson.loads(response.content)["error"]
            code, message = str(error["code"]), str(error["message"])
        except (ValueError, KeyError, TypeError):
            code, message = "no_json", response.text[:200]
        raise ServerError(response.status_code, code, message)


@cache
def _reader(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


class Attempts:
    """When to send a request again, and when to give up."""

    def __init__(self, retries: int, timeout: float) -> None:
        self._left, self._pause = retries, FIRST_PAUSE_SECONDS
        self._end = time.monotonic() + timeout

    def pause(self, response: httpx2.Response | None) -> float | None:
        """Seconds to wait before the next attempt; None where there is none.

        Args:
            response: The reply; None where none arrived.
        """
        if response is not None and response.status_code not in TRY_LATER:
            return None
        wait = self._pause * (0.5 + random())
        if response is not None and response.headers.get("retry-after", "").isdigit():
            wait = max(wait, float(response.headers["retry-after"]))
        self._left, self._pause = self._left - 1, min(2 * self._pause, MAX_PAUSE_SECONDS)
        if self._left < 0 or time.monotonic() + wait >= self._end:
            return None
        return wait

    def remaining(self) -> float:
        """Seconds that an attempt may take."""
        return max(0.001, self._end - time.monotonic())


def _call(
    name: str,
    body: Mapping[str, Any] | None = None,
    *,
    value: str | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> Call[Any]:
    """Call a route by its name, with the value of its path's parameter."""
    route = BY_NAME[name]
    begin, _, rest = route.path.partition("{")
    path = route.path if value is None else begin + quote(value, safe="") + rest.partition("}")[2]
    return Call(route.method, path, route.reply or object, body, parameters)


def recommend(user_id: str | None = None, **options: Any) -> Call[Reply]:
    """Make a list; options are the fields of a request, such as ``k`` and ``session``."""
    return _call("recommend", _given(user_id=user_id, **options))


def search_list(query: str, user_id: str | None = None, **options: Any) -> Call[Reply]:
    """List what a text finds, in the order that suits a user."""
    return _call("search_list", _given(query=query, user_id=user_id, **options))


def refine(say: str, request: Request | None = None) -> Call[RefineReply]:
    """Change a list by what is said, with the request of the reply before."""
    before = request and request.model_dump(exclude_unset=True)
    return _call("refine", _given(say=say, request=before))


def similar(item_id: str, k: int = 20) -> Call[Reply]:
    """List items like one item."""
    return _call("similar", value=item_id, parameters={"k": k})


def search(query: str, k: int = 10) -> Call[ItemsReply]:
    """Find items by title."""
    return _call("search", parameters={"q": query, "k": k})


def explain(request_id: str, item_id: str | None = None) -> Call[Explanation]:
    """Explain a served list, and why an item is not in it."""
    return _call("explain", value=request_id, parameters=_given(item_id=item_id))


def event(
    user_id: str, item_id: str, event_type: EventType = "view", **options: Any
) -> Call[EventsReply]:
    """Store one event; options are its other fields, such as ``request_id`` and ``slot``."""
    named = {"user_id": user_id, "item_id": item_id, "event_type": event_type}
    return events([_given(**named, **options)])[0]


def events(found: Sequence[Mapping[str, Any]]) -> list[Call[EventsReply]]:
    """Store events in as many requests as they need; those without an ``event_id`` get one."""
    whole = [{"event_id": uuid.uuid4().hex, **one} for one in found]
    return [
        _call("events", {"events": whole[first : first + MAX_EVENTS]})
        for first in range(0, len(whole), MAX_EVENTS)
    ]


def hide(*item_ids: str) -> Call[ItemsChanged]:
    """Show items on no surface, from now on."""
    return _call("change_items", {"items": [{"item_id": one, "hidden": True} for one in item_ids]})


def show(*item_ids: str) -> Call[ItemsChanged]:
    """Undo `hide`."""
    return _call("change_items", {"items": [{"item_id": one, "reset": True} for one in item_ids]})


def say(user_id: str, wish: str) -> Call[TopicsReply]:
    """Keep what a user wants more or less of, in plain words, for every list from now on."""
    return _call("put_topics", {"wish": wish}, value=user_id)


def topics(user_id: str) -> Call[TopicsReply]:
    """List what a user wants more and less of, as said and as inferred."""
    return _call("topics", value=user_id)


def unsay(user_id: str, words: str | None = None) -> Call[TopicsReply]:
    """Delete the topic of these words that a user said, or all."""
    return _call("delete_topics", value=user_id, parameters=_given(words=words))


def forget(user_id: str) -> Call[ForgottenReply]:
    """Forget a user."""
    return _call("forget", value=user_id)


def _given(**values: Any) -> dict[str, Any]:
    """Leave out None."""
    return {name: value for name, value in values.items() if value is not None}
