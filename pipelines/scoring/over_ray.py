"""Parts of a job made by a Ray cluster: each a task, done by whichever node is free.

Nodes read the bundle and write the lists at the same paths as this machine, on a file system that
all of them mount. A process loads the bundle once and keeps it for its next parts.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from pipelines.config.engine import RayConfig
from pipelines.engine.artifacts import MANIFEST, read_json
from pipelines.executor.ray_cluster import ray_cluster
from pipelines.scoring.job import Job
from pipelines.scoring.parts import Part, find_part, make_part
from pipelines.scoring.request import ScoreRequest
from serving.recommend import Recommender
from serving.settings import ServingOptions

SHARED = "put it on a file system that all nodes of the Ray cluster mount at the same path"


def make_parts(
    request: ScoreRequest,
    job: Job,
    keys: Sequence[str],
    report: Callable[[dict[str, Any]], object],
) -> tuple[dict[int, Part], float]:
    """Make all parts that are not there."""
    parts: dict[int, Part] = {}
    request = replace(request, out=str(Path(request.out).absolute()))
    out, missing = Path(request.out), list[int]()
    for number in range(job.num_parts):
        part = find_part(out, job, number)
        if part is None:
            missing.append(number)
        else:
            parts[number] = part
            report({"lists": part.num_keys})
    if not missing:
        return parts, 0.0
    tasks = ((request, job, number, job.keys_of(number, keys)) for number in missing)
    elsewhere = request.address or os.environ.get("RAY_ADDRESS")
    at_once = 0 if elsewhere else min(request.workers, len(missing))
    seconds = 0.0
    with ray_cluster(RayConfig(address=request.address, tasks_at_once=at_once)) as run:
        for part, taken in run(part_on_node, tasks):
            parts[part.number] = part
            seconds += taken
            report({"lists": part.num_keys})
            report({"part": asdict(part)})
    return parts, seconds


def part_on_node(task: tuple[ScoreRequest, Job, int, Sequence[str]]) -> tuple[Part, float]:
    """Make a part where this runs."""
    request, job, number, keys = task
    try:
        return _part(request, job, number, keys)
    except ValueError as error:
        raise ValueError(f"part {number} on node {platform.node()}: {error}") from None


def _part(request: ScoreRequest, job: Job, number: int, keys: Sequence[str]) -> tuple[Part, float]:
    torch.set_num_threads(1)
    begun = time.process_time()
    bundle, out = Path(request.bundle), Path(request.out)
    if not bundle.is_dir():
        raise ValueError(f"there is no bundle at {bundle}: {SHARED}")
    path = out.absolute() / MANIFEST
    if not path.is_file() or read_json(path).get("job_digest") != job.digest:
        raise ValueError(f"the folder of lists {out.absolute()} is not that of the job: {SHARED}")
    recommender = loaded(request.bundle, request.config, request.profile, job.digest)
    found = (recommender.bundle.digest, recommender.configuration.version)
    if found != (job.bundle_digest, job.configuration):
        raise ValueError(f"bundle {bundle} or its configuration has another content here: {SHARED}")
    part = make_part(recommender, job, number, keys, out)
    return part, time.process_time() - begun


@lru_cache(maxsize=1)
def loaded(bundle: str, config: str | None, profile: Any, job: str) -> Recommender:
    """Load a job's bundle once a process."""
    options = ServingOptions(profile=profile, config=None if config is None else Path(config))
    return Recommender.load(bundle, options).warm()
