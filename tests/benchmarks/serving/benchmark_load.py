"""Requests a second and latency of /v1/recommend over loopback, in a closed and an open loop.

The server is one process with one worker, the client another on the same machine, so both share
its cores. In the closed loop each connection sends its next request as soon as it has a reply; in
the open loop requests start at random times of a fixed mean rate whether or not earlier ones have
been replied to, and latency counts from the planned start, so waiting is part of it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from serving.bundle.load import load_bundle
from serving.bundle.manifest import publish
from serving.recommend import Recommender
from serving.schemas import Request
from serving.settings import ServingOptions
from tests.benchmarks.harness import Row, command_line, write_results
from tests.benchmarks.serving.server import serving
from tests.serving.synthetic_bundle import SyntheticSize, write_synthetic_bundle

DEMO_SIZE = SyntheticSize(
    num_items=1682,
    num_users=943,
    events_per_user=106,
    embedding_dim=128,
    content_dim=384,
    history_models=True,
)
LARGE_CATALOGUE = 100_000


class Connection:
    """A kept-alive connection that requests one list at a time."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def open(self) -> Connection:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def request(self, body: bytes) -> None:
        head = f"POST /v1/recommend HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
        self._writer.write(f"{head}content-type: application/json\r\n\r\n".encode() + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        if not answer.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"not a 200: {answer[:80]!r}")
        length = answer.lower().split(b"content-length:")[1].split(b"\r\n")[0]
        await self._reader.readexactly(int(length))


def bodies(user_ids: list[str], count: int, k: int) -> list[bytes]:
    chosen = np.random.default_rng(0).choice(len(user_ids), count)
    return [json.dumps({"user_id": user_ids[row], "k": k}).encode() for row in chosen]


async def closed_loop(
    port: int, payloads: list[bytes], connections: int, seconds: float
) -> tuple[float, np.ndarray]:
    """Return requests a second and latencies in ms."""
    latencies: list[float] = []
    end = time.perf_counter() + seconds

    async def client(number: int) -> None:
        connection, place = await Connection(port).open(), number
        while (begin := time.perf_counter()) < end:
            await connection.request(payloads[place % len(payloads)])
            latencies.append(1_000 * (time.perf_counter() - begin))
            place += connections

    await asyncio.gather(*(client(number) for number in range(connections)))
    return len(latencies) / seconds, np.array(latencies)


