"""Generated worlds of 1M to 100M events: how fast they are made and prepared, in what memory.

    python -m tests.benchmarks.data.benchmark_data_at_size --sizes 1e6 1e7 1e8

A world has a user for 20 events and an item for 1,000, 100 days, and a catalogue with texts. Each
step runs in a process of its own, whose peak resident memory counts, interpreter included. The
preparation is the whole stage: validation, 5-core, histories, splits, context features, events by
day, catalogue.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.benchmarks.harness import Row, command_line, write_results

SIZES = (1e6, 1e7, 1e8)
GOAL_MEMORY_GB = 24.0
CRAWLED = 10_000_000


def generate(folder: Path, events: int, crawled: int) -> dict[str, Any]:
    """Make a world on all cores; return events a second and bytes."""
    from features.parallel import num_cores
    from tests.benchmarks.data.large_world import generate as generate_world
    from tests.recsys.testing.large_worlds import LargeWorldConfig

    config = LargeWorldConfig(
        num_events=events,
        num_users=events // 20,
        num_items=max(1_000, events // 1_000),
        crawler_events=crawled,
    )
    done = generate_world(config, folder, workers=num_cores())
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    return {"rate": done.rate, "bytes": done.num_bytes, "peak": max(children, peak())}


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def prepare(folder: Path, partitions: int) -> dict[str, Any]:
    """Prepare a world; return what it took."""
    from dataclasses import replace

    from features.build import FilterConfig, build_features
    from pipelines.engine.memory import free_memory
    from pipelines.presets.resolve import resolve
    from pipelines.stages.build_features import features_config

    config = replace(
        features_config(resolve(folder / "world.toml")),
        filters=FilterConfig(min_user_events=5, min_item_events=5),
        file_groups=partitions,
    )
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        out = Path(scratch) / "out"
        start = time.perf_counter()
        report = build_features(config, out, memory=free_memory())
        seconds = time.perf_counter() - start
        size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    return {
        "seconds": seconds, "rows": report.rows_in, "kept": report.events, "users": report.users,
        "bytes": size, "peak": peak(), "rate": report.rows_in / seconds,
    }  # fmt: skip


def in_child(task: str, folder: Path, **options: int) -> dict[str, Any]:
    """Run a step in a process of its own."""
    command = [sys.executable, "-m", __spec__.name, "--child", task, "--data", str(folder)]
    command += [f"--{name}={value}" for name, value in options.items()]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    print(folder.name, task, options, found, flush=True)
    return found


def rows_of(root: Path, events: int, *, keep: bool, crawled: int = 0) -> Iterator[Row]:
    """Make, prepare and delete a world."""
    folder = root / f"world-{events}-{crawled}"
    name = f"{events / 1e6:g}M events"
    if crawled:
        name += f" and {crawled / 1e6:g}M of one user"
    if not (folder / "world.json").exists():
        made = in_child("generate", folder, events=events, crawled=crawled)
        yield Row(name=f"{name}: generated", value=made["rate"] / 1e6, unit="M events/s")
        yield Row(name=f"{name}: memory of a process", value=made["peak"] / 1e9, unit="GB")
        yield Row(name=f"{name}: size", value=made["bytes"] / events, unit="bytes/event")
    done = in_child("prepare", folder, partitions=0)
    yield Row(name=f"{name}: prepared", value=done["rate"] / 1e6, unit="M events/s")
    yield Row(
        name=f"{name}: peak memory of preparation",
        value=done["peak"] / 1e9,
        unit="GB",
        at_most=GOAL_MEMORY_GB,
    )
    if not keep:
        shutil.rmtree(folder)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--sizes", type=float, nargs="+", default=SIZES)
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "data-at-size")
    parser.add_argument("--keep", action="store_true", help="leave the worlds on the disk")
    parser.add_argument("--no-skew", action="store_true", help="leave out the world of one user")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--events", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--crawled", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--partitions", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child == "generate":
        print(json.dumps(generate(arguments.data, arguments.events, arguments.crawled)))
        return
    if arguments.child == "prepare":
        print(json.dumps(prepare(arguments.data, arguments.partitions)))
        return
    rows: list[Row] = []
    for events in sorted(int(size) for size in arguments.sizes):
        rows += rows_of(arguments.data, events, keep=arguments.keep)
    if not arguments.no_skew:
        rows += rows_of(arguments.data, CRAWLED, keep=arguments.keep, crawled=CRAWLED)
    notes = (
        f"One run each on {len(os.sched_getaffinity(0))} cores, from the first byte read to the "
        "last written."
    )
    write_results("data_at_size", rows, notes=notes)


if __name__ == "__main__":
    main()
