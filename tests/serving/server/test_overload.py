"""More requests than workers can answer: some on a clock that no machine slows down."""

import asyncio
import contextlib
import json
from itertools import count

import pytest

from tests.serving.server.bench import FrontBench, in_no_time, list_of, run

SERVICE_SECONDS = 0.01
NUM_WORKERS = 2
PEAK = NUM_WORKERS / SERVICE_SECONDS
EARLY_SECONDS = 0.005


class Overload(FrontBench):
    """Workers that take the same time for every list."""

    def __init__(self):
        super().__init__(NUM_WORKERS, queue_ms=100.0)
        self.numbers = count()
        self.replies = []
        """When each request was sent, how long its reply took, and the reply."""
        self.working = [asyncio.create_task(self.work(place)) for place in range(NUM_WORKERS)]

    async def work(self, place):
        while True:
            while not self.pipes[place].frames:
                await asyncio.sleep(SERVICE_SECONDS / 20)
            await asyncio.sleep(SERVICE_SECONDS)
            self.reply(place, list_of("any"))

    async def request(self):
        clock = asyncio.get_running_loop().time
        begin = clock()
        reply = await self.ask(document={"k": 5, "exclude": [f"x{next(self.numbers)}"]})
        self.replies.append((begin, clock() - begin, reply))

    async def offer(self, rate, seconds):
        """Send requests at a rate, whatever becomes of those before."""
        self.replies.clear()
        asking = []
        for _ in range(int(rate * seconds)):
            asking.append(asyncio.create_task(self.request()))
            await asyncio.sleep(1 / rate)
        await asyncio.gather(*asking)
        return [(latency, reply) for _, latency, reply in self.replies]


@pytest.mark.parametrize("times", [3, 10])
def test_overload_is_refused_early_costs_no_goodput_and_passes(times, monkeypatch):
    async def test():
        server, seconds = Overload(), 5.0
        found = await server.offer(times * PEAK, seconds)
        assert {reply.status for _, reply in found} == {200, 503}
        answered = [latency for latency, reply in found if reply.status == 200]
        assert len(answered) >= 0.8 * PEAK * seconds
        # A list waits no longer than it may, and what two workers have in hand.
        most = server.dispatcher.queue_seconds + 3 * SERVICE_SECONDS
        assert max(answered) <= most
        refused = [(latency, reply) for latency, reply in found if reply.status == 503]
        assert {(reply.code, reply.headers["retry-after"]) for _, reply in refused} == {
            ("overloaded", "1")
        }
        early = sum(latency < EARLY_SECONDS for latency, _ in refused)
        assert early >= 0.8 * len(refused)
        assert max(latency for latency, _ in refused) <= most
        assert (await server.ask("GET", "/healthz")).status == 200
        # Half of the peak is answered whole as soon as the rest is gone.
        after = await server.offer(PEAK / 2, 1.0)
        assert {reply.status for _, reply in after} == {200}
        for task in server.working:
            task.cancel()

    in_no_time(test, monkeypatch)


def sent(document, line=b"POST /v1/recommend HTTP/1.1", more=b""):
    body = json.dumps(document).encode()
    head = b"%b\r\nhost: x\r\ncontent-type: application/json\r\n%b" % (line, more)
    return b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body)


def numbered(number):
    return {"k": 5, "exclude": [f"x{number}"]}


async def replied(reader):
    """Status, headers and body of the next reply."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    status, *lines = head.split("\r\n")
    headers = dict(line.split(": ") for line in lines if line)
    body = await reader.readexactly(int(headers.pop("content-length")))
    return int(status.split()[1]), headers, json.loads(body)


@contextlib.asynccontextmanager
async def full(connections=1):
    """A server whose worker holds two lists and whose queue holds one, and its clients."""
    bench = FrontBench(max_queue=1, queue_ms=20_000.0)
    waiting = [asyncio.create_task(bench.ask(document=numbered(-number))) for number in (1, 2, 3)]
    while not bench.dispatcher.is_full:
        await asyncio.sleep(0)
    async with bench.listening() as port:
        clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(connections)]
        yield bench, *clients
        for _, writer in clients:
            writer.close()
        while bench.held()[0]:
            bench.reply(0, list_of("kept"))
        assert {(await one).status for one in waiting} == {200}


def test_a_full_queue_refuses_at_once_as_it_does_after_the_body():
    async def test():
        async with full() as (bench, (reader, writer)):
            writer.write(sent(numbered(1)))
            at_once = await replied(reader)
            request = sent(numbered(2))
            writer.write(request[:-4])
            await asyncio.sleep(0.05)
            writer.write(request[-4:])
            status, headers, document = await replied(reader)
            del headers["date"], headers["server"]
            assert at_once == (status, headers, document)
            assert (status, headers["retry-after"]) == (503, "1")
            page = (await bench.ask("GET", "/metrics")).body.decode()
            assert 'recsys_requests_total{route="/v1/recommend",status="503"} 2.0' in page
            assert 'recsys_refused_total{reason="queue_full"} 2.0' in page
            # The same connection has its list once there is room.
            bench.reply(0, list_of("kept"))
            writer.write(sent(numbered(3)))
            while not bench.dispatcher.is_full:
                await asyncio.sleep(0.001)
            while bench.held()[0]:
                bench.reply(0, list_of("after"))
            assert (await replied(reader))[0] == 200

    run(test)


def test_pipelined_lists_are_refused_in_their_order():
    async def test():
        async with full(2) as (bench, (reader, writer), (other, writes)):
            health = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
            writer.write(sent(numbered(1)) + sent(numbered(2)) + health + sent(numbered(3)))
            assert [(await replied(reader))[0] for _ in range(4)] == [503, 503, 200, 503]
            # A list that waits already is shared, and none overtakes it.
            writes.write(sent(numbered(-3)) + sent(numbered(4)) + sent(numbered(5)))
            while not bench.dispatcher.num_deduplicated:
                await asyncio.sleep(0.001)
            writer.write(health)
            assert (await replied(reader))[0] == 200
            while bench.dispatcher.num_deduplicated and bench.held()[0]:
                bench.reply(0, list_of("shared"))
            assert (await replied(other))[0] == 200

    run(test)


@pytest.mark.parametrize(
    ("line", "more", "status"),
    [
        (b"POST /v1/recommend HTTP/1.0", b"", 503),
        (b"POST /v1/recommend HTTP/1.1", b"connection: close\r\n", 503),
        (b"GET /v1/recommend HTTP/1.1", b"connection: close\r\n", 405),
    ],
)
def test_other_requests_to_a_full_queue_are_refused_as_ever(line, more, status):
    async def test():
        async with full() as (_, (reader, writer)):
            writer.write(sent(numbered(1), line, more))
            found, headers, _ = await replied(reader)
            assert (found, headers["connection"]) == (status, "close")
            assert await reader.read() == b""

    run(test)
