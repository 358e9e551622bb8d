"""Requests a second and latency of /v1/recommend over loopback, in a closed and an open loop.

    python -m tests.benchmarks.serving.benchmark_load --bundles runs/movielens-100k/bundles \
        [--server-cpus 0,1 --client-cpus 2,3] [--part large|soak|profile] [--implicit-python PATH]

Server and client share the machine's cores unless each has its own by ``--server-cpus`` and
``--client-cpus``, so the processor time that each takes for a request is told too. In the closed
loop each connection sends its next request as soon as it has a reply; in the open loop requests
start at random times of a fixed mean rate whether or not earlier ones have been replied to, and
latency counts from the planned start, so waiting is part of it. Beside it, on the same cores:
FastAPI with one eager torch model, and implicit's ALS behind FastAPI, where the Python of an
environment that has it is named. Part ``large`` serves made-up catalogues, ``soak`` half of what
the server can, or ``--rate``, for minutes; ``profile`` tells the processor time of each part of a
request, beside the least that its memory and arithmetic take. A bundle without a ranker is served
with the one that its workspace has trained, or ``--ranker``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import psutil
import torch
import uvloop

from recsys.data.durable import digest_of_file
from recsys.models.content_similarity import MAX_HISTORY
from serving.bundle.load import Bundle, load_bundle
from serving.bundle.manifest import publish
from serving.recommend import Recommender
from serving.schemas import Request
from serving.settings import ServingOptions
from tests.benchmarks.harness import Row, command_line, device_name, timed, write_results
from tests.benchmarks.serving.client import Outcome, closed_loop, connected, messages, open_loop
from tests.benchmarks.serving.sampler import counts_in, processor_seconds, sampled, spent_by_part
from tests.benchmarks.serving.server import CPUS, IMPLICIT, PLAIN, Served, serving
from tests.serving.synthetic_bundle import SyntheticSize, write_synthetic_bundle

DEVICE = device_name()
RATE = 500.0
RETRIEVAL_RATE = 1_500.0
PEAK, RETRIEVAL_PEAK, FALLBACK_PEAK = 1_000.0, 2_000.0, 4_000.0
OVERLOAD = 3.0
HEALTH_SECONDS = 0.1
CONNECTIONS = 16
LARGE = (200_000, 1_000_000)
CLUSTER_ITEMS = 200


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
        ("fast", bundle, of_user, 0.9),
        ("fast without the ranker", replace(bundle, ranker=None), of_user, 0.45),
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
    return measure_peak("", served, requests, seconds)[0].value


def measure_peak(
    name: str, served: Served, requests: list[bytes], seconds: float, at_least: float | None = None
) -> list[Row]:
    """A closed loop: its rate, and the processor time of server and client for a request."""
    uvloop.run(closed_loop(served.port, requests, 4, 2.0))
    before, own = processor_seconds(served.pid), time.process_time()
    outcome = uvloop.run(closed_loop(served.port, requests, CONNECTIONS, seconds))
    own, after = time.process_time() - own, processor_seconds(served.pid)
    spent = sum(after.values()) - sum(before.values())
    number = outcome.rate * seconds
    return [
        Row(name=f"{name}: closed loop", value=outcome.rate, unit="requests/s", at_least=at_least),
        Row(name=f"{name}: server's processor time", value=1e6 * spent / number, unit="us"),
        Row(name=f"{name}: client's", value=1e6 * own / number, unit="us"),
    ]


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

    async def with_health() -> tuple[Outcome, list[float]]:
        loop = asyncio.create_task(open_loop(served.port, requests, OVERLOAD * peak, seconds))
        health = []
        while not loop.done():
            begin = time.perf_counter()
            connection, reply = await connected(served.port), asyncio.Future()
            connection.request(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n", reply.set_result)
            await reply
            health.append(1_000 * (time.perf_counter() - begin))
            connection.transport.close()
            await asyncio.sleep(HEALTH_SECONDS)
        return await loop, health

    outcome, health = uvloop.run(with_health())
    name = f"{OVERLOAD:g}x overload"
    share = 100 * outcome.rate / peak
    lost = sum(count for status, count in outcome.counts.items() if status not in (200, 503))
    return [
        Row(name=f"{name}: good replies of the peak", value=share, unit="%", at_least=85),
        Row(name=f"{name}: p99 of good replies", value=outcome.percentile(99), unit="ms"),
        Row(name=f"{name}: p50 of refusals", value=outcome.percentile(50, 503), unit="ms"),
        Row(name=f"{name}: neither reply nor 503", value=lost, at_most=0),
        Row(name=f"{name}: p99 of health", value=np.percentile(health, 99), unit="ms", at_most=50),
    ]


def measure_workers(
    served: Served, name: str, requests: list[bytes], seconds: float
) -> tuple[list[Row], float]:
    """The peak, the time of the start and the memory of a server; the peak by itself too."""
    goal = PEAK if name == "fast, 2 workers" else None
    rows = measure_peak(name, served, requests, min(seconds, 10.0), goal)
    peak = rows[0].value
    rows += [
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
        rows.append(Row(name="2 workers against 1", value=peak / single, unit="x", at_least=1.85))
        rows += measure_http("fast", served, requests, RATE, seconds, 20.0)
        rows += measure_http("fast", served, requests, 0.6 * peak, seconds, 20.0)
        rows += measure_overload(served, requests, peak, min(seconds, 20.0))
        anyone = messages([b'{"k": 20, "exclude": ["none-%d"]}' % n for n in range(5_000)])
        rows += measure_peak("fallback", served, anyone, min(seconds, 10.0), FALLBACK_PEAK)
        more = of_two[-1].value / of_one[-1].value
        rows.append(Row(name="memory of 2 workers against 1", value=more, unit="x", at_most=1.2))
    with serving(bundles, RECSYS_PROFILE="full", RECSYS_WORKERS="2") as served:
        top = peak_of(served, requests, min(seconds, 10.0))
        rows.append(Row(name="full, 2 workers: closed loop", value=top, unit="requests/s"))
        rows += measure_http("full", served, requests, 100.0, seconds, 100.0)
    rows += measure_retrieval(bundles, requests, seconds)
    if find_spec("fastapi"):
        rows.append(measure_plain(bundles, user_ids, peak, options))
    if options.implicit_python is not None:
        rows.append(measure_implicit(bundles, user_ids, peak, options))
    return rows


def measure_retrieval(bundles: Path, requests: list[bytes], seconds: float) -> list[Row]:
    """The same bundle released without its ranker: lists of the sources, blended."""
    name = "retrieval only, 2 workers"
    with tempfile.TemporaryDirectory() as folder:
        copied = with_ranker(bundles, Path(folder), None)
        with serving(copied, RECSYS_WORKERS="2") as served:
            rows = measure_peak(name, served, requests, min(seconds, 10.0), RETRIEVAL_PEAK)
            for rate in (RETRIEVAL_RATE, 0.6 * rows[0].value):
                rows += measure_http("retrieval only", served, requests, rate, seconds, 10.0)
    return rows


def with_ranker(bundles: Path, folder: Path, ranker: Path | None) -> Path:
    """Copy the bundle that is served into a folder of bundles, with another ranker or without."""
    current = (bundles / "current").resolve()
    # Not the folder's name: in a copy ``current`` may be no link.
    made = folder / f"bundle-{json.loads((current / 'manifest.json').read_text())['version']}"
    shutil.copytree(current, made, ignore=lambda at, names: {"ranker"} & {*names})
    path = made / "manifest.json"
    manifest = json.loads(path.read_text())
    models = [name for name in manifest["models"] if name != "ranker"]
    kept = {name: one for name, one in manifest["files"].items() if not name.startswith("ranker/")}
    if ranker is not None:
        made.chmod(0o755)
        shutil.copytree(ranker, made / "ranker")
        models.append("ranker")
        for file in sorted((made / "ranker").iterdir()):
            entry = {"sha256": digest_of_file(file), "size": file.stat().st_size}
            kept[f"ranker/{file.name}"] = entry
    path.chmod(0o644)
    path.write_text(json.dumps({**manifest, "models": models, "files": kept}))
    (folder / "current").symlink_to(made.name)
    return folder


@contextmanager
def ranked_bundles(options: argparse.Namespace) -> Iterator[Path]:
    """The folder of bundles to serve: that of the options, if need be with a ranker."""
    trained = options.bundles.parent / "train_ranker" / "given" / "ranker"
    if options.ranker is None and (options.bundles / "current" / "ranker").exists():
        yield options.bundles
        return
    ranker = options.ranker or trained
    if not ranker.exists():
        raise SystemExit(f"the bundle has no ranker and {ranker} is not there; name one: --ranker")
    with tempfile.TemporaryDirectory() as folder:
        yield with_ranker(options.bundles, Path(folder), ranker)


def measure_implicit(
    bundles: Path, user_ids: list[str], peak: float, options: argparse.Namespace
) -> Row:
    """ALS of implicit on the bundle's histories, behind FastAPI."""
    users = load_bundle(bundles / "current").users
    with tempfile.TemporaryDirectory() as folder:
        histories = [users.history(row) for row in range(1, len(user_ids) + 1)]
        user = np.repeat(np.arange(len(histories)), [len(one) for one in histories])
        np.savez(Path(folder) / "events.npz", user=user, item=np.concatenate(histories))
        (Path(folder) / "users.json").write_text(json.dumps(user_ids))
        asked = [json.dumps({"user_id": one, "k": options.k}).encode() for one in user_ids]
        settings = {"PEER_DATA": folder, "PYTHONPATH": "", "OPENBLAS_NUM_THREADS": "1"}
        with serving(bundles, IMPLICIT, options.implicit_python, **settings) as served:
            top = peak_of(served, messages(asked), min(options.seconds, 10.0))
    name = "fast, 2 workers: against FastAPI and implicit's ALS alone"
    peer = f"implicit {top:.0f} requests/s"
    return Row(name=name, value=peak, unit="requests/s", peer=peer, ratio=peak / top)


