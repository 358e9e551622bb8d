"""The routes over one loaded bundle in one process, without keys, limits of rate or processes.

It calls the handlers that the server's front and workers call.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from serving.bundle.published import check_published
from serving.log import log
from serving.online.opening import open_writer, store_opener
from serving.online.records import record_of
from serving.online.store import StoreError
from serving.recommend import Recommender
from serving.routes import Route, find
from serving.schemas import to_json
from serving.settings import Settings
from serving.web.files import Files
from serving.web.handlers import Handlers
from serving.web.http import (
    HttpAnswer,
    Receive,
    RefusedError,
    Scope,
    Send,
    failed,
    read_body,
    request_head,
    unrouted,
)
from serving.web.writes import write


class Application:
    """An ASGI application; without keys, so that settings say who may see users and write."""

    def __init__(self, settings: Settings) -> None:
        """Load the bundle of the settings."""
        check_published(settings.followed)
        self.recommender = Recommender.load(settings.followed, settings).warm()
        settings, self.writer = open_writer(settings)
        self.recommender.connect(store_opener(settings), keeps_lists=settings.log_lists)
        self._settings, self._files = settings, Files()
        self._handlers = Handlers(self.recommender)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            while (event := (await receive())["type"].removeprefix("lifespan.")) != "shutdown":
                await send({"type": f"lifespan.{event}.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        try:
            answer = await self._answer(scope, receive)
        except RefusedError as error:
            answer = error.answer()
        except ConnectionResetError:
            message = "the connection closed before the whole body arrived"
            answer = RefusedError(400, "gone", message).answer()
        except Exception as error:
            log("request_failed", {"error": repr(error)}, level=logging.ERROR)
            answer = failed().answer()
        if self.writer is not None and answer.records:
            await asyncio.to_thread(self._keep_lists, answer.records)
        length = (b"content-length", str(len(answer.body)).encode())
        headers = [*answer.headers, length]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        body = b"" if scope["method"] == "HEAD" else answer.body
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Scope, receive: Receive) -> HttpAnswer:
        route, headers = find(scope["method"], scope["path"]), dict(scope["headers"])
        if route is None:
            raise unrouted(scope["method"], scope["path"])
        if route.kind == "health":
            return self._health(route)
        if route.kind == "metrics":
            raise RefusedError(404, "no_such_route", "Not Found; GET / lists the routes")
        if route.kind == "file":
            return self._files.answer(scope["path"], headers, self.recommender.bundle.version)
        if route.scope == "admin" and not self._settings.allow_admin:
            message = "an application without a server's keys does this where allow_admin is set"
            raise RefusedError(403, "no_keys", message)
        names = (b"content-type", b""), (b"content-encoding", b"identity")
        kinds = (headers.get(*name) for name in names)
        shown = self._settings.expose_users
        head, _ = request_head(
            route.name, scope["path"], scope["query_string"], *kinds, shown=shown
        )
        body = b""
        if route.method != "GET":
            body = await read_body(headers, receive, self._settings)
        if route.kind == "write":
            return await write(self.writer, head, body)
        if route.kind == "list":
            return self._handlers.answer(head, body)
        if route.kind == "batch":
            return await self._batch(head, body)
        # These may make an index, or many lists.
        return await asyncio.to_thread(self._handlers.answer, head, body)

    def _keep_lists(self, records: Sequence[bytes]) -> None:
        """Write the records of lists; a server has a process for that."""
        assert self.writer is not None
        try:
            self.writer.store.add_requests([record_of(record) for record in records])
        except StoreError as error:
            log("lists_not_kept", {"error": str(error)}, level=logging.WARNING)

    async def _batch(self, head: dict[str, object], body: bytes) -> HttpAnswer:
        """Make the lists of a batch, and let other requests run between them."""
        batch = self._handlers.batch(head, body)
        while True:
            try:
                next(batch)
            except StopIteration as done:
                answer: HttpAnswer = done.value
                return answer
            await asyncio.sleep(0)

    def _health(self, route: Route) -> HttpAnswer:
        """Report what is served; a server's front adds the state of its processes."""
        if route.name == "alive":
            return HttpAnswer(200, to_json({"status": "alive"}), {})
        return HttpAnswer(200, to_json({"status": "ready", **self.recommender.description()}), {})


def create_app(settings: Settings) -> Application:
    """Build the application over the bundle of the settings."""
    return Application(settings)