async def open_loop(port: int, payloads: list[bytes], rate: float, seconds: float) -> np.ndarray:
    """Return latencies in ms from the planned start of each request, Poisson arrivals."""
    gaps = np.random.default_rng(1).exponential(1 / rate, int(rate * seconds))
    starts = np.cumsum(gaps)
    idle: asyncio.LifoQueue[Connection] = asyncio.LifoQueue()
    latencies: list[float] = []

    async def one(begin: float, body: bytes) -> None:
        connection = idle.get_nowait() if not idle.empty() else await Connection(port).open()
        await connection.request(body)
        latencies.append(1_000 * (time.perf_counter() - begin))
        idle.put_nowait(connection)

    zero = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number, start in enumerate(starts):
            if (wait := zero + start - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            group.create_task(one(zero + start, payloads[number % len(payloads)]))
    return np.array(latencies)


def percentiles(name: str, latencies: np.ndarray) -> list[Row]:
    return [
        Row(name=f"{name}, p{share}", value=float(np.percentile(latencies, share)), unit="ms")
        for share in (50, 99)
    ]


def in_process(recommender: Recommender, k: int, count: int) -> np.ndarray:
    """Return latencies in ms without HTTP, one request after the other."""
    user_ids = list(recommender.bundle.users.user_ids)[1:]
    requests = [Request(user_id=user_ids[n % len(user_ids)], k=k) for n in range(count)]
    latencies = []
    for request in requests:
        begin = time.perf_counter()
        recommender.answer(request)
        latencies.append(1_000 * (time.perf_counter() - begin))
    return np.array(latencies[count // 10 :])


def parsed_arguments() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--bundles", type=Path, help="folder with current; else made-up bundles")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each loop")
    parser.add_argument("-k", type=int, default=20, help="list length")
    return parser.parse_args()


def measure_profiles(bundles_dir: Path, k: int, count: int, what: str) -> list[Row]:
    """Time both profiles in process, the second only where it differs."""
    rows = []
    bundle = load_bundle(bundles_dir / "current")
    for profile in ("fast", "full"):
        recommender = Recommender(bundle, ServingOptions(profile=profile))
        if recommender.profile == profile:
            name = f"in process, {what}, profile {profile}"
            rows += percentiles(name, in_process(recommender, k, count))
    return rows


def measure_server(bundles_dir: Path, profile: str, options: argparse.Namespace) -> list[Row]:
    """Time a server of a profile."""
    user_ids = list(load_bundle(bundles_dir / "current").users.user_ids)[1:]
    payloads, rows, peak = bodies(user_ids, 5_000, options.k), [], 0.0
    with serving(bundles_dir, RECSYS_PROFILE=profile, OMP_NUM_THREADS="1") as port:
        asyncio.run(closed_loop(port, payloads, 4, 2.0))
        for connections in (1, 16):
            rate, latencies = asyncio.run(closed_loop(port, payloads, connections, options.seconds))
            name = f"HTTP, profile {profile}, closed loop, {connections} connections"
            rows.append(Row(name=name, value=rate, unit="requests/s"))
            rows += percentiles(name, latencies)
            peak = max(peak, rate)
        for share in (0.5, 0.8):
            latencies = asyncio.run(open_loop(port, payloads, share * peak, options.seconds))
            name = f"HTTP, profile {profile}, open loop, {share * peak:.0f} requests/s"
            rows += percentiles(name, latencies)
    return rows


def measure(bundles_dir: Path, options: argparse.Namespace, what: str) -> list[Row]:
    begin = time.perf_counter()
    load_bundle(bundles_dir / "current")
    rows = [
        Row(name=f"load and verify, {what}", value=time.perf_counter() - begin, unit="s"),
        *measure_profiles(bundles_dir, options.k, 1_000, what),
        *measure_server(bundles_dir, "fast", options),
    ]
    if load_bundle(bundles_dir / "current").generative is not None:
        rows += measure_server(bundles_dir, "full", options)
    return rows


def made_up(folder: Path, name: str, size: SyntheticSize) -> Path:
    """Publish a made-up bundle in a folder of its own."""
    write_synthetic_bundle(folder / name, "v1", size)
    publish(folder / name, "v1")
    return folder / name


def measure_made_up(folder: Path, options: argparse.Namespace) -> list[Row]:
    """Time bundles with and without what reads histories, and one of a large catalogue."""
    plain = made_up(folder, "plain", replace(DEMO_SIZE, history_models=False))
    rows = measure_profiles(plain, options.k, 1_000, "three sources by reciprocal rank")
    rows += measure(made_up(folder, "demo", DEMO_SIZE), options, "learned blend")
    large = made_up(folder, "large", replace(DEMO_SIZE, num_items=LARGE_CATALOGUE))
    return rows + measure_profiles(
        large, options.k, 200, f"learned blend, {LARGE_CATALOGUE:,} items"
    )


def main() -> None:
    options = parsed_arguments()
    torch.set_num_threads(1)
    if options.bundles:
        rows = measure(options.bundles, options, "as released")
        what = f"Bundle: {(options.bundles / 'current').resolve().name}."
    else:
        with tempfile.TemporaryDirectory() as folder:
            rows = measure_made_up(Path(folder), options)
        what = (
            f"Made-up bundles of the demo's size: {DEMO_SIZE.num_items} items, "
            f"{DEMO_SIZE.num_users} users, {DEMO_SIZE.events_per_user} events each, content of "
            f"width {DEMO_SIZE.content_dim}, models as they were initialised, of width "
            f"{DEMO_SIZE.embedding_dim}, one block each; the sources of `fast` are popular, "
            "item-to-item, two-tower, content and sequence, `full` adds a beam of 50."
        )
    notes = (
        f"{what} k = {options.k}, one thread. HTTP: one server process, client on the same cores, "
        f"{options.seconds:g} s a loop. Open-loop rates are 50% and 80% of the closed loop's best. "
        f"Load average of the last minutes: {os.getloadavg()[1]:.1f}, this run's own included."
    )
    write_results("load", rows, notes=notes)


if __name__ == "__main__":
    main()
