"""Events that SQLite acknowledges durably, reads meanwhile, and the click that changes a list.

The store first: senders to the group commit in one process, visitors read 250 times a second in
another. Then a whole server over HTTP: one event a request at a fixed rate, lists of 16 users at
another, and one visitor who clicks and looks until a list knows of it. Client and server share
the cores. Every time is from when a request was due.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvloop

from serving.online.events import Event
from serving.online.sqlite_store import SqliteStore
from serving.online.writer import EventWriter
from tests.benchmarks.harness import Row, command_line, write_results
from tests.benchmarks.serving.client import messages, open_loop
from tests.benchmarks.serving.server import reply_of, serving

NUM_USERS, NUM_ITEMS = 20_000, 50_000
READS_PER_SECOND, LISTS_PER_SECOND, EVENTS_PER_SECOND = 250, 250, 2_000
HISTORY = 50
DAYS = 100_000.0
GIVE_UP_SECONDS = 2.0
"""Of looking for the list that follows a click."""


def new_event(number: int) -> Event:
    now_ms = int(1_000 * time.time())
    user, item = random.randrange(NUM_USERS), random.randrange(NUM_ITEMS)
    return Event(os.urandom(16).hex(), f"user-{user}", f"item-{item}", "click", now_ms, now_ms)


def read_visitors(folder: Path, stop: Any, out: Any) -> None:
    """Read visitors at a fixed rate, in a process of its own; puts how long each took."""
    store = SqliteStore(folder, readonly=True)
    store.visitor("user-0", HISTORY)
    took, due = [], time.perf_counter()
    while not stop.is_set():
        due += 1 / READS_PER_SECOND
        time.sleep(max(0.0, due - time.perf_counter()))
        begin = time.perf_counter()
        store.visitor(f"user-{random.randrange(NUM_USERS)}", HISTORY)
        took.append(1e6 * (time.perf_counter() - begin))
    out.put(took)


async def acknowledged(
    folder: Path, senders: int, size: int, seconds: float
) -> tuple[float, list[float], float]:
    """Let senders send batch after batch; events a second, ms of each batch, ms of a commit."""
    writer = EventWriter(SqliteStore(folder), event_days=DAYS)
    end = time.perf_counter() + seconds
    took: list[float] = []

    async def send() -> None:
        while (begin := time.perf_counter()) < end:
            assert all(await writer.add([new_event(n) for n in range(size)]))
            took.append(1e3 * (time.perf_counter() - begin))

    await asyncio.gather(*(send() for _ in range(senders)))
    written = writer.written
    await asyncio.to_thread(writer.close)
    commit_ms = 1e3 * written.commit_seconds / written.num_commits
    return len(took) * size / seconds, took, commit_ms


def percentile(values: Sequence[float], percent: int) -> float:
    return statistics.quantiles(values, n=100)[percent - 1]


def of_the_store(folder: Path, seconds: float) -> list[Row]:
    """Measure the group commit without HTTP."""
    rows: list[Row] = []
    for senders, size in ((1, 1), (64, 1), (256, 1), (4, 100)):
        name = f"{senders} senders of {size}"
        place = folder / name
        SqliteStore(place).close()
        stop, out = multiprocessing.Event(), multiprocessing.Queue()
        reader = multiprocessing.Process(target=read_visitors, args=(place, stop, out))
        reader.start()
        rate, took, commit_ms = uvloop.run(acknowledged(place, senders, size, seconds))
        stop.set()
        reads = out.get()
        reader.join()
        rows += [
            Row(name=f"{name}: acknowledged", value=rate, unit="events/s"),
            Row(name=f"{name}: p50", value=percentile(took, 50), unit="ms"),
            Row(name=f"{name}: p99", value=percentile(took, 99), unit="ms"),
            Row(name=f"{name}: commit", value=commit_ms, unit="ms"),
            Row(name=f"{name}: read p50", value=percentile(reads, 50), unit="us"),
            Row(name=f"{name}: read p99", value=percentile(reads, 99), unit="us"),
        ]
    return rows


def event_bodies(count: int, users: Sequence[str], items: Sequence[str]) -> list[bytes]:
    bodies = []
    for _ in range(count):
        event = {
            "event_id": os.urandom(16).hex(),
            "user_id": random.choice(users),
            "item_id": random.choice(items),
            "event_type": "click",
        }
        bodies.append(json.dumps({"events": [event]}).encode())
    return bodies


async def clicks(port: int, items: Sequence[str], seconds: float) -> list[float]:
    """Click as a new visitor and look until the list has history; ms of each."""
    took = []
    end = time.perf_counter() + seconds
    number = 0
    while time.perf_counter() < end:
        visitor, number = f"visitor-{number}", number + 1
        event = {"event_id": os.urandom(16).hex(), "user_id": visitor}
        event |= {"item_id": random.choice(items), "event_type": "click"}
        begin = time.perf_counter()
        await asyncio.to_thread(reply_of, port, "/v1/events", {"events": [event]})
        while True:
            body = {"user_id": visitor, "k": 10}
            reply = await asyncio.to_thread(reply_of, port, "/v1/recommend", body)
            # Who has no event is given popular items.
            known = bool(reply) and reply["items"][0]["source"] != "popularity"
            if known or time.perf_counter() > begin + GIVE_UP_SECONDS:
                break
        took.append(1e3 * (time.perf_counter() - begin))
        await asyncio.sleep(0.05)
    return took


async def over_http(port: int, seconds: float, rate: float) -> list[Row]:
    """Send events and read lists at once."""
    popular = reply_of(port, "/v1/recommend", {"k": 100})["items"]
    items = [item["item_id"] for item in popular]
    users = [f"user-{number}" for number in range(NUM_USERS)]
    sent = messages(event_bodies(int(rate * seconds) + 1, users, items), "/v1/events")
    lists = [json.dumps({"user_id": f"{number}", "k": 20}).encode() for number in range(1, 17)]
    events, read, clicked = await asyncio.gather(
        open_loop(port, sent, rate, seconds),
        open_loop(port, messages(lists * 16), LISTS_PER_SECOND, seconds),
        clicks(port, items, seconds),
    )
    name = f"HTTP, {rate:.0f} events/s offered"
    goal = {"at_least": 0.98 * rate} if rate == EVENTS_PER_SECOND else {}
    return [
        Row(name=f"{name}: acknowledged", value=events.rate, unit="events/s", **goal),
        Row(name=f"{name}: p50", value=events.percentile(50), unit="ms"),
        Row(name=f"{name}: p99", value=events.percentile(99), unit="ms", at_most=1_000),
        Row(name=f"{name}: refused", value=sum(n for s, n in events.counts.items() if s != 200)),
        Row(name=f"{name}: lists", value=read.rate, unit="lists/s"),
        Row(name=f"{name}: lists p99", value=read.percentile(99), unit="ms"),
        Row(name=f"{name}: click to list p50", value=percentile(clicked, 50), unit="ms"),
        Row(
            name=f"{name}: click to list p99", value=percentile(clicked, 99), unit="ms", at_most=100
        ),
    ]


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--bundles", type=Path, default=Path("runs/movielens-100k/bundles"))
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--rates", type=float, nargs="*", default=[500, 1_000, EVENTS_PER_SECOND])
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="events-"))
    try:
        rows = of_the_store(folder, options.seconds)
        for rate in options.rates:
            store = f"sqlite:{folder}/{rate}"
            with serving(options.bundles, RECSYS_STORE=store) as served:
                rows += uvloop.run(over_http(served.port, options.seconds, rate))
    finally:
        shutil.rmtree(folder)
    notes = (
        f"{os.getloadavg()[0]:.1f} processes wanted the cores in the last minute, the benchmark's "
        "own included; a commit waits for this disk, about 4 ms."
    )
    write_results("events", rows, notes=notes)


if __name__ == "__main__":
    main()
