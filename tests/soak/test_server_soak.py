"""A server under steady load while bundles change: no request fails, nothing grows.

``make soak`` asks for an hour; the suite runs the same for some seconds.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from statistics import median

import aiohttp
import psutil
import pytest

from serving.bundle.manifest import publish
from tests.serving.synthetic_bundle import SyntheticSize, write_synthetic_bundle

SECONDS = float(os.environ.get("RECSYS_SOAK_SECONDS", "12"))
REQUESTS_PER_SECOND = 10.0
SECONDS_OF_A_BUNDLE = max(1.0, SECONDS / 200)
SAMPLE_SECONDS = 0.25
NUM_USERS = 50
SERVE = (
    "from serving.server.run import serve; from serving.settings import Settings; "
    "serve(Settings.from_environment())"
)


@pytest.fixture
def bundles(tmp_path):
    for seed, version in enumerate(("v1", "v2")):
        size = SyntheticSize(num_items=200, num_users=NUM_USERS, history_models=True, seed=seed)
        write_synthetic_bundle(tmp_path, version, size)
    publish(tmp_path, "v1")
    return tmp_path


@pytest.fixture
def server(bundles):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = {"BUNDLES": bundles, "PORT": port, "PROFILE": "full", "POLL_SECONDS": 0.2}
    environment = {f"RECSYS_{name}": str(value) for name, value in settings.items()}
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE],
        env={**os.environ, **environment, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.DEVNULL,
    )
    yield f"http://127.0.0.1:{port}", psutil.Process(process.pid)
    process.terminate()
    # It drains, then dies of the signal, as whoever sent it expects.
    assert process.wait(timeout=60) in (0, -signal.SIGTERM)


async def until_up(session, url):
    for _ in range(600):
        try:
            async with session.get(f"{url}/readyz") as response:
                if response.status == 200:
                    return
        except aiohttp.ClientConnectionError:
            pass
        await asyncio.sleep(0.1)
    pytest.fail("the server is not up after 60 seconds")


def memory_of_all(process):
    """Bytes of the front and its processes, shared pages counted once."""
    total = 0
    for one in (process, *process.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            total += one.memory_full_info().pss
    return total


async def soak(url, process, bundles):
    """Give the number of replies, the bundles that answered, and what the process held."""
    num_answers, served, held = 0, set(), []

    async def ask(session, number):
        nonlocal num_answers
        body = {"user_id": f"user-{1 + number % (NUM_USERS - 1)}", "k": 20}
        async with session.post(f"{url}/v1/recommend", json=body) as response:
            assert response.status == 200, await response.text()
            served.add((await response.json())["served_by"]["bundle"])
        num_answers += 1

    async def swap():
        for number in range(int(SECONDS / SECONDS_OF_A_BUNDLE)):
            await asyncio.sleep(SECONDS_OF_A_BUNDLE)
            publish(bundles, f"v{1 + number % 2}")

    async def sample():
        for _ in range(int(SECONDS / SAMPLE_SECONDS)):
            await asyncio.sleep(SAMPLE_SECONDS)
            front = (process.memory_info().rss, process.num_fds(), process.num_threads())
            held.append((*front, memory_of_all(process)))

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=4)) as session:
        await until_up(session, url)
        begin = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            group.create_task(swap())
            group.create_task(sample())
            for number in range(int(SECONDS * REQUESTS_PER_SECOND)):
                wait = begin + number / REQUESTS_PER_SECOND - time.perf_counter()
                await asyncio.sleep(max(0.0, wait))
                group.create_task(ask(session, number))
    return num_answers, served, held


@pytest.mark.slow
@pytest.mark.timeout(SECONDS * 2 + 120)
def test_steady_load_and_changing_bundles_leave_memory_and_descriptors_flat(server, bundles):
    url, process = server
    num_answers, served, held = asyncio.run(soak(url, process, bundles))
    assert num_answers == int(SECONDS * REQUESTS_PER_SECOND)
    assert served == {"v1", "v2"}
    quarter = len(held) // 4
    for what, values in zip(
        ("bytes", "descriptors", "threads", "bytes of all"), zip(*held, strict=True), strict=True
    ):
        early, late = median(values[quarter : 2 * quarter]), median(values[-quarter:])
        # While a bundle is swapped there are two: processes come and go under the samples.
        most = 1.25 if what == "bytes of all" else 1.05
        assert late <= most * early + (what == "descriptors"), f"{what}: {early:g}, later {late:g}"
