"""The front: what the event loop does with a request before and after a worker has it.

It reads the body within its limits, asks the dispatcher, writes the reply, and logs one line.
Lists, batches and pages are made by workers; health, readiness and metrics are answered here,
whatever the workers do.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from logging import ERROR
from typing import TYPE_CHECKING, Any

import orjson
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from serving.log import log
from serving.metrics import ServerMetrics, route_of
from serving.online.records import ID_LENGTH, ID_START, new_request_id, time_of
from serving.online.writer import EventWriter
from serving.routes import ROUTES, find
from serving.security.access import Access, Caller
from serving.server.connections import Connections, leave, send_at_once
from serving.server.dispatch import Job, OverloadedError, WorkerDiedError
from serving.server.fleet import Fleet
from serving.server.frames import Frame
from serving.settings import Settings
from serving.web.files import Files
from serving.web.http import Answer, RefusedError
from serving.web.online import change_items, forget_user, take_events

if TYPE_CHECKING:
    from serving.traces import Traces

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

JSON: Headers = [
    (b"content-type", b"application/json"),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
]
CLOSE = (b"connection", b"close")
USERS = "/v1/users/"
WRITES = {"events": take_events, "change_items": change_items}
PROBES = tuple(route.path for route in ROUTES if route.kind in ("health", "metrics"))
READS = ("GET", "HEAD")
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
        traces: Traces | None = None,
        writer: EventWriter | None = None,
    ) -> None:
        self._writer, self._num_writes, self._files = writer, 0, Files()
        self._settings, self._access = settings, access
        self._fleet, self._connections = fleet, connections
        self._dispatcher, self._metrics, self._traces = fleet.dispatcher, metrics, traces
        self.draining = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        started = time.perf_counter()
        fields: dict[str, Any] = {}
        try:
            status, headers, body = await self._reply(scope, receive, fields)
        except RefusedError as error:
            if error.reason is not None:
                self._metrics.refused(error.reason)
            connection = scope.get("recsys.connection")
            read = connection is None or connection.body_is_here
            # A body that has not arrived is not waited for.
            headers = [*JSON, *error.headers, *([] if read else [CLOSE])]
            status, body = error.status, orjson.dumps(error.body)
        except ConnectionResetError:
            status, headers, body = CLIENT_GONE, [], b""
        if status != CLIENT_GONE:
            try:
                await self._send(send, status, headers, body)
            except RuntimeError:
                if not scope["recsys.connection"].transport.is_closing():
                    raise
                status = CLIENT_GONE
        if status == CLIENT_GONE:
            leave(send)
        self._observe(scope, status, time.perf_counter() - started, fields)

    def _observe(self, scope: Scope, status: int, seconds: float, fields: dict[str, Any]) -> None:
        """Count, trace and log a request that has its reply."""
        route = route_of(scope["path"])
        self._metrics.observe_request(route, status, seconds)
        parts, timings = fields.pop("parts_ms", {}), fields.pop("timings_ms", {})
        if timings:
            sources = fields.pop("sources")
            self._metrics.observe_reply(timings, sources, fields["degraded"], fields["fallback"])
        if self._traces is not None and route not in PROBES:
            self._traces.record(
                fields.get("request_id", ""),
                time.time() - seconds,
                {**parts, **timings},
                status,
                seconds=seconds,
                route=route,
                traceparent=dict(scope["headers"]).get(b"traceparent", b"").decode("latin-1"),
            )
        if self._settings.log_requests:
            line = {"method": scope["method"], "path": route, "status": status}
            log("request", {**line, "ms": round(1_000 * seconds, 3), **fields})

    async def _send(self, send: Send, status: int, headers: Headers, body: bytes) -> None:
        whole = [*headers, (b"content-length", str(len(body)).encode())]
        if self.draining:
            whole.append(CLOSE)
        cycle = getattr(send, "__self__", None)
        if isinstance(cycle, RequestResponseCycle) and not cycle.flow.write_paused:
            send_at_once(cycle, status, whole, body)
            return
        await send({"type": "http.response.start", "status": status, "headers": whole})
        await send({"type": "http.response.body", "body": body})

    async def _reply(
        self, scope: Scope, receive: Receive, fields: dict[str, Any]
    ) -> tuple[int, Headers, bytes]:
        """Answer here or by a worker.

        Raises:
            RefusedError: The request is not passed on.
            ConnectionResetError: The client is gone.
        """
        method, path = scope["method"], scope["path"]
        route = find(method, path)
        name, kind = ("", "worker") if route is None else (route.name, route.kind)
        if kind == "health":
            return self._health(path)
        caller = self._caller(scope)
        if kind == "metrics":
            return self._measured()
        headers = dict(scope["headers"])
        if kind == "file" and (file := self._file(path, headers)) is not None:
            return file
        body = b"" if method in READS else await self._read(scope, headers, receive)
        head = {
            "type": headers.get(b"content-type", b"").decode("latin-1"),
            "encoding": headers.get(b"content-encoding", b"identity").decode("latin-1"),
            "shown": caller.shows_users,
            "route": name,
        }
        if kind == "write":
            forgets = name == "forget"
            user_id = path.removeprefix(USERS)
            writing = self._forget(user_id) if forgets else WRITES[name](self._writer, head, body)
            return await self._written(writing, fields)
        if kind not in ("list", "batch"):
            passed = await self._passed_on(scope, caller, headers, body, fields)
            self._charge(caller, fields)
            return passed
        # A list that was begun before a write was acknowledged is not given to who asks after it.
        writes = str(self._num_writes).encode()
        key = body + orjson.dumps(head) + writes if kind == "list" else None
        work = "recommend" if kind == "list" else "batch"
        frame = await self._worked(scope, work, head, body, key, fields)
        self._charge(caller, fields)
        return frame.head["status"], JSON, frame.body

    def _charge(self, caller: Caller, fields: Mapping[str, Any]) -> None:
        """Count the lists that were made for a request against the caller's limit."""
        if "num_requests" in fields:
            self._access.charge(caller, fields["num_requests"])

    def _file(self, path: str, headers: Mapping[bytes, bytes]) -> tuple[int, Headers, bytes] | None:
        """Answer with a file of the page; None for any other route."""
        accept = headers.get(b"accept", b"").decode("latin-1")
        etag = headers.get(b"if-none-match", b"").decode("latin-1")
        answer = self._files.answer(path, accept, etag, self._fleet.info.get("bundle", ""))
        return None if answer is None else (answer.status, _as_sent(answer.headers), answer.body)

    async def _forget(self, user_id: str) -> Answer:
        """Forget a user, once no list of theirs is on its way to the store."""
        request_log = self._fleet.request_log
        if request_log is not None and not await request_log.flushed():
            message = "lists are still being written; nothing was removed, send it again in 1 s"
            raise RefusedError(503, "store_busy", message)
        return await forget_user(self._writer, user_id)

    async def _written(
        self, writing: Awaitable[Answer], fields: dict[str, Any]
    ) -> tuple[int, Headers, bytes]:
        try:
            answer = await writing
        except RefusedError as error:
            if error.status == 503:
                error.headers.append(RETRY)
            raise
        self._num_writes += 1
        fields |= answer.fields
        return answer.status, JSON, answer.body

    def _log_lists(self, frame: Frame) -> Frame:
        """Keep the records that came with a reply, and give the reply without them."""
        lengths = frame.head.get("records")
        if not lengths:
            return frame
        end = len(frame.body) - sum(lengths)
        if self._fleet.request_log is not None:
            self._fleet.request_log.log(frame.body[end:], lengths)
        return frame._replace(body=frame.body[:end])

    def _caller(self, scope: Scope) -> Caller:
        """Find out who calls.

        Raises:
            RefusedError: 401, 403, 404 or 429.
        """
        peer = scope["client"][0] if scope["client"] else None
        found = self._access.authorize(scope["headers"], scope["path"], scope["method"], peer)
        if isinstance(found, Caller):
            return found
        reason = "limit" if found.status == TOO_MANY else "key"
        raise RefusedError(
            found.status, found.code, found.message, headers=found.headers, reason=reason
        )

    async def _passed_on(
        self,
        scope: Scope,
        caller: Caller,
        headers: Mapping[bytes, bytes],
        body: bytes,
        fields: dict[str, Any],
    ) -> tuple[int, Headers, bytes]:
        """Let a worker run the application."""
        head = {
            "method": "GET" if scope["method"] == "HEAD" else scope["method"],
            "path": scope["path"],
            "query": scope["query_string"].decode("latin-1"),
            "headers": [
                (name.decode("latin-1"), value.decode("latin-1")) for name, value in headers.items()
            ],
            "shown": caller.shows_users,
        }
        frame = await self._worked(scope, "http", head, body, None, fields)
        answered = _as_sent(frame.head["headers"])
        return frame.head["status"], answered, frame.body

    async def _worked(
        self,
        scope: Scope,
        kind: Any,
        head: Mapping[str, Any],
        body: bytes,
        key: bytes | None,
        fields: dict[str, Any],
    ) -> Frame:
        """Wait for a worker's reply.

        Raises:
            RefusedError: 503 where none has time, 500 where workers die of it.
            ConnectionResetError: The client is gone.
        """
        try:
            job = self._dispatcher.submit(kind, head, body, key=key)
            frame = await self._awaited(job, scope)
            fields["parts_ms"] = {
                "queue": 1_000 * max(0.0, job.sent - job.created),
                "worker": 1_000 * (time.monotonic() - job.sent),
            }
        except OverloadedError:
            code = "overloaded" if self._dispatcher.workers else "no_worker"
            message = f"the server is busy; try again in {RETRY_SECONDS} s"
            reason = "queue_full" if self._dispatcher.workers else "not_ready"
            raise RefusedError(503, code, message, headers=(RETRY,), reason=reason) from None
        except WorkerDiedError:
            log("request_killed_workers", {"path": route_of(scope["path"])}, level=ERROR)
            raise RefusedError(
                500, "internal", "the request failed; see the server's log"
            ) from None
        fields |= frame.head["fields"]
        return frame

    async def _awaited(self, job: Job, scope: Scope) -> Frame:
        """Wait for a job, or until the connection that wants it is closed."""
        connection = scope.get("recsys.connection")
        mine = job.num_waiting
        waiting = asyncio.shield(job.reply) if mine > 1 or job.key else job.reply
        if connection is not None:
            connection.waits_for = waiting
        try:
            frame = await waiting
            self._metrics.queue(len(self._dispatcher.queue), max(0.0, job.sent - job.created))
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
        if mine > 1 and frame.body.startswith(ID_START):
            frame = _with_new_id(frame)
        return self._log_lists(frame)

    async def _read(self, scope: Scope, headers: Mapping[bytes, bytes], receive: Receive) -> bytes:
        """Read a body.

        Raises:
            RefusedError: 408 or 413.
            ConnectionResetError: The client is gone.
        """
        limit, seconds = self._settings.max_body_bytes, self._settings.body_timeout_seconds
        declared = headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > limit:
            raise _too_large(limit)
        connection = scope.get("recsys.connection")
        if connection is not None and connection.body_is_here:
            # Most bodies; a timer for each would cost more than reading it.
            return await _whole(receive, limit)
        try:
            async with asyncio.timeout(seconds):
                return await _whole(receive, limit)
        except TimeoutError:
            message = f"the body did not arrive within {seconds:g} s"
            raise RefusedError(408, "too_slow", message, reason="deadline") from None

    def _health(self, path: str) -> tuple[int, Headers, bytes]:
        if path == "/healthz":
            return 200, JSON, b'{"status":"alive"}'
        ready = bool(self._dispatcher.workers) and not self.draining
        status = "draining" if self.draining else "ready" if ready else "no_worker"
        state = self._fleet.state
        document = {
            "status": status,
            **self._fleet.info,
            "workers": len(self._dispatcher.workers),
            "watching": self._fleet.watching,
            "loaded_at": state.loaded_at,
            "num_swaps": state.num_swaps,
            "num_refused": state.num_refused,
            "num_restarts": state.num_restarts,
            "num_deduplicated": self._dispatcher.num_deduplicated,
            "refused": state.refused,
        }
        return 200 if ready else 503, JSON, orjson.dumps(document)

    def _measured(self) -> tuple[int, Headers, bytes]:
        metrics, dispatcher = self._metrics, self._dispatcher
        metrics.queue(len(dispatcher.queue))
        metrics.connections(len(self._connections.open))
        metrics.workers(len(dispatcher.workers), self._settings.num_workers)
        body, kind = metrics.render()
        return 200, [(b"content-type", kind.encode()), (b"cache-control", b"no-store")], body


