"""Events that Redis acknowledges at a given rate, reads of visitors meanwhile, and its memory.

Events are offered at a fixed rate, whatever becomes of those before (open loop), ten a request, to
the group commit that the server's front uses. A process beside it reads visitors 250 times a
second, as workers do. ``redis-server`` listens on loopback and keeps its log on this disk. The
sender's CPU is that of making requests and of the group commit.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import orjson

from serving.online.events import Event
from serving.online.redis_store import RedisStore
from serving.online.store import RequestRecord, StoreError
from serving.online.writer import EventWriter, WriterBusyError
from tests.benchmarks.harness import Row, command_line, write_results
from tests.serving.online.redis_server import RedisServer

NUM_USERS, NUM_ITEMS = 20_000, 50_000
EVENTS_A_REQUEST = 10
READS_PER_SECOND = 250
HISTORY = 50
TICK_SECONDS = 0.005
START_MS = 1_795_000_000_000


def events(first: int, count: int, num_users: int = NUM_USERS) -> list[Event]:
    """Make events of random users, with ids as long as a UUID."""
    return [
        Event(
            event_id=f"{number:036x}",
            user_id=f"user-{random.randrange(num_users)}",
            item_id=f"item-{random.randrange(NUM_ITEMS)}",
            event_type=random.choice(("view", "click", "impression")),
            time_ms=START_MS + number,
            received_ms=START_MS + number,
        )
        for number in range(first, first + count)
    ]


def record(number: int) -> RequestRecord:
    """Make the record of a list of 20 items, as long as the server's."""
    request_id = f"{START_MS + number:012x}{number:020x}"
    user_id = f"user-{number % 5_000}"
    items = [
        {
            "item_id": f"item-{random.randrange(NUM_ITEMS)}",
            "score": random.random(),
            "source": "two_tower",
            "propensity": random.random(),
        }
        for _ in range(20)
    ]
    live = [[f"item-{random.randrange(NUM_ITEMS)}", "click", START_MS] for _ in range(20)]
    document = {"request_id": request_id, "user_id": user_id, "live": live, "items": items}
    return RequestRecord(request_id, START_MS + number, user_id, orjson.dumps(document))


@contextmanager
def redis_of(*options: str) -> Iterator[RedisServer]:
    folder = Path(tempfile.mkdtemp(prefix="redis-"))
    server = RedisServer(folder, *options)
    try:
        yield server
    finally:
        server.kill()
        shutil.rmtree(folder)


def quantiles_ms(seconds: list[float]) -> tuple[float, float]:
    """Median and 99th percentile."""
    return 1e3 * statistics.median(seconds), 1e3 * statistics.quantiles(seconds, n=100)[98]


def read_visitors(url: str, seconds: float, out: Any) -> None:
    """Read visitors at a fixed rate, in a process of its own; puts how long each took."""
    store = RedisStore.open(url, 1_000)
    store.visitor("user-0", HISTORY)
    took = []
    start = time.perf_counter()
    for number in range(int(seconds * READS_PER_SECOND)):
        due = start + number / READS_PER_SECOND
        time.sleep(max(0.0, due - time.perf_counter()))
        begin = time.perf_counter()
        # One that fails counts with the time until it did.
        with suppress(StoreError):
            store.visitor(f"user-{random.randrange(NUM_USERS)}", HISTORY)
        took.append(time.perf_counter() - begin)
    out.put(took)


