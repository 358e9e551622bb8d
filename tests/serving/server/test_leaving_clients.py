"""Clients that leave before they have their reply: uvicorn answers nothing in our place."""

import asyncio
import logging
from types import SimpleNamespace

import pytest
import uvicorn
from uvicorn.server import ServerState

from serving.metrics import ServerMetrics
from serving.security.access import Access
from serving.server.connections import Connection, Connections
from serving.server.dispatch import Dispatcher
from serving.server.front import Front
from serving.settings import Settings

HEALTH = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
LIST = (
    b"POST /v1/recommend HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    b"content-length: 2\r\n\r\n{}"
)


class Transport(asyncio.Transport):
    """As uvloop's: closed at once when its client leaves, the protocol hears of it later."""

    def __init__(self):
        super().__init__()
        self.written, self.closed = [], False

    def write(self, data):
        if self.closed:
            raise RuntimeError("the handler is closed")
        self.written.append(data)

    def close(self):
        self.closed = True

    def is_closing(self):
        return self.closed

    def get_write_buffer_size(self):
        return 0

    def pause_reading(self):
        pass

    resume_reading = pause_reading


@pytest.fixture
def connect(monkeypatch, tmp_path):
    """Connections to a front without workers."""
    settings, metrics = Settings(bundles=tmp_path, log_requests=False), ServerMetrics()
    dispatcher = Dispatcher(queue_seconds=5.0, max_queue=9)
    fleet = SimpleNamespace(dispatcher=dispatcher, info={}, request_log=None)
    table = Connections(settings, metrics.refused)
    monkeypatch.setattr(Connection, "table", table, raising=False)
    front = Front(settings, Access(settings), fleet, table, metrics)
    config = uvicorn.Config(front, http=Connection, lifespan="off", log_config=None)

    def connection():
        made = Connection(config, ServerState(), {}, asyncio.get_running_loop())
        made.connection_made(Transport())
        return made

    return connection


async def finished(connection):
    await asyncio.wait_for(asyncio.gather(*connection.tasks), 10)


def test_a_reply_to_a_transport_that_has_just_closed_is_no_error(connect, caplog):
    async def leave():
        connection = connect()
        connection.data_received(HEALTH)
        connection.transport.close()
        await finished(connection)
        assert connection.transport.written == []
        connection.connection_lost(None)

    with caplog.at_level(logging.ERROR):
        asyncio.run(leave())
    assert caplog.records == []


def test_a_client_that_leaves_with_two_requests_on_their_way_is_no_error(connect, caplog):
    async def leave():
        connection = connect()
        connection.data_received(LIST + LIST)
        await asyncio.sleep(0)
        connection.transport.close()
        connection.connection_lost(None)
        await finished(connection)
        assert connection.transport.written == []

    with caplog.at_level(logging.ERROR):
        asyncio.run(leave())
    assert caplog.records == []
