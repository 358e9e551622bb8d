"""kill -9 at any moment of a server that acknowledges events: none of them is lost.

``make soak`` asks for 200 kills; the suite runs some.
"""

import asyncio
import os
import random
import signal
import threading

import pytest

from serving.online.events import Event
from serving.online.sqlite_store import SqliteStore
from serving.online.writer import EventWriter

NUM_KILLS = int(os.environ.get("RECSYS_KILLS", "10"))
NUM_SENDERS = 20
MAX_SECONDS = 0.3
T0 = 1_795_000_000_000


def batch(life, sender, number):
    """Events of one request; they are stored all, or none."""
    return [
        Event(f"{life}-{sender}-{number}-{part}", f"u{sender}", "i", "click", T0 + number, T0)
        for part in range(1 + number % 4)
    ]


async def send(writer, life, sender, acknowledged):
    number = 0
    while True:
        new = await writer.add(batch(life, sender, number))
        assert all(new)
        # One write of a pipe is whole or absent.
        os.write(acknowledged, f"{sender} {number}\n".encode())
        number += 1


async def serve(folder, life, acknowledged):
    writer = EventWriter(SqliteStore(folder), event_days=10_000)
    await asyncio.gather(
        *(send(writer, life, sender, acknowledged) for sender in range(NUM_SENDERS))
    )


def killed(folder, life, seconds):
    """Serve in a child for a while; give what it acknowledged before it was killed."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)
            asyncio.run(serve(folder, life, write))
        finally:
            os._exit(1)
    os.close(write)
    with os.fdopen(read) as lines:
        first = lines.readline()
        timer = threading.Timer(seconds, os.kill, (child, signal.SIGKILL))
        timer.start()
        rest = lines.read().splitlines()
    timer.join()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == -signal.SIGKILL, f"the child ended by itself: {status}"
    return [tuple(map(int, line.split())) for line in (first, *rest)]


def check(folder, life, acknowledged):
    """Compare what is stored with what was acknowledged."""
    store = SqliteStore(folder)
    every = [found.event_id for _, found in store.events_after(0, 1_000_000)]
    store.close()
    stored = {event_id for event_id in every if event_id.startswith(f"{life}-")}
    for sender, number in acknowledged:
        lost = {each.event_id for each in batch(life, sender, number)} - stored
        assert not lost, f"life {life}: acknowledged and lost {lost}"
    for sender in range(NUM_SENDERS):
        next_number = max((n for s, n in acknowledged if s == sender), default=-1) + 1
        ids = {each.event_id for each in batch(life, sender, next_number)}
        assert len(ids & stored) in (0, len(ids)), f"life {life}: a request was stored in part"


@pytest.mark.timeout(60 + 3 * NUM_KILLS)
def test_no_acknowledged_event_is_lost_to_kills(tmp_path):
    times = random.Random(1)
    for life in range(NUM_KILLS):
        check(tmp_path, life, killed(tmp_path, life, times.uniform(0.001, MAX_SECONDS)))