def _as_sent(headers: Iterable[tuple[str, str]] | None) -> Headers:
    """Write an answer's headers; None are those of JSON. The front counts the length itself."""
    if headers is None:
        return JSON
    return [
        (name.encode("latin-1"), value.encode("latin-1"))
        for name, value in headers
        if name != "content-length"
    ]


async def _whole(receive: Receive, limit: int) -> bytes:
    """Put a body's parts together.

    Raises:
        RefusedError: 413.
        ConnectionResetError: The client is gone.
    """
    parts, size, more = [], 0, True
    while more:
        received = await receive()
        if received["type"] == "http.disconnect":
            raise ConnectionResetError
        part, more = received["body"], received["more_body"]
        if (size := size + len(part)) > limit:
            raise _too_large(limit)
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(limit: int) -> RefusedError:
    return RefusedError(413, "too_large", f"the body may have at most {limit} bytes", reason="body")


def _with_new_id(frame: Frame) -> Frame:
    """Give a shared reply, and the record of its list, an id of its own."""
    old = frame.body[len(ID_START) : len(ID_START) + ID_LENGTH]
    own = new_request_id(time_of(old.decode()))
    head = {**frame.head, "fields": {**frame.head["fields"], "request_id": own}}
    return Frame(frame.job, head, frame.body.replace(ID_START + old, ID_START + own.encode()))
