"""More requests than workers can answer, on a clock that no machine slows down."""

import asyncio
from itertools import count

import pytest

from tests.serving.server.bench import FrontBench, in_no_time, list_of

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