def measure_profile(options: argparse.Namespace) -> list[Row]:
    """Processor time of each part of a request at 1 and at 64 connections, and its floor."""
    bundle = load_bundle(options.bundles / "current")
    user_ids = list(bundle.users.user_ids)[1:]
    requests, rows = messages(bodies(user_ids, 20_000, options.k)), []
    root = Path(__file__).resolve().parents[3]
    with tempfile.TemporaryDirectory() as folder:
        # Nothing is refused, so that all time is that of lists.
        patient = {"RECSYS_QUEUE_MS": "5000", "RECSYS_WORKERS": "2"}
        environment = {**sampled(Path(folder), root), **patient}
        with serving(options.bundles, **environment) as served:
            for number in (1, 64):

                def moment() -> tuple[dict[int, float], Mapping[int, Counter[str]]]:
                    time.sleep(0.5)
                    return processor_seconds(served.pid), counts_in(Path(folder))

                uvloop.run(closed_loop(served.port, requests, number, 2.0))
                before, own = moment(), time.process_time()
                outcome = uvloop.run(closed_loop(served.port, requests, number, options.seconds))
                own = time.process_time() - own
                parts = {**spent_by_part(before, moment()), "client": own}
                lists = outcome.rate * options.seconds
                what = f"{number} connection{'s' if number > 1 else ''}"
                parts = {"everything": sum(parts.values()), **parts}
                for part, spent in sorted(parts.items(), key=lambda one: -one[1]):
                    rows.append(Row(name=f"{part}: {what}", value=1e6 * spent / lists, unit="us"))
    floors = floors_of(bundle)
    return rows + [Row(name=f"{part}: floor", value=us, unit="us") for part, us in floors.items()]


