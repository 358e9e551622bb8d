"""The process that loads the bundle and makes the parts: in workers that it forks, or on Ray.

Workers share the loaded bundle's memory and run one thread each. Nothing here uses Polars before
the fork: threads of its pool would be missing afterwards.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pydantic import TypeAdapter, ValidationError

from features.parallel import end_with_the_parent
from pipelines.config.operation import RayConfig
from pipelines.engine.artifacts import MANIFEST, read_json
from pipelines.engine.errors import ClusterError
from pipelines.engine.ray_cluster import ray_cluster
from pipelines.engine.stage import installed_version
from pipelines.scoring.job import Job, ScoreRequest, find_key, list_keys, plan, write_manifest
from pipelines.scoring.parts import Part, find_part, make_part, sweep
from serving.query import fitted
from serving.recommend import Recommender
from serving.schemas import Request
from serving.settings import ServingOptions
from serving.surfaces import find_surfaces

MAX_TRIES = 2
SHARED = "put it on a file system that all nodes of the Ray cluster mount at the same path"
Report = Callable[[dict[str, Any]], object]


def score(request: ScoreRequest, report: Report) -> dict[str, Any]:
    """Make every list that is missing; return numbers for the log line."""
    torch.set_num_threads(1)
    begun = time.perf_counter()
    recommender = loaded(request.bundle, request.config, request.profile)
    keys = list_keys(request, find_key(request.surface, recommender), recommender.bundle)
    out = Path(request.out)
    job = plan(request, recommender, keys, installed_version("recsys-platform"))
    check_request(job, recommender)
    sweep(out)
    if not (out / MANIFEST).exists():
        write_manifest(out, job, {"complete": False})
    load_seconds = time.perf_counter() - begun
    begun = time.perf_counter()
    report({"lists_in_all": len(keys), "bundle": job.bundle})
    if request.engine == "ray":
        parts, cpu_seconds = make_on_ray(request, job, keys, report)
    else:
        parts, cpu_seconds = Workers(recommender, job, keys, out).run(request.workers, report)
    # A node that died may have left files of parts that another node made.
    sweep(out)
    described = totals(job, [parts[number] for number in range(job.num_parts)])
    failed_share = described["num_failed"] / job.num_keys
    described["complete"] = failed_share <= request.max_failed_share
    write_manifest(out, job, described)
    made = [part for part in parts.values() if part.made]
    return {
        **{name: value for name, value in described.items() if name != "partitions"},
        "parts": job.num_parts,
        "parts_made": len(made),
        "lists_made": sum(part.num_keys for part in made),
        "load_seconds": round(load_seconds, 1),
        "seconds": round(time.perf_counter() - begun, 1),
        "cpu_seconds": round(cpu_seconds, 1),
        "unix_time": job.unix_time,
    }


@lru_cache(maxsize=1)
def loaded(bundle: str, config: str | None, profile: Any) -> Recommender:
    """Load a bundle once a process."""
    options = ServingOptions(profile=profile, config=None if config is None else Path(config))
    return Recommender.load(bundle, options).warm()


def totals(job: Job, parts: list[Part]) -> dict[str, Any]:
    """Sum up the parts for the manifest."""
    degraded = sum((Counter(part.degraded) for part in parts), Counter[str]())
    num_failed = sum(part.failed for part in parts)
    return {
        "num_lists": job.num_keys - num_failed,
        "num_failed": num_failed,
        "rows": sum(part.rows for part in parts),
        "degraded": dict(sorted(degraded.items())),
        "partitions": [part.described() for part in parts],
    }


def check_request(job: Job, recommender: Recommender) -> None:
    """Refuse options that every request would fail with."""
    surfaces = find_surfaces(recommender.bundle.exclude_history, recommender.configuration.surfaces)
    try:
        fitted(Request.model_validate(job.request("1")), surfaces[job.surface])
    except ValidationError as error:
        faults = error.errors(include_url=False)
        lines = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in faults]
        raise ValueError("; ".join(line.removeprefix(": ") for line in lines)) from None


class Worker(NamedTuple):
    """A forked process and the part that it makes."""

    process: ForkProcess
    part: int


class Workers:
    """Forked processes that make a part each; a part whose process is killed is made once more."""

    def __init__(self, recommender: Recommender, job: Job, keys: Sequence[str], out: Path) -> None:
        self._recommender, self._job, self._keys, self._out = recommender, job, keys, out

    def run(self, num_workers: int, report: Report) -> tuple[dict[int, Part], float]:
        """Make all parts; return them with the seconds of processor time."""
        before, parts, tries = os.times(), dict[int, Part](), Counter[int]()
        waiting, workers = deque(range(self._job.num_parts)), dict[Connection, Worker]()
        gc.collect()
        gc.freeze()
        while waiting or workers:
            while waiting and len(workers) < num_workers:
                started = self._start(waiting.popleft())
                workers[started[0]] = started[1]
            for connection in wait(list(workers)):
                assert isinstance(connection, Connection)
                try:
                    message = connection.recv()
                except (EOFError, ConnectionResetError):
                    worker = workers.pop(connection)
                    worker.process.join()
                    if worker.part not in parts:
                        tries[worker.part] += 1
                        report({"lost": worker.part, "how": self._lost(worker, tries)})
                        waiting.append(worker.part)
                    continue
                if "part" in message:
                    part = Part(**message["part"])
                    parts[part.number] = part
                report(message)
        after = os.times()
        user = after.children_user - before.children_user
        return parts, user + after.children_system - before.children_system

    def _start(self, part: int) -> tuple[Connection, Worker]:
        fork = get_context("fork")
        ours, theirs = fork.Pipe(duplex=False)
        process = fork.Process(target=self._work, args=(theirs, part))
        process.start()
        theirs.close()
        return ours, Worker(process, part)

    def _work(self, messages: Connection, number: int) -> None:
        end_with_the_parent()
        # Lists grow while a part is made, and hold no cycles.
        gc.set_threshold(20_000, 20, 50)

        def progressed(lists: int) -> None:
            messages.send({"lists": lists})

        keys = self._job.list_keys(number, self._keys)
        part = find_part(self._out, self._job, number)
        if part is None:
            part = make_part(self._recommender, self._job, number, keys, self._out, progressed)
        else:
            progressed(len(keys))
        messages.send({"part": asdict(part)})

    def _lost(self, worker: Worker, tries: Counter[int]) -> str:
        """Describe how a worker ended; ValueError if its part was lost too often."""
        code = worker.process.exitcode or 0
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        if tries[worker.part] >= MAX_TRIES:
            raise ValueError(
                f"worker processes ended by {how} twice while they made part {worker.part} of "
                f"{self._out}; signal 9 often means too little memory: lower --workers. Run the "
                "same command again for the parts that are missing"
            )
        return how


def make_on_ray(
    request: ScoreRequest, job: Job, keys: Sequence[str], report: Report
) -> tuple[dict[int, Part], float]:
    """Make parts as tasks of a Ray cluster, whose nodes see bundle and folder at the same paths."""
    request = replace(request, out=str(Path(request.out).absolute()))
    found = {number: find_part(Path(request.out), job, number) for number in range(job.num_parts)}
    parts = {number: part for number, part in found.items() if part is not None}
    for part in parts.values():
        report({"lists": part.num_keys})
    missing = [number for number, part in found.items() if part is None]
    if not missing:
        return parts, 0.0
    elsewhere = request.address or os.environ.get("RAY_ADDRESS")
    at_once = 0 if elsewhere else min(request.workers, len(missing))
    seconds = 0.0
    with ray_cluster(RayConfig(address=request.address, tasks_at_once=at_once)) as run:
        tasks = ((request, job, number, job.list_keys(number, keys)) for number in missing)
        for part, taken in run(part_on_node, tasks):
            parts[part.number] = part
            seconds += taken
            report({"lists": part.num_keys})
            report({"part": asdict(part)})
    return parts, seconds


def part_on_node(task: tuple[ScoreRequest, Job, int, Sequence[str]]) -> tuple[Part, float]:
    """Make a part on the node of this process; return it with the seconds of processor time."""
    request, job, number, keys = task
    torch.set_num_threads(1)
    begun = time.process_time()
    bundle, out = Path(request.bundle), Path(request.out).absolute()
    try:
        if not bundle.is_dir():
            raise ValueError(f"there is no bundle at {bundle}: {SHARED}")
        path = out / MANIFEST
        if not path.is_file() or read_json(path).get("job_digest") != job.digest:
            raise ValueError(f"the folder of lists {out} is not that of the job: {SHARED}")
        recommender = loaded(request.bundle, request.config, request.profile)
        content = (recommender.bundle.digest, recommender.configuration.version)
        if content != (job.bundle_digest, job.configuration):
            loaded.cache_clear()
            raise ValueError(
                f"bundle {bundle} or its configuration has another content here: {SHARED}"
            )
        part = make_part(recommender, job, number, keys, out)
    except ValueError as error:
        raise ValueError(f"part {number} on node {platform.node()}: {error}") from None
    return part, time.process_time() - begun


def main() -> None:
    """Read the request from standard input; write messages and the outcome as lines of JSON."""
    end_with_the_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    request = TypeAdapter(ScoreRequest).validate_json(sys.stdin.read())
    with os.fdopen(int(sys.argv[1]), "w") as replies:

        def send(message: dict[str, Any]) -> None:
            replies.write(json.dumps(message) + "\n")
            replies.flush()

        try:
            send({"outcome": score(request, send)})
        except (ValueError, OSError, ClusterError) as error:
            kinds = (ValueError, OSError, ClusterError)
            kind = next(one.__name__ for one in kinds if isinstance(error, one))
            send({"error": kind, "message": str(error)})
