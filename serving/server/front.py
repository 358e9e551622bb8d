"""The front: what the event loop does with a request before and after a worker has it.

It reads the body within its limits, asks the dispatcher, writes the reply, and logs one line.
Lists, batches and pages are made by workers; health, readiness and metrics are answered here,
even if no worker lives.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from logging import ERROR
from typing import Any

import orjson
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from serving.log import log
from serving.metrics import ServerMetrics, counted_route
from serving.online.writer import EventWriter
from serving.routes import find
from serving.security.access import Access, Caller
from serving.server.connections import Connections, leave, send_at_once, written
from serving.server.dispatch import JobKind, Key, OverloadedError, WorkerDiedError, WorkerJob
from serving.server.fleet import Fleet
from serving.server.frames import Frame, with_new_id
from serving.settings import Settings
from serving.web.files import Files
from serving.web.http import (
    Head,
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
from serving.web.wish_reading import Reading, WishReader
from serving.web.writes import write

CLOSE = (b"connection", b"close")
JOBS: Mapping[str, JobKind] = {"list": "recommend", "batch": "batch", "worker": "other"}
"""How the dispatcher queues the kinds of routes that workers answer."""
MAX_OBSERVED = 16
"""Requests that are counted together, in less time than one by one between other work."""
RETRY_SECONDS = 1
RETRY = (b"retry-after", str(RETRY_SECONDS).encode())
TOO_MANY = 429
CLIENT_GONE = 499
"""Logged where the client closed the connection before it had a reply."""


class Front:
    """The application that the HTTP server runs."""

    def __init__(
        self,
        settings: Settings,
        access: Access,
        fleet: Fleet,
        connections: Connections,
        metrics: ServerMetrics,
        writer: EventWriter | None = None,
    ) -> None:
        self._writer, self._num_writes, self._files, self.wishes = writer, 0, Files(), WishReader()
        self._settings, self._access = settings, access
        self._fleet, self._connections = fleet, connections
        self._dispatcher, self._metrics = fleet.dispatcher, metrics
        self._observed: list[tuple[Any, ...]] = []
        self.draining = False
        connections.is_full, connections.bodies = self._is_full, fleet.dispatcher.bodies
        busy = _busy().answer()
        connections.refusal = written(busy.status, busy.headers, busy.body)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        started = time.perf_counter()
        fields: dict[str, Any] = {}
        try:
            answer = await self._reply(scope, receive, fields)
        except RefusedError as error:
            if error.reason is not None:
                self._metrics.refused(error.reason)
            connection = scope.get("recsys.connection")
            if connection is not None and not connection.body_is_here:
                # A body that has not arrived is not waited for.
                error.headers.append(CLOSE)
            answer = error.answer()
        except ConnectionResetError:
            answer = HttpAnswer(CLIENT_GONE, b"", {})
        status = answer.status
        if status != CLIENT_GONE:
            try:
                await self._send(send, answer)
            except RuntimeError:
                if not scope["recsys.connection"].transport.is_closing():
                    raise
                status = CLIENT_GONE
        if status == CLIENT_GONE:
            leave(send)
        self._observe(scope, status, time.perf_counter() - started, fields)

    def _observe(self, scope: Scope, status: int, seconds: float, fields: dict[str, Any]) -> None:
        """Count, soon, and log a request that has its reply."""
        route = counted_route(scope["path"])
        timings, sources = fields.pop("timings_ms", {}), fields.pop("sources", ())
        self._observed.append((route, status, seconds, timings, sources, fields))
        if len(self._observed) >= MAX_OBSERVED:
            self._count_observed()
        if self._settings.log_requests:
            line = {"method": scope["method"], "path": route, "status": status}
            log("request", {**line, "ms": round(1_000 * seconds, 3), **fields})

    def _count_observed(self) -> None:
        observed, self._observed = self._observed, []
        for route, status, seconds, timings, sources, fields in observed:
            self._metrics.observe_request(route, status, seconds)
            if timings:
                codes, fallback = fields["degraded"], fields["fallback"]
                self._metrics.observe_reply(timings, sources, codes, fallback)

    def _is_full(self) -> bool:
        """Return whether lists are refused at once; a server that ends closes connections too."""
        return not self.draining and bool(self._dispatcher.workers) and self._dispatcher.is_full

    def count_refused(self) -> None:
        """Count, and log in one line, the lists that were refused at once."""
        for path, number in self._connections.num_refused.items():
            self._metrics.refused_at_once(path, number)
            if self._settings.log_requests:
                log("requests_refused", {"path": path, "status": 503, "number": number})
        self._connections.num_refused.clear()

    async def _send(self, send: Send, answer: HttpAnswer) -> None:
        headers = (*answer.headers, CLOSE) if self.draining else answer.headers
        cycle = getattr(send, "__self__", None)
        if isinstance(cycle, RequestResponseCycle) and not cycle.flow.write_paused:
            send_at_once(cycle, answer.status, headers, answer.body)
            return
        whole = [*headers, (b"content-length", str(len(answer.body)).encode())]
        await send({"type": "http.response.start", "status": answer.status, "headers": whole})
        await send({"type": "http.response.body", "body": answer.body})

    async def _reply(self, scope: Scope, receive: Receive, fields: dict[str, Any]) -> HttpAnswer:
        """Answer here or by a worker."""
        method, path = scope["method"], scope["path"]
        route = find(method, path)
        if route is not None and route.kind == "health":
            return self._health(path)
        caller = self._caller(scope)
        if route is None:
            raise unrouted(method, path)
        if route.kind == "metrics":
            return self._measured()
        headers = dict(scope["headers"])
        if route.kind == "file":
            return self._files.answer(path, headers, self._fleet.info.get("bundle", ""))
        body = b""
        if route.method != "GET":
            connection = scope.get("recsys.connection")
            is_here = connection is not None and connection.body_is_here
            body = await read_body(headers, receive, self._settings, is_here=is_here)
        head, packed = request_head(
            route.name,
            path,
            scope["query_string"],
            headers.get(b"content-type", b""),
            headers.get(b"content-encoding", b"identity"),
            shown=caller.shows_users,
        )
        if route.kind == "write":
            return await self._written(scope, head, packed, body, fields)
        key: Key | None = None
        if route.kind == "list":
            # A list begun before a write was acknowledged is not given to a request after it.
            key = (body, packed, self._num_writes)
        frame = await self._worked(scope, JOBS[route.kind], packed, body, key, fields)
        if "num_requests" in fields:
            # The lists that were made count against the caller's limit.
            self._access.charge(caller, fields["num_requests"])
        return HttpAnswer(frame.head["status"], frame.body, {})

    async def _read_wish(self, scope: Scope, packed: bytes, body: bytes) -> Reading | None:
        """Let a language model read what a worker's rules leave unread of a wish."""
        try:
            frame = await self._worked(scope, "other", packed, body, None, {})
        except RefusedError:
            return await self.wishes.read(None)
        return await self.wishes.read(frame.body)

    async def _written(
        self, scope: Scope, head: Head, packed: bytes, body: bytes, fields: dict[str, Any]
    ) -> HttpAnswer:
        # No list of a user who is forgotten may be on its way to the store.
        request_log = self._fleet.request_log if head["route"] == "forget" else None
        try:
            if request_log is not None and not await request_log.flushed():
                message = "lists are still being written; nothing was removed, send it again in 1 s"
                raise RefusedError(503, "store_busy", message)
            reading = None
            if head["route"] == "put_topics" and self._fleet.info.get("reads_wishes"):
                reading = await self._read_wish(scope, packed, body)
            answer = await write(self._writer, head, body, reading)
        except RefusedError as error:
            if error.status == 503:
                error.headers.append(RETRY)
            raise
        self._num_writes += 1
        fields |= answer.fields
        return answer

    def _caller(self, scope: Scope) -> Caller:
        """Find out who calls."""
        peer = scope["client"][0] if scope["client"] else None
        found = self._access.authorize(scope["headers"], scope["path"], scope["method"], peer)
        if isinstance(found, Caller):
            return found
        reason = "limit" if found.status == TOO_MANY else "key"
        raise RefusedError(
            found.status, found.code, found.message, headers=found.headers, reason=reason
        )

    async def _worked(
        self,
        scope: Scope,
        kind: JobKind,
        head: bytes,
        body: bytes,
        key: Key | None,
        fields: dict[str, Any],
    ) -> Frame:
        """Wait for a worker's reply."""
        try:
            job = self._dispatcher.submit(kind, head, body, key=key)
            frame = await self._awaited(job, scope)
        except OverloadedError:
            refusal = _busy() if self._dispatcher.workers else _busy("no_worker", "not_ready")
            raise refusal from None
        except WorkerDiedError:
            log("request_killed_workers", {"path": counted_route(scope["path"])}, level=ERROR)
            raise failed() from None
        fields |= frame.head["fields"]
        return frame

    async def _awaited(self, job: WorkerJob, scope: Scope) -> Frame:
        """Wait for a job, or until the connection that wants it is closed."""
        connection = scope.get("recsys.connection")
        mine = job.num_waiting
        waiting = job.reply if mine == 1 else job.join()
        if connection is not None:
            connection.waits_for = waiting
        try:
            frame = await waiting
            self._metrics.queued(max(0.0, job.sent - job.created))
        except asyncio.CancelledError:
            self._dispatcher.abandon(job)
            if connection is not None and connection.gone:
                raise ConnectionResetError from None
            # The server ends before the worker does.
            raise RefusedError(
                503, "draining", "the server ends; ask another one", reason="draining"
            ) from None
        finally:
            if connection is not None:
                connection.waits_for = None
        if mine > 1:
            frame = with_new_id(frame)
        if frame.records and self._fleet.request_log is not None:
            self._fleet.request_log.log(frame.records, frame.head["records"])
        return frame

    def _health(self, path: str) -> HttpAnswer:
        if path == "/healthz":
            return HttpAnswer(200, b'{"status":"alive"}', {})
        document = self._fleet.readiness(draining=self.draining)
        return HttpAnswer(200 if document["status"] == "ready" else 503, orjson.dumps(document), {})

    def _measured(self) -> HttpAnswer:
        metrics, dispatcher = self._metrics, self._dispatcher
        self._count_observed()
        self.count_refused()
        metrics.note(
            queue_depth=len(dispatcher.queue),
            connections=len(self._connections.open),
            workers_ready=len(dispatcher.workers),
            workers_wanted=self._settings.num_workers,
        )
        body, kind = metrics.render()
        headers = ((b"content-type", kind.encode()), (b"cache-control", b"no-store"))
        return HttpAnswer(200, body, {}, headers)


def _busy(code: str = "overloaded", reason: str = "queue_full") -> RefusedError:
    message = f"the server is busy; try again in {RETRY_SECONDS} s"
    return RefusedError(503, code, message, headers=(RETRY,), reason=reason)
