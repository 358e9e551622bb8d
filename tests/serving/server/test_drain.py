"""SIGTERM under traffic on kept-alive connections: every request that was sent is answered.

``RECSYS_DRAINS=20`` ends twenty servers in place of one (``make soak``). One server also shows what
the log holds from start to end.
"""

import asyncio
import json
import os
import random
import signal
import socket
from collections import Counter
from types import SimpleNamespace

import pytest
import uvicorn

from serving.bundle.manifest import publish
from serving.server.connections import Connection, Connections
from serving.server.serve import Server
from serving.settings import Settings
from tests.serving.server.running import RunningServer, wait_for
from tests.serving.synthetic_bundle import SyntheticSize, write_synthetic_bundle

DRAINS = int(os.environ.get("RECSYS_DRAINS", "1"))
REQUESTS_PER_SECOND, CONNECTIONS = 150.0, 30
RECOMMEND = "/v1/recommend"
LOGGED = {
    "drain_notice_seconds": 0.3,
    "poll_seconds": 3600,
    "log_requests": "true",
    # A busy machine refuses none.
    "queue_ms": 5_000,
}
HEALTH = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"


async def reply_to(streams, request):
    """Status of a reply and whether it closes the connection; None if there is none."""
    reader, writer = streams
    try:
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        await reader.readexactly(int(head.split(b"content-length:")[1].split(b"\r\n")[0]))
    except (OSError, asyncio.IncompleteReadError):
        return None, True
    return int(head.split()[1]), b"connection: close" in head


class Traffic:
    """Requests at random moments on kept-alive connections, until nobody listens."""

    def __init__(self, port):
        self.port, self.statuses = port, Counter()

    async def run(self):
        await asyncio.gather(*(self._ask(number) for number in range(CONNECTIONS)))

    async def _ask(self, number):
        moments = random.Random(number)
        body = json.dumps({"user_id": f"user-{1 + number}", "k": 5}).encode()
        head = b"POST /v1/recommend HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        request = head + b"content-length: %d\r\n\r\n" % len(body) + body
        streams = None
        while True:
            if streams is None:
                try:
                    streams = await asyncio.open_connection("127.0.0.1", self.port)
                except OSError:
                    return
            await asyncio.sleep(moments.expovariate(REQUESTS_PER_SECOND / CONNECTIONS))
            closes = streams[0].at_eof()
            if not closes:
                status, closes = await reply_to(streams, request)
                self.statuses[status] += 1
            if closes:
                streams[1].close()
                streams = None


@pytest.mark.timeout(60 + 60 * DRAINS)
def test_no_request_is_cut_off_by_sigterm(bundles_dir, tmp_path):
    async def end_under_traffic(server):
        traffic = Traffic(server.port)
        running = asyncio.create_task(traffic.run())
        await asyncio.sleep(0.7)
        server.process.send_signal(signal.SIGTERM)
        await running
        return traffic.statuses

    statuses = Counter()
    write_synthetic_bundle(bundles_dir, "v2", SyntheticSize(seed=1))
    for _ in range(DRAINS):
        publish(bundles_dir, "v1")
        server = RunningServer(bundles_dir, tmp_path / "log", **LOGGED).until_ready()
        publish(bundles_dir, "v2")
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda server=server: server.state().get("bundle") == "v2")
        assert server.get(RECOMMEND, {"k": 1})[0] == 200
        statuses += asyncio.run(end_under_traffic(server))
        assert server.process.wait(timeout=30) == 0
        assert_lines_are_structured(server)
    assert set(statuses) == {200}
    assert statuses[200] > 30 * DRAINS


def assert_lines_are_structured(server):
    names = [line["event"] for line in server.events() if line["event"] != "request"]
    assert names == ["bundle_loaded", "serving", "bundle_swapped", "draining"]
    asked = server.events("request")
    (alone,) = [one for one in asked if (one["path"], one.get("num_items")) == (RECOMMEND, 1)]
    assert (alone["status"], alone["bundle"]) == (200, "v2")


async def answer(scope, receive, send):
    headers = [(b"content-length", b"2"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def listening(monkeypatch, tmp_path):
    """Start a server in this process; give it and its listening socket."""

    async def start(grace_seconds=30):
        monkeypatch.setattr(
            Connection, "table", Connections(Settings(bundles=tmp_path)), raising=False
        )
        monkeypatch.setattr("serving.server.serve.GRACE_SECONDS", grace_seconds)
        config = uvicorn.Config(
            answer, http=Connection, lifespan="off", log_config=None, timeout_graceful_shutdown=30
        )
        config.load()
        server = Server(config, SimpleNamespace(draining=True), 0.0)
        server.lifespan = config.lifespan_class(config)
        listener = socket.create_server(("127.0.0.1", 0))
        await server.startup([listener])
        return server, listener

    return start


def test_connections_that_are_not_accepted_yet_are_answered(listening):
    async def connect_and_end():
        server, listener = await listening()
        # The loop, which would accept them, does not run meanwhile.
        waiting = [socket.create_connection(listener.getsockname()) for _ in range(5)]
        for one in waiting:
            one.sendall(HEALTH)
        await asyncio.wait_for(server.shutdown([listener]), 20)
        for one in waiting:
            one.settimeout(5)
            assert one.recv(1000).startswith(b"HTTP/1.1 200")
            one.close()

    asyncio.run(connect_and_end())


def test_an_idle_connection_may_send_one_more_request(listening):
    async def end_and_ask():
        server, listener = await listening()
        address = listener.getsockname()
        idle = await asyncio.open_connection(*address)
        ending = asyncio.create_task(server.shutdown([listener]))
        await asyncio.sleep(0.2)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address)
        assert await reply_to(idle, HEALTH) == (200, True)
        # It was the last connection.
        await asyncio.wait_for(ending, 20)
        idle[1].close()

    asyncio.run(end_and_ask())


def test_an_idle_connection_is_closed_last_unless_its_request_has_come(listening):
    async def end():
        server, listener = await listening(grace_seconds=0.1)
        idle = await asyncio.open_connection(*listener.getsockname())
        late = socket.create_connection(listener.getsockname())
        while len(server.server_state.connections) < 2:
            await asyncio.sleep(0.001)
        late.sendall(HEALTH)
        # Closed by uvicorn's own order, before the loop has read what came.
        for connection in list(server.server_state.connections):
            connection.shutdown()
        late.settimeout(5)
        assert (await asyncio.to_thread(late.recv, 1000)).startswith(b"HTTP/1.1 200")
        assert await idle[0].read() == b""
        await asyncio.wait_for(server.shutdown([listener]), 20)
        late.close()
        idle[1].close()

    asyncio.run(end())