def floors_of(bundle: Bundle) -> dict[str, float]:
    """Microseconds that memory and arithmetic of a list take at this core's measured rates.

    Vectors and weights are read once, at the rate of a sum over 4 MiB; the ranker's products run at
    the rate of a product of 256 x 256 matrices.
    """
    values, square = torch.randn(1 << 20), torch.randn(256, 256)
    read = min(timed(lambda: values.sum())[0] for _ in range(50)) / values.nbytes
    multiplied = min(timed(lambda: square @ square)[0] for _ in range(50)) / 256**3
    events = np.diff(bundle.users.offsets)[1:].mean()
    found = {"sources": 0.0}
    if bundle.retriever is not None:
        found["sources"] += read * bundle.retriever.model.all_item_vectors().nbytes
    if bundle.sequence is not None:
        found["sources"] += read * bundle.sequence.all_item_vectors().nbytes
    if bundle.content_similarity is not None:
        rows = min(events, MAX_HISTORY)
        found["sources"] += read * rows * bundle.num_item_rows * 4
    for model in bundle.item_weights.values():
        offsets, others, amounts = model.table
        weight = (others.nbytes + amounts.nbytes) / (len(offsets) - 1)
        found["sources"] += read * events * weight
    if bundle.ranker is not None:
        model = bundle.ranker.model
        used = (model.cross, model.heads, model.trunk)
        weights = sum(one.numel() for part in used for one in part.parameters())
        found["rank: ranker"] = multiplied * weights * bundle.ranker.builder.num_candidates
    return {part: 1e6 * seconds for part, seconds in found.items()}


