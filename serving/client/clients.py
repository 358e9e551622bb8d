"""The clients: `Client` for programs without asyncio, `AsyncClient` for one event loop.

client = Client("http://127.0.0.1:8000")
reply = client.recommend("42", k=10)
client.event("42", reply.items[0].item_id, "click", request_id=reply.request_id, slot=1)
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any, Generic, ParamSpec, Self, TypeVar, overload

import httpx2

from serving.client import calls
from serving.client.calls import Attempts, Call, UnreachableError
from serving.replies import EventsReply

Given = ParamSpec("Given")
Result = TypeVar("Result")


class _Method(Generic[Given, Result]):
    """A call as a method: `Client` returns its reply, `AsyncClient` has it awaited."""

    def __init__(self, call: Callable[Given, Call[Result]]) -> None:
        self._call, self.__doc__ = call, call.__doc__

    @overload
    def __get__(self, client: Client, owner: type) -> Callable[Given, Result]: ...
    @overload
    def __get__(self, client: AsyncClient, owner: type) -> Callable[Given, Awaitable[Result]]: ...
    @overload
    def __get__(self, client: None, owner: type) -> Self: ...
    def __get__(self, client: Any, owner: type) -> Any:
        if client is None:
            return self

        @wraps(self._call)
        def send(*args: Given.args, **kwargs: Given.kwargs) -> Any:
            return client.send(self._call(*args, **kwargs))

        return send


class _Calls:
    """The calls that both clients have."""

    recommend = _Method(calls.recommend)
    search_list = _Method(calls.search_list)
    refine = _Method(calls.refine)
    similar = _Method(calls.similar)
    search = _Method(calls.search)
    explain = _Method(calls.explain)
    event = _Method(calls.event)
    hide = _Method(calls.hide)
    show = _Method(calls.show)
    say = _Method(calls.say)
    topics = _Method(calls.topics)
    unsay = _Method(calls.unsay)
    forget = _Method(calls.forget)

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        timeout: float = 2.0,
        retries: int = 3,
        transport: Any = None,
    ) -> None:
        """Connect on first use.

        Args:
            key: Of `recsys keys add`; None for a server without keys.
            timeout: Seconds that a call may take, all attempts together.
            retries: How often a call is sent again if the server is busy or away.
            transport: How requests travel; for tests.
        """
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        self._options: dict[str, Any] = {"base_url": url, "headers": headers, "timeout": timeout}
        self._options["transport"] = transport
        self._timeout, self._retries = timeout, retries


def _unreachable(request: httpx2.Request, failure: Exception | None) -> UnreachableError:
    return UnreachableError(f"no reply from {request.url}: {failure!r}; is the server running?")


def _sum(replies: Sequence[EventsReply]) -> EventsReply:
    duplicates = sum(reply.duplicates for reply in replies)
    return EventsReply(sum(reply.accepted for reply in replies), duplicates)


class Client(_Calls):
    """Calls one server; safe to share between threads."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self._client = httpx2.Client(**self._options)

    def events(self, events: Iterable[Mapping[str, Any]]) -> EventsReply:
        """Store events; those without an ``event_id`` get one."""
        return _sum([self.send(call) for call in calls.events(list(events))])

    def send(self, call: Call[Result]) -> Result:
        """Send a call, again if that may help.

        Raises:
            ServerError: It is refused.
            UnreachableError: There is no reply.
        """
        attempts = Attempts(self._retries, self._timeout)
        while True:
            request, response, failure = call.request(self._client), None, None
            request.extensions["timeout"] = httpx2.Timeout(attempts.remaining()).as_dict()
            try:
                response = self._client.send(request)
            except httpx2.TransportError as error:
                failure = error
            if (wait := attempts.pause(response)) is not None:
                time.sleep(wait)
            elif response is not None:
                return call.result(response)
            else:
                raise _unreachable(request, failure) from failure

    def close(self) -> None:
        """Close connections."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient(_Calls):
    """The same for asyncio: every call is awaited."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self._client = httpx2.AsyncClient(**self._options)

    async def events(self, events: Iterable[Mapping[str, Any]]) -> EventsReply:
        """Store events; those without an ``event_id`` get one."""
        return _sum([await self.send(call) for call in calls.events(list(events))])

    async def send(self, call: Call[Result]) -> Result:
        """Send a call, as `Client.send` does."""
        attempts = Attempts(self._retries, self._timeout)
        while True:
            request, response, failure = call.request(self._client), None, None
            request.extensions["timeout"] = httpx2.Timeout(attempts.remaining()).as_dict()
            try:
                response = await self._client.send(request)
            except httpx2.TransportError as error:
                failure = error
            if (wait := attempts.pause(response)) is not None:
                await asyncio.sleep(wait)
            elif response is not None:
                return call.result(response)
            else:
                raise _unreachable(request, failure) from failure

    async def close(self) -> None:
        """Close connections."""
        await self._client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