async def offer(writer: EventWriter, rate: int, seconds: float) -> tuple[float, list[float]]:
    """Send events at a rate.

    Returns:
        Events acknowledged a second, and how long each request took from when it was due.
    """
    num_requests = int(rate * seconds / EVENTS_A_REQUEST)
    batches = [events(n * EVENTS_A_REQUEST, EVENTS_A_REQUEST) for n in range(num_requests)]
    start = time.perf_counter()
    took: list[float] = []

    async def send(batch: list[Event], due: float) -> None:
        # One that is refused is not acknowledged.
        with suppress(StoreError, WriterBusyError):
            assert all(await writer.add(batch))
            took.append(time.perf_counter() - due)

    sent = []
    while len(sent) < num_requests:
        now = time.perf_counter() - start
        while len(sent) < min(num_requests, now * rate / EVENTS_A_REQUEST):
            due = start + len(sent) * EVENTS_A_REQUEST / rate
            sent.append(asyncio.create_task(send(batches[len(sent)], due)))
        await asyncio.sleep(TICK_SECONDS)
    await asyncio.gather(*sent)
    return len(took) * EVENTS_A_REQUEST / (time.perf_counter() - start), took


def measure_rate(appendfsync: str, rate: int, seconds: float) -> list[Row]:
    case = f"appendfsync {appendfsync}, {rate:,} events/s offered"
    with redis_of("--appendfsync", appendfsync) as server:
        store = RedisStore.open(server.url, 1_000, slow_timeout_ms=60_000)
        store.add_events(events(10**9, 200_000))
        # Reading is measured in a process that has nothing else to do.
        context = multiprocessing.get_context("spawn")
        out = context.Queue()
        reader = context.Process(target=read_visitors, args=(server.url, seconds, out))
        reader.start()
        time.sleep(3)
        writer = EventWriter(store)
        own, redis = time.process_time(), server.cpu_seconds()
        acknowledged, took = asyncio.run(offer(writer, rate, seconds))
        own, redis = time.process_time() - own, server.cpu_seconds() - redis
        reads = out.get()
        reader.join()
        writer.close()
    p50, p99 = quantiles_ms(took)
    read_p50, read_p99 = quantiles_ms(reads)
    return [
        Row(name=f"{case}: acknowledged", value=acknowledged, unit="/s", at_least=0.98 * rate),
        Row(name=f"{case}: acknowledgement p50", value=p50, unit="ms"),
        Row(name=f"{case}: acknowledgement p99", value=p99, unit="ms"),
        Row(name=f"{case}: CPU of Redis", value=1e6 * redis / rate / seconds, unit="us an event"),
        Row(
            name=f"{case}: CPU of the sender", value=1e6 * own / rate / seconds, unit="us an event"
        ),
        Row(name=f"{case}: visitor p50", value=read_p50, unit="ms"),
        Row(name=f"{case}: visitor p99", value=read_p99, unit="ms"),
    ]


def measure_memory() -> list[Row]:
    """Memory of an event, by how many of them a user has, and of a served list."""
    rows = []
    with redis_of("--appendfsync", "no") as server:
        store = RedisStore.open(server.url, 1_000, slow_timeout_ms=60_000)

        def used() -> int:
            (line,) = (
                line for line in server.ask(b"INFO memory").splitlines() if b"used_memory:" in line
            )
            return int(line.partition(b":")[2])

        for place, (num_users, each) in enumerate([(100_000, 1), (2_000, 50), (100, 1_000)]):
            before = used()
            store.add_events(events(place * 10**7, 100_000, num_users))
            name = f"memory of an event, about {each} a user"
            rows.append(Row(name=name, value=(used() - before) / 100_000, unit="bytes"))
        before = used()
        records = [record(number) for number in range(10_000)]
        for at in range(0, len(records), 100):
            store.add_requests(records[at : at + 100])
        length = statistics.fmean(len(one.document) for one in records)
        name = f"memory of a served list of 20 items ({length:.0f} bytes of JSON)"
        rows.append(Row(name=name, value=(used() - before) / len(records), unit="bytes"))
    return rows


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--rate", type=int, default=10_000, help="events offered a second")
    parser.add_argument("--seconds", type=float, default=20.0)
    args = parser.parse_args()
    rows = []
    for appendfsync in ("always", "everysec"):
        rows += measure_rate(appendfsync, args.rate, args.seconds)
    rows += measure_memory()
    write_results("redis", rows, notes=(__doc__ or "").partition("\n")[2])


if __name__ == "__main__":
    main()