def measure_soak(options: argparse.Namespace) -> list[Row]:
    """A steady rate, minute after minute: requests, errors, latency, memory."""
    bundles, counts, memory, worst = options.bundles, 0, [], 0.0
    user_ids = list(load_bundle(bundles / "current").users.user_ids)[1:]
    requests, errors = messages(bodies(user_ids, 20_000, options.k)), 0
    with serving(bundles, RECSYS_WORKERS="2") as served:
        rate = options.rate or peak_of(served, requests, 10.0) / 2
        for _ in range(options.minutes):
            outcome = uvloop.run(open_loop(served.port, requests, rate, 60.0))
            counts += outcome.counts.total()
            errors += outcome.counts.total() - outcome.counts[200]
            worst = max(worst, outcome.percentile(99))
            memory.append(memory_of(served))
    name = f"{options.minutes} minutes at {rate:.0f}/s"
    return [
        Row(name=f"{name}: requests", value=counts),
        Row(name=f"{name}: errors", value=errors, at_most=0),
        Row(name=f"{name}: p99 of the worst minute", value=worst, unit="ms"),
        Row(name=f"{name}: memory after the first minute", value=memory[0], unit="MiB"),
        Row(name=f"{name}: memory at the end", value=memory[-1], unit="MiB"),
    ]


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


def progress(line: str) -> None:
    print(time.strftime("%H:%M:%S"), line, flush=True)


def copy_as(bundles: Path, version: str) -> None:
    """Copy the first bundle as another version, whole or not at all."""
    made = bundles / f"copy-{version}"
    shutil.rmtree(made, ignore_errors=True)
    shutil.copytree(bundles / "bundle-v1", made)
    path = made / "manifest.json"
    path.chmod(0o644)
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": version}))
    made.rename(bundles / f"bundle-{version}")


def memory_of(served: Served) -> float:
    """Proportional memory of all processes in MiB: a shared page counts once."""
    process = psutil.Process(served.pid)
    everyone = [process, *process.children(recursive=True)]
    return sum(one.memory_full_info().pss for one in everyone) / (1 << 20)


