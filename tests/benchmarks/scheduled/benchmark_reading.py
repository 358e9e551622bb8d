"""What it costs to read partitions in a process of their own, which may die of their bytes.

    python -m tests.benchmarks.scheduled.benchmark_reading [--days 365] [--events 5000000]

The same files are read in the process that measures and in the one that ``recsys ingest`` starts,
in turns; the fastest of five rounds counts.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl

from features.schema import FilterConfig, SourceConfig
from pipelines.partitions.reading import Reader, Reply, Request, read_partition
from tests.benchmarks.harness import Row, command_line, timed, write_results

NOW = datetime(2026, 1, 1, tzinfo=UTC)
START = 1_700_000_000
SMALL = 1_000
ROUNDS = 5


def write_events(path: Path, num: int, seed: int) -> Path:
    """Write a partition of random events."""
    rng = np.random.default_rng(seed)
    users = pl.Series("user_id", rng.integers(0, max(10, num // 20), num))
    items = pl.Series("item_id", (rng.pareto(1.0, num) * 100).astype(np.int64) % 100_000)
    times = pl.Series("event_time", np.sort(START + rng.integers(0, 86_400, num)))
    pl.DataFrame([users, items, times]).write_parquet(path)
    return path


def seconds_of(read: Callable[[Request], Reply], paths: list[Path]) -> float:
    """Read some files into folders that are removed, one after the other."""
    with tempfile.TemporaryDirectory() as name:
        requests = [
            Request(
                source=SourceConfig(paths=(path,)),
                filters=FilterConfig(),
                out=Path(name) / path.stem,
                now=NOW,
                end=None,
                before=None,
            )
            for path in paths
        ]
        seconds, replies = timed(lambda: [read(one) for one in requests])
        assert all(one.report is not None for one in replies)
    return seconds


def start() -> float:
    """Start a process and let it answer one request."""
    with tempfile.TemporaryDirectory() as name, Reader() as reader:
        return seconds_of(reader.read, [write_events(Path(name) / "one.parquet", 10, 0)])


def main() -> None:
    """Measure and write the result."""
    parser = command_line(__doc__)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--events", type=int, default=5_000_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, Reader() as reader:
        days = [write_events(Path(name) / f"{n}.parquet", SMALL, n) for n in range(options.days)]
        cases = {
            f"{options.days} partitions of {SMALL:,} events": days,
            f"a partition of {options.events:,} events": [
                write_events(Path(name) / "large.parquet", options.events, options.days)
            ],
        }
        rows = [
            Row(
                name="start of the process, once a call that reads anything",
                value=statistics.median(start() for _ in range(ROUNDS)),
                unit="s",
            )
        ]
        for case, paths in cases.items():
            pairs = [
                (seconds_of(read_partition, paths), seconds_of(reader.read, paths))
                for _ in range(ROUNDS)
            ]
            own, child = (min(one) for one in zip(*pairs, strict=True))
            rows += [
                Row(name=f"{case}: in the process that calls", value=own, unit="s"),
                Row(name=f"{case}: in a process of its own", value=child, unit="s"),
                Row(name=f"{case}: cost", value=100 * (child / own - 1), unit="%", at_most=5.0),
            ]
    write_results("reading", rows)


if __name__ == "__main__":
    main()
