"""Client connections: limits on how many there are, and on how slow one may be.

uvicorn's protocol has no deadline for a request's head and no care for a full table of connections.
Here a connection that has sent no whole head in time is closed, and so is one that does not read
its reply; where the table is full, the connection that has waited longest for its client gives way.
"""

from __future__ import annotations

import asyncio
import resource
import select
from collections import Counter, OrderedDict
from collections.abc import Callable, Container, Coroutine, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from time import monotonic
from typing import Any, ClassVar

import orjson
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from serving.routes import ROUTES
from serving.schemas import error_body
from serving.settings import Settings

LISTS = frozenset((route.method, route.path) for route in ROUTES if route.kind == "list")
"""Methods and paths of requests that only ever wait for a worker."""
LIST_LINES = frozenset((method.encode(), path.encode()) for method, path in LISTS)
SPARE_DESCRIPTORS = 64
SWEEP_SECONDS = 0.25


class Connections:
    """All connections of a server, those that wait for their client in order of their waiting."""

    def __init__(
        self, settings: Settings, refused: Callable[[str], None] = lambda reason: None
    ) -> None:
        """``refused`` is called with the reason of each connection that is closed."""
        self.settings, self.refused = settings, refused
        self.limit = min(settings.max_connections, _descriptors() - SPARE_DESCRIPTORS)
        self.waiting: OrderedDict[Connection, float] = OrderedDict()
        self.open: set[Connection] = set()
        self.num_evicted = 0
        self.is_full: Callable[[], bool] = lambda: False
        """Whether no list may wait any more, unless an equal one does, by its body."""
        self.bodies: Container[bytes] = ()
        """Bodies of the lists that wait."""
        self.refusal = b""
        """What a list gets while it `is_full`, its connection being kept."""
        self.num_refused: Counter[str] = Counter()
        """Lists that got it and are not counted yet, by path."""

    def add(self, connection: Connection) -> bool:
        """Take a connection; False where the table is full of requests that are being answered."""
        if len(self.open) >= self.limit:
            self.refused("connections")
            if not self.waiting:
                return False
            oldest, _ = self.waiting.popitem(last=False)
            self.num_evicted += 1
            oldest.abort()
        self.open.add(connection)
        return True

    def remove(self, connection: Connection) -> None:
        self.open.discard(connection)
        self.waiting.pop(connection, None)

    def waits(self, connection: Connection) -> None:
        """Note that it is the client's turn."""
        if connection in self.open:
            self.waiting[connection] = monotonic()
            self.waiting.move_to_end(connection)

    def works(self, connection: Connection) -> None:
        """Note that it is the server's turn."""
        self.waiting.pop(connection, None)

    async def sweep(self, *also: Callable[[], None]) -> None:
        """Close slow connections, and call ``also`` as often, until the server ends."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            for one in also:
                one()
            now = monotonic()
            for connection, since in list(self.waiting.items()):
                late = now - since > self.settings.header_timeout_seconds
                # A slow body is refused by who reads it, with a reply.
                if late and connection.is_unsent:
                    self.refused("deadline")
                    connection.abort()
                elif connection.idle and now - since > self.settings.keep_alive_seconds:
                    connection.transport.close()
            for connection in [one for one in self.open if one.is_unread(now)]:
                self.refused("deadline")
                connection.abort()


class Connection(HttpToolsProtocol):
    """One client's connection."""

    table: ClassVar[Connections]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.waits_for: asyncio.Future[Any] | None = None
        self.gone = False
        self.idle = False
        """True if nothing has come since the last reply."""
        self._head_bytes = 0
        self._begins: tuple[RequestResponseCycle, ASGI3Application] | None = None
        """A request that is not begun yet."""
        self._held: list[bytes] | None = None
        """Body so far of a list that is refused unless more of it comes."""
        self._unread: tuple[int, float] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if not self.table.add(self):
            self._refuse(b"503 Service Unavailable", "too_many_connections", "try again in 1 s")
            return
        self.table.waits(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone = True
        self.table.remove(self)
        if self.waits_for is not None:
            self.waits_for.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.parser is None or self.transport.is_closing():
            return
        if self.idle:
            self.idle = False
            self.table.waits(self)
        self._head_bytes += len(data)
        before = self.cycle
        super().data_received(data)
        if self._held is not None:
            self._take()
        self._begin(at_once=False)
        if self.cycle is not before:
            self._head_bytes = 0
        elif self.in_head and self._head_bytes > self.table.settings.max_header_bytes:
            self._refuse_head()

    def on_headers_complete(self) -> None:
        size = len(self.url)
        for name, value in self.headers:
            size += len(name) + len(value) + 4
        if size > self.table.settings.max_header_bytes:
            self._refuse_head()
            raise ValueError("the head is too large")
        if self._is_refused:
            self._held = []
        else:
            self._take()

    @property
    def _is_refused(self) -> bool:
        """True if no list may wait, and this is one that leaves its connection as it is."""
        return (
            self.table.is_full()
            and self.in_head
            and (self.parser.get_method(), self.url) in LIST_LINES
            and self.parser.should_keep_alive()
            and self.parser.get_http_version() == "1.1"
            and not self.flow.write_paused
        )

    def _take(self) -> None:
        """Handle a request as uvicorn does, with what has come of its body."""
        held, self._held = self._held or (), None
        super().on_headers_complete()
        self.scope["recsys.connection"] = self  # type: ignore[typeddict-unknown-key]
        for part in held:
            super().on_body(part)

    def on_body(self, body: bytes) -> None:
        if self._held is None:
            super().on_body(body)
        else:
            self._held.append(body)

    def on_message_complete(self) -> None:
        if self._held is not None:
            if b"".join(self._held) not in self.table.bodies:
                # Parsing it and logging it would cost more than all of this.
                self._held, self._head_bytes, self.idle = None, 0, True
                self.table.num_refused[self.url.decode()] += 1
                self.transport.write(self.table.refusal)
                return
            self._take()
        self.table.works(self)
        super().on_message_complete()
        self._begin(at_once=True)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        """Wait for the end of the request, or of what has arrived of it."""
        self._begins = (cycle, app)

    def _begin(self, *, at_once: bool) -> None:
        """Answer a request; a list ``at_once``, without a task, whose bookkeeping costs as much."""
        if self._begins is None:
            return
        (cycle, app), self._begins = self._begins, None
        scope = cycle.scope
        if not at_once or (scope["method"], scope["path"]) not in LISTS:
            super()._start_asgi_task(cycle, app)
            return
        self._go_on(cycle.run_asgi(app))

    def _go_on(self, running: Coroutine[Any, Any, None], _: object = None) -> None:
        with suppress(StopIteration):
            waits_for = running.send(None)
            # Not a function in a function, which would be garbage that only a search finds.
            go_on = partial(self._go_on, running)
            if waits_for is None:  # as of ``asyncio.sleep(0)``
                self.loop.call_soon(go_on)
                return
            waits_for._asyncio_future_blocking = False
            waits_for.add_done_callback(go_on)

    def on_response_complete(self) -> None:
        """Begin the next request; without one `Connections.sweep` closes what stays idle."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            super()._start_asgi_task(*self.pipeline.pop())
        elif self.in_head:
            self.idle = True
            self._head_bytes = 0
            self.table.waits(self)

    def shutdown(self) -> None:
        """Close, unless a request is on its way: its reply is the last one, and says so."""
        if self.transport.is_closing():
            return
        if not (self.in_head and (self._head_bytes or self._has_arrived)):
            super().shutdown()

    @property
    def is_unsent(self) -> bool:
        """True if the client has begun a request, or has just connected, and sent no whole head.

        What arrived while this process was not running is read first.
        """
        closes = self.transport.is_closing()
        return self.in_head and not self.idle and (closes or not self._has_arrived)

    @property
    def _has_arrived(self) -> bool:
        """True if the socket holds bytes that were not read yet."""
        polled = select.poll()
        polled.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(polled.poll(0))

    def is_unread(self, now: float) -> bool:
        """True if the client has read none of its reply for too long."""
        size = self.transport.get_write_buffer_size()
        if size == 0:
            self._unread = None
            return False
        if self._unread is None or size < self._unread[0]:
            self._unread = (size, now)
        return now - self._unread[1] > self.table.settings.write_timeout_seconds

    def abort(self) -> None:
        """Close at once, without the reply that is being written."""
        self._disconnect()
        self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        if not self.transport.is_closing():
            self._refuse(b"400 Bad Request", "bad_http", "this is not an HTTP/1.1 request")

    def _disconnect(self) -> None:
        if self.cycle is not None:
            self.cycle.disconnected = True

    @property
    def in_head(self) -> bool:
        """True if no request is being read or answered beyond its head."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def body_is_here(self) -> bool:
        """True if the newest request has arrived whole."""
        return self.cycle is not None and not self.cycle.more_body

    def _refuse_head(self) -> None:
        self.table.refused("headers")
        self._refuse(
            b"431 Request Header Fields Too Large",
            "headers_too_large",
            f"the headers may have at most {self.table.settings.max_header_bytes} bytes",
        )

    def _refuse(self, status: bytes, code: str, message: str) -> None:
        body = orjson.dumps(error_body(code, message))
        head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\nconnection: close\r\n" % status
        self._disconnect()
        self.transport.write(b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body))
        self.transport.close()


