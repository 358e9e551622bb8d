"""A full table of connections: which one gives way, and who is refused."""

import asyncio
import json
from contextlib import asynccontextmanager

from tests.serving.server.bench import FrontBench, list_of, run

HEALTH = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"


class Client:
    """One connection."""

    def __init__(self, reader, writer):
        self._reader, self._writer = reader, writer

    def send(self, data):
        self._writer.write(data)

    def ask(self, document):
        body = json.dumps(document).encode()
        head = b"POST /v1/recommend HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        self.send(head + b"content-length: %d\r\n\r\n" % len(body) + body)

    async def status(self):
        """The status of the next reply; None where the server closed the connection."""
        try:
            head = await self._reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionResetError):
            return None
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        await self._reader.readexactly(length)
        return int(head.split()[1])

    async def is_open(self):
        self.send(HEALTH)
        return await self.status() == 200

    def close(self):
        self._writer.close()


@asynccontextmanager
async def clients_of(bench):
    opened = []
    async with bench.listening() as port:

        async def connect():
            number = len(bench.connections.open) + bench.connections.num_evicted
            opened.append(Client(*await asyncio.open_connection("127.0.0.1", port)))
            while len(bench.connections.open) + bench.connections.num_evicted == number:
                await asyncio.sleep(0.001)
            return opened[-1]

        yield connect
        for client in opened:
            client.close()


def test_the_connection_that_has_waited_longest_for_its_client_gives_way():
    async def test():
        bench = FrontBench(max_connections=3)
        async with clients_of(bench) as connect:
            first, second, third = [await connect() for _ in range(3)]
            assert await first.is_open()
            newest = await connect()
            assert await second.status() is None
            for client in (newest, first, third):
                assert await client.is_open()
            assert bench.connections.num_evicted == 1

    run(test)


def test_requests_being_answered_do_not_give_way_and_a_new_client_is_told_to_come_back():
    async def test():
        bench = FrontBench(max_connections=1)
        async with bench.listening() as port:
            busy = Client(*await asyncio.open_connection("127.0.0.1", port))
            busy.ask({"k": 1})
            while not bench.held()[0]:
                await asyncio.sleep(0.001)
            refused = Client(*await asyncio.open_connection("127.0.0.1", port))
            assert await refused.status() == 503
            bench.reply(0, list_of("kept"))
            assert await busy.status() == 200
            assert await busy.is_open()
            busy.close()
            refused.close()

    run(test)


def test_a_connection_that_stays_idle_after_a_reply_is_closed():
    async def test():
        bench = FrontBench(keep_alive_seconds=1)
        async with clients_of(bench) as connect:
            sweeping = asyncio.create_task(bench.connections.sweep(lambda: None))
            client, busy = await connect(), await connect()
            assert await client.is_open()
            busy.ask({"k": 1})
            assert await client.status() is None
            bench.reply(0, list_of("kept"))
            assert await busy.status() == 200
            sweeping.cancel()

    run(test)


def test_a_client_that_leaves_takes_no_list_from_those_who_share_it():
    async def test():
        bench = FrontBench()
        async with clients_of(bench) as connect:
            first, second = await connect(), await connect()
            first.ask({"k": 3})
            second.ask({"k": 3})
            while not bench.dispatcher.num_deduplicated:
                await asyncio.sleep(0.001)
            first.close()
            while len(bench.connections.open) == 2:
                await asyncio.sleep(0.001)
            bench.reply(0, list_of("shared"))
            assert await second.status() == 200

    run(test)
