"""A dispatcher and a front whose workers compute nothing: a test decides each reply and death."""

import asyncio
import contextlib
import json
import selectors
import socket
from dataclasses import dataclass

import uvicorn

from serving.metrics import ServerMetrics
from serving.online.records import ID_START
from serving.online.store import new_request_id
from serving.security.access import Access
from serving.server.connections import Connection, Connections
from serving.server.dispatch import Dispatcher, WorkerLink
from serving.server.fleet import Fleet
from serving.server.frames import FrameReader, packed
from serving.server.front import Front
from serving.settings import Settings

SECONDS = 30


def run(test):
    """Run a test in an event loop, for a bounded time."""
    asyncio.run(asyncio.wait_for(test(), SECONDS))


class Pipe(asyncio.WriteTransport):
    """Holds what a worker would read."""

    def __init__(self):
        super().__init__()
        self.frames, self._reader, self.closed = [], FrameReader(), False

    def write(self, data):
        self.frames += self._reader.feed(data)

    def close(self):
        self.closed = True


class Bench:
    """A dispatcher with idle workers."""

    def __init__(self, workers=1, queue_seconds=5.0, max_queue=100):
        self.dispatcher = Dispatcher(queue_seconds=queue_seconds, max_queue=max_queue)
        self.pipes = []
        self.links = [self.link() for _ in range(workers)]
        self.dispatcher.use(set(self.links))

    def link(self):
        link = WorkerLink(self.dispatcher, 0)
        self.pipes.append(Pipe())
        link.connection_made(self.pipes[-1])
        return link

    def submit(self, kind="recommend", key=None):
        return self.dispatcher.submit(kind, b'{"kind":"%b"}' % kind.encode(), b"", key=key)

    def reply(self, place, body=b"done"):
        """Let a worker reply to its oldest job."""
        frame = self.pipes[place].frames.pop(0)
        self.links[place].data_received(packed(frame.job, {"status": 200, "fields": {}}, body))

    def held(self):
        return [[frame.head["kind"] for frame in pipe.frames] for pipe in self.pipes]


@dataclass
class Reply:
    """What a client was sent."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def document(self):
        return json.loads(self.body)

    @property
    def code(self):
        return self.document["error"]["code"]


def list_of(name):
    """The body of a list, as a worker writes it, with an item to know it by."""
    return ID_START + f'{new_request_id()}","items":["{name}"]}}'.encode()


class FrontBench(Bench):
    """A front before such workers, asked directly or over sockets."""

    def __init__(self, workers=1, writer=None, **settings):
        self.settings = Settings(log_requests=False, **settings)
        super().__init__(workers, self.settings.queue_ms / 1_000, self.settings.max_queue)
        metrics = ServerMetrics()
        self.fleet = Fleet(settings=self.settings, dispatcher=self.dispatcher, metrics=metrics)
        self.connections = Connections(self.settings, metrics.refused)
        access = Access(self.settings)
        parts = (self.settings, access, self.fleet, self.connections, metrics)
        self.front = Front(*parts, writer=writer)

    async def ask(
        self, method="POST", path="/v1/recommend", document=None, *, key=None, parts=(), headers=()
    ):
        """One request, whose body is a document or comes in parts."""
        whole = [json.dumps(document).encode()] if document is not None else [b""]
        waiting = iter(parts or whole)
        headers = [(b"content-type", b"application/json"), *headers]
        headers += [] if key is None else [(b"authorization", f"Bearer {key}".encode())]
        sent = []

        async def receive():
            part = next(waiting)
            return {"type": "http.request", "body": part, "more_body": bool(parts)}

        async def send(message):
            sent.append(message)

        path, _, query = path.partition("?")
        scope = {"type": "http", "method": method, "path": path, "query_string": query.encode()}
        await self.front({**scope, "headers": headers, "client": ("127.0.0.1", 1)}, receive, send)
        found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return Reply(sent[0]["status"], found, sent[1]["body"])

    async def begun(self, *arguments, **named):
        """A request that waits for its worker."""
        asking = asyncio.create_task(self.ask(*arguments, **named))
        before = self.dispatcher.num_deduplicated, sum(map(len, self.held()))
        while before == (self.dispatcher.num_deduplicated, sum(map(len, self.held()))):
            assert not asking.done(), asking.result()
            await asyncio.sleep(0)
        return asking

    @contextlib.asynccontextmanager
    async def listening(self):
        """Serve on a free port of this machine; gives the port."""
        before = getattr(Connection, "table", None)
        Connection.table = self.connections
        config = uvicorn.Config(
            self.front, http=Connection, access_log=False, log_level="error", lifespan="off"
        )
        server = uvicorn.Server(config)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            while not server.started:
                await asyncio.sleep(0.001)
            try:
                yield listener.getsockname()[1]
            finally:
                server.should_exit = True
                await serving
                Connection.table = before


class _Jumping(selectors.DefaultSelector):
    """Passes the time at once that a loop would wait; a turn of the loop takes a microsecond."""

    now = 0.0

    def select(self, timeout=None):
        self.now += max(timeout or 0.0, 1e-6)
        return super().select(0)


def in_no_time(test, monkeypatch):
    """Run a test in a loop whose clock passes only while nothing is to be done.

    What it measures is the same on any machine, however slow or busy.
    """
    selector = _Jumping()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now
    monkeypatch.setattr("serving.server.dispatch.monotonic", loop.time)
    with contextlib.closing(loop):
        loop.run_until_complete(test())