def send_at_once(
    cycle: RequestResponseCycle, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes
) -> None:
    """Write a whole response in one piece, where uvicorn would write its head by itself.

    Args:
        cycle: The request; its connection is not paused, and nothing was written for it.
        headers: All but the length; checked by who makes them: lower case, no line breaks.
    """
    if cycle.disconnected:
        return
    lines = [STATUS_LINE[status], _lines(tuple(cycle.default_headers)), _lines(tuple(headers))]
    lines.append(b"content-length: %d\r\n" % len(body))
    cycle.keep_alive = cycle.keep_alive and (b"connection", b"close") not in headers
    if not cycle.keep_alive and (b"connection", b"close") not in headers:
        lines.append(b"connection: close\r\n")
    lines.append(b"\r\n")
    if cycle.scope["method"] != "HEAD":
        lines.append(body)
    cycle.transport.write(b"".join(lines))
    cycle.response_started = cycle.response_complete = True
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()


def written(status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> bytes:
    """Write a response that has no date."""
    length = (b"content-length", str(len(body)).encode())
    return b"%b%b\r\n%b" % (STATUS_LINE[status], _lines((*headers, length)), body)


@lru_cache(maxsize=64)
def _lines(headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    """Write headers as they are sent; most responses have the same."""
    return b"".join(b"%b: %b\r\n" % header for header in headers)


def leave(send: object) -> None:
    """Stop uvicorn from replying to a request whose client is gone.

    It learns that some time after the transport is closed, and only for the newest of pipelined
    requests; until then it takes a request without a reply for a failure, and answers it.
    """
    cycle = getattr(send, "__self__", None)
    if isinstance(cycle, RequestResponseCycle):
        cycle.disconnected = True


def _descriptors() -> int:
    """Raise this process's limit of open files as far as it may, and give it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
