"""kill -9 at any moment of a server that acknowledges events: none of them is lost.

Run as a script, this file is the victim: it imports once and forks a child for each kill.
``make soak`` asks for 200 kills; the suite runs some.
"""

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from serving.online.events import Event
from serving.online.sqlite_store import SqliteStore
from serving.online.writer import EventWriter

NUM_KILLS = int(os.environ.get("RECSYS_KILLS", "10"))
NUM_SENDERS = 20
MAX_SECONDS = 0.3
ROOT = Path(__file__).parents[3]
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
        os.close(read)
        asyncio.run(serve(folder, life, write))
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
    stored = set()
    place = 0
    while page := store.events_after(place, 10_000):
        stored |= {found.event_id for _, found in page if found.event_id.startswith(f"{life}-")}
        place = page[-1][0]
    store.close()
    for sender, number in acknowledged:
        lost = [
            each.event_id for each in batch(life, sender, number) if each.event_id not in stored
        ]
        assert not lost, f"life {life}: acknowledged and lost {lost}"
    for sender in range(NUM_SENDERS):
        next_number = max((n for s, n in acknowledged if s == sender), default=-1) + 1
        ids = {each.event_id for each in batch(life, sender, next_number)}
        assert len(ids & stored) in (0, len(ids)), f"life {life}: a request was stored in part"


def main(folder, num_kills, seed):
    times = random.Random(seed)
    num_acknowledged = 0
    for life in range(num_kills):
        acknowledged = killed(folder, life, times.uniform(0.001, MAX_SECONDS))
        check(folder, life, acknowledged)
        num_acknowledged += len(acknowledged)
    sys.stdout.write(f"{num_kills} kills, {num_acknowledged} acknowledged, none lost\n")


@pytest.mark.timeout(60 + 3 * NUM_KILLS)
def test_no_acknowledged_event_is_lost_to_kills(tmp_path):
    victim = subprocess.run(
        [sys.executable, __file__, str(tmp_path), str(NUM_KILLS), "1"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert victim.returncode == 0, victim.stderr
    assert "none lost" in victim.stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
