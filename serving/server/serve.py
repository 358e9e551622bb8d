"""Run a server: the listening socket, the processes, and a drain at the end."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
from contextlib import suppress
from types import FrameType

import uvicorn

from serving.configuration.file import read_configuration
from serving.log import log, log_to_stderr
from serving.metrics import ServerMetrics
from serving.online.opening import open_writer
from serving.online.writer import EventWriter
from serving.security.access import Access
from serving.server.connections import Connection, Connections
from serving.server.dispatch import Dispatcher
from serving.server.fleet import Fleet
from serving.server.front import Front
from serving.settings import Settings

BACKLOG = 4096
GRACE_SECONDS = 2.0
"""Time that idle connections may send one more request once no further ones are accepted."""


class Server(uvicorn.Server):
    """uvicorn's server; on SIGTERM readiness ends first, then connections, then processes.

    From SIGTERM on every reply closes its connection. A server that closed idle connections itself
    would cut off requests that are on their way to it, so it does that last.
    """

    def __init__(self, config: uvicorn.Config, front: Front, notice_seconds: float) -> None:
        super().__init__(config)
        self._front, self._notice_seconds = front, notice_seconds
        self._grace_seconds = min(GRACE_SECONDS, config.timeout_graceful_shutdown or 0.0)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._front.draining:
            self.should_exit = self.force_exit = True
            return
        log("draining", {"signal": signal.Signals(sig).name})
        self._front.draining = True
        if sig == signal.SIGINT:
            self._notice_seconds = self._grace_seconds = 0.0
        loop = asyncio.get_running_loop()
        loop.call_soon_threadsafe(loop.call_later, self._notice_seconds, self._end)

    def _end(self) -> None:
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for listener in sockets or []:
            await self._accept_last(listener)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._grace_seconds
        while self.server_state.connections and loop.time() < deadline and not self.force_exit:
            await asyncio.sleep(0.02)
        await super().shutdown(sockets)
        for connection in self.server_state.connections:
            if isinstance(connection, Connection) and connection.waits_for is not None:
                connection.waits_for.cancel()

    async def _accept_last(self, listener: socket.socket) -> None:
        """Stop listening; connections that wait to be accepted would be reset with the socket."""
        with listener.dup() as last:
            for server in self.servers:
                server.close()
            last.setblocking(False)
            with suppress(OSError):
                while True:
                    await asyncio.get_running_loop().connect_accepted_socket(
                        lambda: Connection(self.config, self.server_state, self.lifespan.state),
                        last.accept()[0],
                    )


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, after running requests; SIGHUP polls for a bundle."""
    log_to_stderr()
    access = Access(settings)
    settings, writer = open_writer(settings)
    with _listening(settings) as listener, suppress(KeyboardInterrupt):
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(settings, access, writer, listener))


async def _serve(
    settings: Settings, access: Access, writer: EventWriter | None, listener: socket.socket
) -> None:
    dispatcher = Dispatcher(queue_seconds=settings.queue_ms / 1_000, max_queue=settings.max_queue)
    metrics = ServerMetrics()
    fleet = Fleet(settings=settings, dispatcher=dispatcher, metrics=metrics)
    Connection.table = Connections(settings, metrics.refused)
    front = Front(settings, access, fleet, Connection.table, metrics, writer)
    config = uvicorn.Config(
        front,
        http=Connection,
        access_log=False,
        log_level="error",
        lifespan="off",
        ws="none",
        proxy_headers=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=settings.keep_alive_seconds,
        timeout_graceful_shutdown=settings.drain_seconds,
    )
    try:
        await fleet.start()
        if settings.config is not None and (model := read_configuration(settings.config).wishes):
            front.wishes.connect(model)
        # Cycles are looked for seldom, and never among what stays: where thousands of requests
        # waited, full searches of 100 ms took a fifth of the front's time.
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 50)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, fleet.wake)
        also = (access.poll, front.count_refused)
        sweeping = loop.create_task(Connection.table.sweep(*also))
        host, port = listener.getsockname()[:2]
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        log("serving", {"address": address, "workers": settings.num_workers})
        await Server(config, front, settings.drain_notice_seconds).serve(sockets=[listener])
        sweeping.cancel()
    finally:
        await fleet.stop()
        if writer is not None:
            await asyncio.to_thread(writer.close)


def _listening(settings: Settings) -> socket.socket:
    """Bind the address, so that a port that is taken is known before a bundle is loaded."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server(
            (settings.host, settings.port), family=family, backlog=BACKLOG, reuse_port=False
        )
    except OSError as error:
        raise ValueError(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}; name "
            "another address with --host and --port (0 takes any free port)"
        ) from error
