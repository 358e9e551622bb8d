"""Make lists for many users: one job at a time in a folder, in a fresh process.

The fresh process loads the bundle and forks workers, which share its memory. Nothing here uses
Polars before the fork: threads of its pool would be missing afterwards.
"""

from __future__ import annotations

import gc
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from features.parallel import end_with_the_parent
from pipelines.engine.artifacts import MANIFEST, read_json
from pipelines.engine.errors import WorkspaceBusyError
from pipelines.engine.stage import installed_version
from pipelines.engine.workspace import check_writable
from pipelines.scoring.job import Job, ScoreRequest, find_key, list_keys, plan, write_manifest
from pipelines.scoring.parts import Part, find_part, make_part, sweep
from recsys.data.durable import locked
from serving.query import fitted
from serving.recommend import Recommender
from serving.schemas import read_request
from serving.settings import ServingOptions
from serving.surfaces import find_surfaces

LOCK = ".lock"
MAX_TRIES = 2
Report = Callable[[Mapping[str, Any]], object]
Task = tuple[ScoreRequest, Job, int, Sequence[str]]


def score(
    request: ScoreRequest, report: Report = lambda _: None, *, keys: Sequence[str] | None = None
) -> dict[str, Any]:
    """Make the lists of a job that are missing; return numbers of the job and of this run.

    ``report`` gets ``lists_in_all``, then ``lists`` of each part, and ``lost`` parts of a worker
    that was killed.
    """
    out = Path(request.out)
    check_writable(out, "the folder of lists", "--out")
    with locked(out / LOCK, wait=False) as held:
        if not held:
            raise WorkspaceBusyError(
                f"{out.absolute()} is being written by another recsys score; wait for it, or name "
                "another folder with --out"
            )
        outcome = _in_process(request, keys, report)
    if not outcome["complete"]:
        raise ValueError(
            f"{outcome['num_failed']} of {outcome['num_failed'] + outcome['num_lists']} lists "
            f"failed, more than --max-failed-share {request.max_failed_share:g} allows; "
            f"{out / 'failed'} names them. Mend the cause and run the same command again"
        )
    return outcome


def _in_process(
    request: ScoreRequest, keys: Sequence[str] | None, report: Report
) -> dict[str, Any]:
    """Make the lists in a process of their own; pass on its messages and its error."""
    spawn = get_context("spawn")
    messages, theirs = spawn.Pipe(duplex=False)
    process = spawn.Process(target=work, args=(request, keys, theirs))
    process.start()
    theirs.close()
    try:
        while True:
            kind, value = messages.recv()
            if kind == "outcome":
                return dict(value)
            if kind == "error":
                raise value
            report(value)
    except EOFError:
        process.join()
        raise RuntimeError(
            f"the process that loads the bundle ended with code {process.exitcode}; see above"
        ) from None
    finally:
        process.kill()
        process.join()


def work(request: ScoreRequest, keys: Sequence[str] | None, messages: Connection) -> None:
    """Make the lists of a job; send what happens, and at last the outcome or an error."""
    end_with_the_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["POLARS_MAX_THREADS"] = "1"

    def send(kind: str, value: object) -> None:
        messages.send((kind, value))

    try:
        send("outcome", make_lists(request, keys, lambda message: send("report", message)))
    except (ValueError, OSError) as error:
        send("error", error)


def make_lists(
    request: ScoreRequest, named: Sequence[str] | None, report: Report
) -> dict[str, Any]:
    """Make every list that is missing; return numbers for the log line."""
    begun = time.perf_counter()
    torch.set_num_threads(1)
    recommender = loaded(request.bundle, request.config, request.profile)
    keys = list_keys(request, find_key(request.surface, recommender), recommender.bundle, named)
    out = Path(request.out).absolute()
    job = plan(request, recommender, keys, installed_version("recsys-platform"))
    check_request(job, recommender)
    sweep(out)
    if not (out / MANIFEST).exists():
        write_manifest(out, job, {"complete": False})
    report({"lists_in_all": len(keys)})
    tasks = [(request, job, part, job.list_keys(part, keys)) for part in range(job.num_parts)]
    parts = {}
    for part in make_here(tasks, report):
        parts[part.number] = part
        report({"lists": part.num_keys})
    # A process that was killed may have left files of parts that another one made.
    sweep(out)
    described = totals(job, [parts[number] for number in range(job.num_parts)])
    described["complete"] = described["num_failed"] / job.num_keys <= request.max_failed_share
    write_manifest(out, job, described)
    made = [part for part in parts.values() if part.made]
    return {
        **{name: value for name, value in described.items() if name != "partitions"},
        "parts": job.num_parts,
        "parts_made": len(made),
        "lists_made": sum(part.num_keys for part in made),
        "seconds": round(time.perf_counter() - begun, 1),
        "unix_time": job.unix_time,
    }


@lru_cache(maxsize=1)
def loaded(bundle: str, config: str | None, profile: Any) -> Recommender:
    """Load a bundle once a process; forked workers have it from their parent."""
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
    fitted(read_request(**job.request("1")), surfaces[job.surface])


def make_here(tasks: Sequence[Task], report: Report) -> Iterator[Part]:
    """Make parts in forked processes; after a kill, the parts in hand are made once more."""
    todo, tries = {task[2]: task for task in tasks}, 0
    gc.collect()
    gc.freeze()
    while todo:
        pool = ProcessPoolExecutor(
            min(tasks[0][0].workers, len(todo)), get_context("fork"), end_with_the_parent
        )
        try:
            for future in as_completed([pool.submit(make, task) for task in todo.values()]):
                part = future.result()
                del todo[part.number]
                tries = 0
                yield part
        except BrokenProcessPool as error:
            tries += 1
            if tries == MAX_TRIES:
                raise ValueError(
                    f"worker processes were killed twice while they made parts "
                    f"{', '.join(map(str, sorted(todo)[:5]))}; often there is too little memory: "
                    "lower --workers. Run the same command again for the parts that are missing"
                ) from error
            report({"lost": len(todo)})
        finally:
            pool.shutdown(cancel_futures=True)


def make(task: Task) -> Part:
    """Find or make a part in this process."""
    request, job, number, keys = task
    torch.set_num_threads(1)
    # Lists grow while a part is made, and hold no cycles.
    gc.set_threshold(20_000, 20, 50)
    out = Path(request.out).absolute()
    if read_json(out / MANIFEST).get("job_digest") != job.digest:
        raise ValueError(f"the folder of lists {out} is not that of the job")
    if (part := find_part(out, job, number)) is not None:
        return part
    recommender = loaded(request.bundle, request.config, request.profile)
    content = (recommender.bundle.digest, recommender.configuration.version)
    if content != (job.bundle_digest, job.configuration):
        loaded.cache_clear()
        raise ValueError(
            f"bundle {request.bundle} or its configuration changed while lists were made; run the "
            "same command again"
        )
    return make_part(recommender, job, number, keys, out)
