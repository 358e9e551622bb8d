"""The client for asyncio; the calls of `serving.client.blocking`, to be awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import httpx2

from serving.client import calls
from serving.client.calls import Attempts, Call, Result, UnreachableError
from serving.client.frames import lists_of, users_of
from serving.online.events import EventType
from serving.replies import EventsReply, ForgottenReply, ItemsReply
from serving.schemas import Explanation, Reply

if TYPE_CHECKING:
    import polars as pl


class AsyncClient:
    """Calls one server, from one event loop."""

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        timeout: float = 2.0,
        retries: int = 3,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        """Connect on first use.

        Args:
            key: Of `recsys keys add`; None for a server without keys.
            timeout: Seconds that a call may take, all attempts together.
            retries: How often a call is sent again where the server is busy or away.
            transport: How requests travel; for tests.
        """
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        self._client = httpx2.AsyncClient(
            base_url=url, headers=headers, timeout=timeout, transport=transport
        )
        self._timeout, self._retries = timeout, retries

    async def recommend(self, user_id: str | None = None, **options: Any) -> Reply:
        """Make a list; options are the fields of a request, such as ``k`` and ``session``.

        Raises:
            ServerError: The request is refused; says why.
            UnreachableError: There is no reply.
        """
        return await self.send(calls.recommend(user_id, options))

    async def recommend_frame(
        self, users: pl.DataFrame | Sequence[str], k: int = 20, **options: Any
    ) -> pl.DataFrame:
        """Make a list for each user: columns user_id, rank (from 1), item_id, score, source, title.

        Args:
            users: User ids, or a frame with a column ``user_id``.
        """
        user_ids = users_of(users)
        replies = [
            await self.send(calls.recommend(user_id, {"k": k, **options})) for user_id in user_ids
        ]
        return lists_of(user_ids, replies)

    async def rank(self, items: Sequence[str], user_id: str | None = None, **options: Any) -> Reply:
        """Put items into the order that suits a user."""
        return await self.send(calls.rank(items, user_id, options))

    async def search_list(self, query: str, user_id: str | None = None, **options: Any) -> Reply:
        """List what a text finds, in the order that suits a user."""
        return await self.send(calls.search_list(query, user_id, options))

    async def similar(self, item_id: str, k: int = 20) -> Reply:
        """List items like one item."""
        return await self.send(calls.similar(item_id, k))

    async def search(self, query: str, k: int = 10) -> ItemsReply:
        """Find items by title."""
        return await self.send(calls.search(query, k))

    async def explain(self, request_id: str, item_id: str | None = None) -> Explanation:
        """Say why a list is as it is, and why an item is not in it."""
        return await self.send(calls.explain(request_id, item_id))

    async def event(
        self, user_id: str, item_id: str, event_type: EventType = "view", **options: Any
    ) -> EventsReply:
        """Store one event; options are its other fields, such as ``request_id`` and ``slot``."""
        return await self.events([calls.event(user_id, item_id, event_type, options)])

    async def events(self, events: Iterable[Mapping[str, Any]]) -> EventsReply:
        """Store events; those without an ``event_id`` get one."""
        replies = [await self.send(call) for call in calls.events(list(events))]
        accepted = sum(reply.accepted for reply in replies)
        return EventsReply(accepted, sum(reply.duplicates for reply in replies))

    async def hide(self, *item_ids: str) -> None:
        """Show items on no surface, from now on."""
        await self.send(calls.change_items([{"item_id": one, "hidden": True} for one in item_ids]))

    async def show(self, *item_ids: str) -> None:
        """Undo `hide`."""
        await self.send(calls.change_items([{"item_id": one, "reset": True} for one in item_ids]))

    async def forget(self, user_id: str) -> ForgottenReply:
        """Forget a user."""
        return await self.send(calls.forget(user_id))

    async def send(self, call: Call[Result]) -> Result:
        """Send a call, again where that may help.

        Raises:
            ServerError: It is refused.
            UnreachableError: There is no reply.
        """
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
                raise UnreachableError(
                    f"no reply from {request.url}: {failure!r}; is the server running?"
                ) from failure

    async def close(self) -> None:
        """Close connections."""
        await self._client.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