def measure_large(num_items: int, options: argparse.Namespace) -> list[Row]:
    """A made-up bundle of a large catalogue: start, load, latency and a swap."""
    size = SyntheticSize(
        num_items=num_items,
        num_users=1_000,
        events_per_user=50,
        embedding_dim=64,
        content_dim=32,
        history_models=True,
        cluster_items=CLUSTER_ITEMS,
    )
    name, rows = f"{num_items:,} made-up items", []
    with tempfile.TemporaryDirectory() as folder:
        bundles = Path(folder) if options.kept is None else options.kept / str(num_items)
        if not (bundles / "bundle-v1").exists():
            progress(f"{name}: making the bundle, about a minute for 300,000 items")
            write_synthetic_bundle(bundles, "v1", size)
        if not (bundles / "bundle-v2").exists():
            copy_as(bundles, "v2")
        publish(bundles, "v1")
        progress(f"{name}: starting a server")
        requests = messages(bodies([f"user-{n}" for n in range(1, 1_000)], 20_000, options.k))
        with serving(bundles, RECSYS_WORKERS="2", RECSYS_POLL_SECONDS="0.1") as served:
            rows.append(
                Row(name=f"{name}: ready after", value=served.start_seconds, unit="s", at_most=20)
            )
            progress(f"{name}: ready after {served.start_seconds:.1f} s; a closed loop")
            measured = measure_peak(name, served, requests, min(options.seconds, 10.0), 200.0)
            measured[1] = replace(measured[1], at_most=10_000)  # two cores, 200 lists a second
            rows += measured
            rate, seconds = min(200.0, 0.6 * measured[0].value), options.seconds
            progress(f"{name}: {measured[0].value:.0f} requests/s; an open loop of {rate:.0f}/s")
            rows += measure_http(name, served, requests, rate, seconds, 30.0)
            progress(f"{name}: a swap")
            before, begin = memory_of(served), time.perf_counter()
            publish(bundles, "v2")
            while served.reply("/readyz")["bundle"] != "v2":
                time.sleep(0.02)
            taken = time.perf_counter() - begin
            time.sleep(10)
            grown = memory_of(served) / before
        goal = {"at_most": 2} if num_items == LARGE[0] else {}
        rows.append(Row(name=f"{name}: swap", value=taken, unit="s", **goal))
        rows.append(Row(name=f"{name}: memory 10 s after the swap", value=grown, unit="x"))
    return rows


def parsed_arguments() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--bundles", type=Path, required=True, help="folder with current")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each loop")
    parser.add_argument("--part", choices=("demo", "large", "soak", "profile"), default="demo")
    parser.add_argument("--ranker", type=Path, help="folder of a ranker to serve with the bundle")
    parser.add_argument("--minutes", type=int, default=30, help="of the soak")
    parser.add_argument("--rate", type=float, help="requests a second of the soak: half the peak")
    parser.add_argument("--items", type=int, nargs="+", default=LARGE, help="of part large")
    parser.add_argument("--kept", type=Path, help="folder that keeps made-up bundles")
    parser.add_argument("--implicit-python", help="Python of an environment with implicit")
    parser.add_argument("-k", type=int, default=20, help="list length")
    parser.add_argument("--server-cpus", help="of our servers and the peers': 0,1")
    parser.add_argument("--client-cpus", help="of this process: 2,3")
    options = parser.parse_args()
    if (options.server_cpus is None) != (options.client_cpus is None):
        parser.error("name the processors of both: --server-cpus and --client-cpus")
    return options


def main() -> None:
    options = parsed_arguments()
    if options.server_cpus:
        CPUS.update(map(int, options.server_cpus.split(",")))
        os.sched_setaffinity(0, map(int, options.client_cpus.split(",")))
    torch.set_num_threads(1)
    if options.part != "large":
        with ranked_bundles(options) as options.bundles:
            measured = {"demo": measure_demo, "soak": measure_soak, "profile": measure_profile}
            name = {"demo": "load", "soak": "load_soak", "profile": "load_profile"}[options.part]
            write(options, measured[options.part](options), name)
    else:
        for num_items in options.items:
            write(options, measure_large(num_items, options), f"load_{num_items}_items")


def write(options: argparse.Namespace, rows: list[Row], name: str) -> None:
    what = f"Bundle: {(options.bundles / 'current').resolve().name}, k"
    if options.part == "large":
        what = (
            "Profile fast, every model but a ranker, 1,000 users; items lie in clusters of "
            f"{CLUSTER_ITEMS} around topics, as a real catalogue's do, and a user's history in "
            "three of them; k"
        )
    load, shares = os.getloadavg()[0], "the client shares the cores"
    if CPUS:
        shares = f"servers have processors {options.server_cpus} to themselves, the client (and "
        shares += f"lists in process) {options.client_cpus}"
    notes = (
        f"{what} = {options.k}, every request another one. {options.seconds:g} s a loop; "
        f"{shares}. Load average of the last minute: {load:.1f}, this run's own "
        "included. Memory counts a shared page once."
    )
    if options.part == "demo" and options.implicit_python is None:
        notes += " Implicit was not measured: no --implicit-python."
    write_results(name, rows, notes=notes, device=DEVICE)


if __name__ == "__main__":
    main()
