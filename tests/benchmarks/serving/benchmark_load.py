"""Requests a second and latency of /v1/recommend over loopback, in a closed and an open loop.

    taskset -c 0,1 python -m tests.benchmarks.serving.benchmark_load \
        --bundles runs/movielens-100k/bundles

Server and client share the machine's cores. In the closed loop each connection sends its next
request as soon as it has a reply; in the open loop requests start at random times of a fixed mean
rate whether or not earlier ones have been replied to, and latency counts from the planned start, so
waiting is part of it. Beside it, on the same cores: FastAPI with one eager torch model.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import torch
import uvloop

from serving.bundle.load import load_bundle
from serving.bundle.manifest import publish
from serving.recommend import Recommender
from serving.schemas import Request
from serving.settings import ServingOptions
from tests.benchmarks.harness import Row, command_line, write_results
from tests.benchmarks.serving.client import closed_loop, messages, open_loop
from tests.benchmarks.serving.server import PLAIN, Served, serving
from tests.serving.synthetic_bundle import SyntheticSize, write_synthetic_bundle

RATE = 500.0
FALLBACK_RATE = 3_000.0
OVERLOAD = 3.0
CONNECTIONS = 16
LARGE = (200_000, 1_000_000)


def bodies(user_ids: list[str], count: int, k: int) -> list[bytes]:
    """Requests of users at random, each with an exclusion of its own: none equals another."""
    chosen = np.random.default_rng(0).choice(len(user_ids), count)
    return [
        json.dumps({"user_id": user_ids[row], "k": k, "exclude": [f"none-{n}"]}).encode()
        for n, row in enumerate(chosen)
    ]


def in_process(recommender: Recommender, fields: Callable[[int], dict], count: int) -> np.ndarray:
    """Latencies in ms without HTTP, one request after the other."""
    requests = [Request.model_validate(fields(number)) for number in range(count)]
    latencies = []
    for request in requests:
        begin = time.perf_counter()
        recommender.answer(request)
        latencies.append(1_000 * (time.perf_counter() - begin))
    return np.array(latencies[count // 10 :])


def measure_in_process(bundles: Path, k: int, count: int) -> list[Row]:
    """One core: with the ranker, without, the fallback, and profile full."""
    bundle, rows = load_bundle(bundles / "current"), []
    user_ids = list(bundle.users.user_ids)[1:]

    def of_user(number: int) -> dict:
        return {"user_id": user_ids[number % len(user_ids)], "k": k}

    cases = [
        ("fast", bundle, of_user, 2.0),
        ("fast without the ranker", replace(bundle, ranker=None), of_user, 1.0),
        ("fallback of an unknown visitor", bundle, lambda _: {"k": k}, None),
        ("full", bundle, of_user, None),
    ]
    for name, of, fields, goal in cases:
        options = ServingOptions(profile="full" if name == "full" else "fast")
        latencies = in_process(Recommender(of, options), fields, count)
        for share in (50, 99):
            most = {"at_most": goal} if share == 50 and goal else {}
            value = float(np.percentile(latencies, share))
            rows.append(Row(name=f"in process, {name}: p{share}", value=value, unit="ms", **most))
    return rows


def peak_of(served: Served, requests: list[bytes], seconds: float) -> float:
    """The best rate of a closed loop."""
    uvloop.run(closed_loop(served.port, requests, 4, 2.0))
    return uvloop.run(closed_loop(served.port, requests, CONNECTIONS, seconds)).rate


def measure_http(
    name: str, served: Served, requests: list[bytes], rate: float, seconds: float, p99: float
) -> list[Row]:
    """An open loop of a rate, with its errors."""
    outcome = uvloop.run(open_loop(served.port, requests, rate, seconds))
    errors = sum(count for status, count in outcome.counts.items() if status != 200)
    what = f"{name}, open loop of {rate:.0f}/s"
    return [
        Row(name=f"{what}: p50", value=outcome.percentile(50), unit="ms"),
        Row(name=f"{what}: p99", value=outcome.percentile(99), unit="ms", at_most=p99),
        Row(name=f"{what}: errors", value=errors, at_most=0),
    ]


def measure_overload(
    served: Served, requests: list[bytes], peak: float, seconds: float
) -> list[Row]:
    """Three times what it can: good replies, how fast others are refused, and health meanwhile."""
    outcome = uvloop.run(open_loop(served.port, requests, OVERLOAD * peak, seconds))
    name = f"{OVERLOAD:g}x overload"
    share = 100 * outcome.rate / peak
    lost = sum(count for status, count in outcome.counts.items() if status not in (200, 503))
    return [
        Row(name=f"{name}: good replies of the peak", value=share, unit="%", at_least=80),
        Row(name=f"{name}: p99 of good replies", value=outcome.percentile(99), unit="ms"),
        Row(name=f"{name}: p50 of refusals", value=outcome.percentile(50, 503), unit="ms"),
        Row(name=f"{name}: neither reply nor 503", value=lost, at_most=0),
    ]


def measure_workers(
    served: Served, name: str, requests: list[bytes], seconds: float
) -> tuple[list[Row], float]:
    """The peak, the time of the start and the memory of a server; the peak by itself too."""
    peak = peak_of(served, requests, min(seconds, 10.0))
    rows = [
        Row(name=f"{name}: closed loop", value=peak, unit="requests/s"),
        Row(name=f"{name}: ready after", value=served.start_seconds, unit="s", at_most=5),
        Row(name=f"{name}: memory", value=memory_of(served), unit="MiB"),
    ]
    return rows, peak


def measure_demo(options: argparse.Namespace) -> list[Row]:
    """The released bundle by one, two and four workers, and a plain server beside it."""
    bundles, seconds = options.bundles, options.seconds
    user_ids = list(load_bundle(bundles / "current").users.user_ids)[1:]
    requests = messages(bodies(user_ids, 20_000, options.k))
    rows = measure_in_process(bundles, options.k, 1_000)
    with serving(bundles, RECSYS_WORKERS="1") as served:
        of_one, single = measure_workers(served, "fast, 1 worker", requests, seconds)
    with serving(bundles, RECSYS_WORKERS="2") as served:
        of_two, peak = measure_workers(served, "fast, 2 workers", requests, seconds)
        rows += [*of_one, *of_two]
        rows.append(Row(name="2 workers against 1", value=peak / single, unit="x", at_least=1.8))
        rows += measure_http("fast", served, requests, RATE, seconds, 20.0)
        rows += measure_http("fast", served, requests, 0.6 * peak, seconds, 20.0)
        rows += measure_overload(served, requests, peak, min(seconds, 20.0))
        anyone = messages([b'{"k": 20, "exclude": ["none-%d"]}' % n for n in range(5_000)])
        top = peak_of(served, anyone, min(seconds, 10.0))
        name = "fallback: closed loop"
        rows.append(Row(name=name, value=top, unit="requests/s", at_least=FALLBACK_RATE))
    with serving(bundles, RECSYS_WORKERS="4") as served:
        uvloop.run(closed_loop(served.port, requests, CONNECTIONS, 5.0))
        more = memory_of(served) / of_one[-1].value
        rows.append(Row(name="memory of 4 workers against 1", value=more, unit="x", at_most=1.3))
    with serving(bundles, RECSYS_PROFILE="full", RECSYS_WORKERS="2") as served:
        top = peak_of(served, requests, min(seconds, 10.0))
        rows.append(Row(name="full, 2 workers: closed loop", value=top, unit="requests/s"))
        rows += measure_http("full", served, requests, 100.0, seconds, 100.0)
    return [*rows, measure_plain(bundles, user_ids, peak, options)]


def measure_plain(
    bundles: Path, user_ids: list[str], peak: float, options: argparse.Namespace
) -> Row:
    """FastAPI with the sequence model alone, beside our whole list."""
    asked = [json.dumps({"user_id": one, "k": options.k}).encode() for one in user_ids]
    with serving(bundles, PLAIN) as served:
        top = peak_of(served, messages(asked), min(options.seconds, 10.0))
    name = "fast, 2 workers: against FastAPI and eager torch, the sequence model alone"
    peer = f"plain {top:.0f} requests/s"
    return Row(name=name, value=peak, unit="requests/s", peer=peer, ratio=peak / top)


def memory_of(served: Served) -> float:
    """Proportional memory of all processes in MiB: a shared page counts once."""
    process = psutil.Process(served.pid)
    everyone = [process, *process.children(recursive=True)]
    return sum(one.memory_full_info().pss for one in everyone) / (1 << 20)


def measure_large(num_items: int, options: argparse.Namespace) -> list[Row]:
    """A made-up bundle of a large catalogue: start, load, latency and a swap."""
    size = SyntheticSize(
        num_items=num_items,
        num_users=5_000,
        events_per_user=50,
        embedding_dim=64,
        content_dim=32,
        history_models=True,
    )
    name, rows = f"{num_items:,} made-up items", []
    with tempfile.TemporaryDirectory() as folder:
        bundles = Path(folder)
        for version in ("v1", "v2"):
            write_synthetic_bundle(bundles, version, replace(size, seed=int(version[1])))
        publish(bundles, "v1")
        requests = messages(bodies([f"user-{n}" for n in range(1, 5_000)], 5_000, options.k))
        with serving(bundles, RECSYS_WORKERS="2", RECSYS_POLL_SECONDS="0.1") as served:
            rows.append(
                Row(name=f"{name}: ready after", value=served.start_seconds, unit="s", at_most=20)
            )
            top = peak_of(served, requests, min(options.seconds, 10.0))
            rows.append(Row(name=f"{name}: closed loop", value=top, unit="requests/s"))
            rows += measure_http(name, served, requests, min(200.0, 0.6 * top), 10.0, 30.0)
            before, begin = memory_of(served), time.perf_counter()
            publish(bundles, "v2")
            while served.reply("/readyz")["bundle"] != "v2":
                time.sleep(0.02)
            taken = time.perf_counter() - begin
            time.sleep(10)
            grown = memory_of(served) / before
        rows.append(Row(name=f"{name}: swap", value=taken, unit="s"))
        rows.append(Row(name=f"{name}: memory 10 s after the swap", value=grown, unit="x"))
    return rows


def parsed_arguments() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--bundles", type=Path, required=True, help="folder with current")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each loop")
    parser.add_argument("--large", action="store_true", help="made-up large catalogues too")
    parser.add_argument("-k", type=int, default=20, help="list length")
    return parser.parse_args()


def main() -> None:
    options = parsed_arguments()
    torch.set_num_threads(1)
    rows = measure_demo(options)
    for num_items in LARGE if options.large else ():
        rows += measure_large(num_items, options)
    notes = (
        f"Bundle: {(options.bundles / 'current').resolve().name}, k = {options.k}, every request "
        f"another one. {options.seconds:g} s a loop; the client shares the cores. Load average of "
        f"the last minute: {os.getloadavg()[0]:.1f}, this run's own included. Memory counts a "
        "shared page once."
    )
    write_results("load", rows, notes=notes)


if __name__ == "__main__":
    main()
