"""The process that loads the bundle and forks workers; its starter shows how far it is.

Nothing here uses Polars before the fork: threads of its pool would be missing afterwards.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError

from pipelines.engine.artifacts import MANIFEST
from pipelines.engine.errors import ClusterError
from pipelines.engine.stage import installed_version
from pipelines.scoring import over_ray
from pipelines.scoring.job import Job, key_of, keys_of, plan, write_manifest
from pipelines.scoring.parts import Part, sweep
from pipelines.scoring.request import ScoreRequest
from pipelines.scoring.workers import Task, Workers
from serving.query import fitted
from serving.recommend import Recommender
from serving.schemas import Request
from serving.server.zygote import receive_message, send_message
from serving.settings import ServingOptions
from serving.surfaces import surfaces_of


def score(request: ScoreRequest, driver: socket.socket) -> dict[str, Any]:
    """Make every list that is missing."""
    torch.set_num_threads(1)
    begun = time.perf_counter()
    config = None if request.config is None else Path(request.config)
    options = ServingOptions(profile=request.profile, config=config)
    recommender = Recommender.load(request.bundle, options).warm()
    keys = keys_of(request, key_of(request.surface, recommender), recommender.bundle)
    out = Path(request.out)
    job = plan(request, recommender, keys, installed_version("recsys-platform"))
    check_request(job, recommender)
    sweep(out)
    if not (out / MANIFEST).exists():
        write_manifest(out, job, {"complete": False})
    loaded = time.perf_counter()
    send_message(driver, {"lists_in_all": len(keys), "bundle": job.bundle})
    parts, cpu_seconds = make_parts(request, Task(recommender, job, keys, out), driver)
    # What a node that died had begun, and another made anew.
    sweep(out)
    described = summed(job, [parts[number] for number in range(job.num_parts)])
    failed_share = described["num_failed"] / job.num_keys
    described["complete"] = failed_share <= request.max_failed_share
    write_manifest(out, job, described)
    made = [part for part in parts.values() if part.made]
    return {
        **{name: value for name, value in described.items() if name != "partitions"},
        "parts": job.num_parts,
        "parts_made": len(made),
        "lists_made": sum(part.num_keys for part in made),
        "load_seconds": round(loaded - begun, 1),
        "seconds": round(time.perf_counter() - loaded, 1),
        "cpu_seconds": round(cpu_seconds, 1),
        "unix_time": job.unix_time,
    }


def make_parts(
    request: ScoreRequest, task: Task, driver: socket.socket
) -> tuple[dict[int, Part], float]:
    """Make the parts here or on a Ray cluster; return them and the seconds of CPUs it took."""

    def report(message: dict[str, Any]) -> None:
        send_message(driver, message)

    if request.engine == "ray":
        return over_ray.make_parts(request, task.job, task.keys, report)
    before = os.times()
    parts = Workers(task, driver, report).run(range(task.job.num_parts), request.workers)
    after = os.times()
    user = after.children_user - before.children_user
    return parts, user + after.children_system - before.children_system


def summed(job: Job, parts: list[Part]) -> dict[str, Any]:
    """What the manifest says when all parts are there."""
    degraded: Counter[str] = Counter()
    for part in parts:
        degraded.update(part.degraded)
    return {
        "num_lists": job.num_keys - sum(part.failed for part in parts),
        "num_failed": sum(part.failed for part in parts),
        "rows": sum(part.rows for part in parts),
        "degraded": dict(sorted(degraded.items())),
        "partitions": [part.described() for part in parts],
    }


def check_request(job: Job, recommender: Recommender) -> None:
    """Refuse options that every request would fail with."""
    surfaces = surfaces_of(recommender.bundle.exclude_history, recommender.configuration.surfaces)
    try:
        fitted(Request.model_validate(job.request("1")), surfaces[job.surface])
    except ValidationError as error:
        faults = error.errors(include_url=False)
        lines = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in faults]
        raise ValueError("; ".join(line.removeprefix(": ") for line in lines)) from None


def run(driver: socket.socket) -> None:
    """Do what the first message says, and answer how it ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    received = receive_message(driver)
    assert received is not None
    request = TypeAdapter(ScoreRequest).validate_python(received[0])
    outcome: dict[str, Any]
    try:
        outcome = {"outcome": score(request, driver)}
    except ValueError as error:
        outcome = {"refused": str(error)}
    except (BrokenPipeError, ConnectionResetError):
        return
    except OSError as error:
        outcome = {"disk": str(error)}
    except ClusterError as error:
        outcome = {"cluster": str(error)}
    send_message(driver, outcome)


if __name__ == "__main__":
    run(socket.socket(fileno=int(sys.argv[1])))
