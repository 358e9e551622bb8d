"""Samples of what the processes of a server do, by processor time: for `benchmark_profile`.

Each process that inherits the environment of `sampled` counts, every millisecond of processor time,
the part of a request that its main thread is in, and keeps the counts in a file of its own.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

FOLDER = "RECSYS_SAMPLES"
SECONDS = 0.001
WRITE_SECONDS = 0.25
PARTS: tuple[tuple[str, str, str], ...] = (
    ("serving/query.py", "", "hydrate"),
    ("serving/live.py", "visitor", "hydrate"),
    ("serving/configuration/resolve.py", "", "hydrate"),
    ("serving/exclusions.py", "", "filter"),
    ("serving/retrieval.py", "query_sources", "sources"),
    ("serving/retrieval.py", "retrieve", "retrieve, the rest"),
    ("serving/bundle/ranker.py", "", "rank: ranker"),
    ("serving/retrieval.py", "", "rank: blend"),
    ("serving/arrangement/arrange.py", "", "select: items"),
    ("serving/arrangement/rules.py", "", "select: items"),
    ("serving/recommend.py", "", "list, the rest"),
    ("serving/list_record.py", "", "record of the list"),
    ("serving/schemas.py", "to_json", "JSON of the reply"),
    ("serving/web/http.py", "read_input", "read and check the body"),
    ("serving/web/handlers.py", "", "handler, the rest"),
    ("serving/server/worker.py", "", "worker: messages"),
    ("serving/online/request_log.py", "", "request log"),
    ("serving/server/request_log.py", "", "front: record to the log"),
    ("serving/server/connections.py", "send_at_once", "front: write the reply"),
    ("serving/metrics.py", "", "front: metrics"),
    ("serving/security/access.py", "", "front: access"),
    ("serving/server/dispatch.py", "", "front: dispatch"),
    ("serving/server/front.py", "", "front: request"),
    ("serving/server/connections.py", "", "front: read and parse"),
    ("httptools_impl.py", "", "front: read and parse"),
)
"""End of a file's name, a function or any, and the part: the first that fits any frame counts."""
OTHER = "the rest"

_counts: Counter[str] = Counter()
_written = 0.0


def part_of(frame: FrameType | None) -> str:
    """Name the part of a request that a frame belongs to: the outermost stage of a list counts."""
    best, name = len(PARTS), OTHER
    while frame is not None:
        file, function = frame.f_code.co_filename, frame.f_code.co_name
        for place, (end, of, part) in enumerate(PARTS[:best]):
            if file.endswith(end) and of in ("", function):
                best, name = place, part
                break
        frame = frame.f_back
    return name


def _take(_: int, frame: FrameType | None) -> None:
    global _written
    _counts[part_of(frame)] += 1
    now = time.monotonic()
    if now > _written + WRITE_SECONDS:
        _written = now
        path = Path(os.environ[FOLDER]) / f"{os.getpid()}.json"
        path.with_suffix(".part").write_text(json.dumps(_counts))
        path.with_suffix(".part").replace(path)


def _begin() -> None:
    _counts.clear()
    signal.signal(signal.SIGPROF, _take)
    signal.setitimer(signal.ITIMER_PROF, SECONDS, SECONDS)


def begin() -> None:
    """Sample this process and those that it forks, if the environment says so."""
    if FOLDER in os.environ:
        os.register_at_fork(after_in_child=_begin)
        _begin()


def sampled(folder: Path, root: Path) -> dict[str, str]:
    """Return the environment in which every Python samples itself into a folder."""
    (folder / "sitecustomize.py").write_text(
        "import tests.benchmarks.serving.sampler as sampler\nsampler.begin()\n"
    )
    return {FOLDER: str(folder), "PYTHONPATH": os.pathsep.join([str(folder), str(root)])}


def processor_seconds(pid: int) -> dict[int, float]:
    """Processor time so far of a process and its descendants."""
    import psutil

    first = psutil.Process(pid)
    times = {one.pid: one.cpu_times() for one in (first, *first.children(recursive=True))}
    return {pid: found.user + found.system for pid, found in times.items()}


def spent_by_part(
    before: tuple[Mapping[int, float], Mapping[int, Counter[str]]],
    after: tuple[Mapping[int, float], Mapping[int, Counter[str]]],
) -> Counter[str]:
    """Divide the seconds between two moments among parts, by their samples in each process."""
    found: Counter[str] = Counter()
    for pid, counts in after[1].items():
        own = counts - before[1].get(pid, Counter())
        seconds = after[0].get(pid, 0.0) - before[0].get(pid, 0.0)
        for part, count in own.items():
            found[part] += seconds * count / own.total()
    return found


def counts_in(folder: Path) -> Mapping[int, Counter[str]]:
    """Read the counts so far, by process."""
    return {int(one.stem): Counter(json.loads(one.read_text())) for one in folder.glob("*.json")}
