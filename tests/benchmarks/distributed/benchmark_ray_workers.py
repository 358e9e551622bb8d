"""Preparation of a generated world by one and by two Ray workers: seconds, and equal bytes.

    python -m tests.benchmarks.distributed.benchmark_ray_workers --events 1e7

Each worker is a process of one thread on this machine; on a cluster they are on several. Merging
ids and counting are done by the process that waits for them, so two are less than twice as fast.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from features.build import FeaturesConfig, build_features
from features.parallel import num_cores
from features.schema import FilterConfig
from pipelines.config.operation import RayConfig
from pipelines.engine.memory import free_memory
from pipelines.engine.ray_cluster import ray_cluster
from pipelines.presets.resolve import resolve
from pipelines.stages.build_features import features_config
from tests.benchmarks.data.large_world import generate
from tests.benchmarks.harness import Row, command_line, write_results
from tests.recsys.testing.large_worlds import LargeWorldConfig

GOAL = 1.6
BILLION = 1e9


def digest(folder: Path) -> str:
    """Digest all files of a folder."""
    found = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        found.update(str(path.relative_to(folder)).encode())
        with path.open("rb") as file:
            while chunk := file.read(1 << 24):
                found.update(chunk)
    return found.hexdigest()


def prepared(config: FeaturesConfig, workers: int, folder: Path) -> tuple[float, str]:
    """Prepare by so many workers; return seconds, the cluster's start left out, and a digest."""
    with (
        tempfile.TemporaryDirectory(dir=folder) as scratch,
        ray_cluster(RayConfig(tasks_at_once=workers)) as run,
    ):
        list(run(abs, range(4 * workers)))
        begin = time.perf_counter()
        out = Path(scratch) / "out"
        build_features(config, out, run=run, workers=workers, memory=free_memory())
        return time.perf_counter() - begin, digest(out)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--events", type=float, default=1e7)
    options = parser.parse_args()
    events = int(options.events)
    with tempfile.TemporaryDirectory() as folder:
        world = Path(folder) / "world"
        made = LargeWorldConfig(
            num_events=events, num_users=events // 20, num_items=max(1_000, events // 1_000)
        )
        generate(made, world, workers=num_cores(), say=lambda _: None)
        config = replace(
            features_config(resolve(world / "world.toml")),
            filters=FilterConfig(min_user_events=5, min_item_events=5),
            partitions=8,
        )
        one, first = prepared(config, 1, Path(folder))
        two, second = prepared(config, 2, Path(folder))
    if first != second:
        raise RuntimeError("one and two workers wrote different bytes")
    name = f"{events / 1e6:g}M events"
    rows = [
        Row(name=f"{name}, one worker: seconds", value=one, unit="s"),
        Row(
            name=f"{name}, two workers: seconds", value=two, unit="s",
            peer="one worker", peer_value=one, min_ratio=GOAL,
        ),
        Row(name=f"{name}, two workers: rate", value=events / two / 1e6, unit="M events/s"),
        Row(
            name="1,000M events on two workers, by proportion: minutes",
            value=two * BILLION / events / 60, unit="min",
        ),
    ]  # fmt: skip
    notes = (
        "Workers are processes of one thread on one machine. Bytes of both artefacts are equal. "
        "The start of Ray (some seconds) is left out."
    )
    write_results("ray_workers", rows, notes=notes)


if __name__ == "__main__":
    main()
