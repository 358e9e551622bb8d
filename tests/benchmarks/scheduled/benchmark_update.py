"""What a day costs: `recsys update` against a full run, and reading a day against reading all.

    python -m tests.benchmarks.scheduled.benchmark_update [--days 30] [--events 5000000]

MovieLens-100K, its second half dealt out over days in its own order: a full run on what came
before, then one update a day, then a full run on everything, each a process of its own as a
scheduler starts it. Models are those of the demo: two-tower, sequence, semantic IDs, generative
model, ranker. Reading is measured on made-up partitions.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl

from features.build import FeaturesConfig, SourceConfig, build_features
from pipelines.config.run import DataConfig, RunConfig
from pipelines.config.toml import to_toml
from pipelines.datasets.fetch import fetch
from pipelines.datasets.registry import find_dataset
from pipelines.engine.artifacts import plain
from pipelines.engine.history import read_history
from pipelines.partitions.ingest import ingest
from pipelines.presets import PRESETS
from pipelines.presets.resolve import with_dataset
from tests.benchmarks.harness import Row, command_line, timed, write_results

FIRST = date(2026, 1, 1)
BEFORE_DAYS = 60
PARTITIONS = 100


def dealt_out(days: int, folder: Path) -> list[Path]:
    """Write MovieLens' first half as one partition and the rest by day; return the files."""
    tables = fetch(find_dataset("movielens-100k"))
    columns = ["user_id", "item_id", "value", "event_time"]
    events = pl.read_parquet(tables.table("events")).select(columns).sort("event_time")
    half = events.height // 2
    place = np.arange(events.height)
    day = np.where(place < half, 0, 1 + (place - half) * days // (events.height - half))
    events = events.with_columns(pl.Series("day", day))
    folder.mkdir(parents=True)
    paths = []
    for number in range(days + 1):
        part = events.filter(pl.col("day") == number)
        begin = FIRST + timedelta(days=number)
        length = timedelta(days=1)
        if number == 0:
            begin, length = begin - timedelta(days=BEFORE_DAYS), timedelta(days=BEFORE_DAYS + 1)
        start = int(datetime(begin.year, begin.month, begin.day, tzinfo=UTC).timestamp())
        seconds = start + np.arange(part.height) * int(length.total_seconds()) // part.height
        path = folder / f"{FIRST + timedelta(days=number)}.parquet"
        part.drop("day").with_columns(pl.Series("event_time", seconds)).write_parquet(path)
        paths.append(path)
    return paths


def write_shop(folder: Path) -> Path:
    """Write the demo's settings with partitions for events; return the TOML."""
    tables = fetch(find_dataset("movielens-100k"))
    settings = plain(PRESETS["movielens_100k"]())
    settings["workspace"] = str(folder / "run")
    settings["data"] = {
        "partitions": "events",
        "items": str(tables.table("items")),
        "users": str(tables.table("users")),
    }
    settings["adapter"], settings["tracking"] = {}, {"enabled": False}
    path = folder / "shop.toml"
    path.write_text('preset = "shop"\n' + to_toml(settings))
    return path


def recsys(*arguments: str) -> float:
    """Run a command; return its seconds."""
    command = [sys.executable, "-m", "pipelines.cli.main", *arguments]
    seconds, done = timed(
        lambda: subprocess.run(command, capture_output=True, text=True, check=False)
    )
    if done.returncode not in (0, 3):
        raise RuntimeError(f"{' '.join(arguments)}: {done.stderr[-2000:]}")
    return seconds


def updates(folder: Path, days: int) -> Iterator[Row]:
    """Measure a full run before, an update a day, and a full run after."""
    paths = dealt_out(days, folder / "all")
    config = str(write_shop(folder))
    (folder / "events").mkdir()

    def arrive(path: Path) -> None:
        (folder / "events" / path.name).write_bytes(path.read_bytes())

    arrive(paths[0])
    before = recsys("update", "-c", config, "-q")
    walls = []
    for path in paths[1:]:
        arrive(path)
        walls.append(recsys("update", "-c", config, "-q", "--set", "updates.full_every_days=1000"))
    lines = read_history(folder / "run")[1:]
    for line in lines:
        if line.outcome != "done":
            sys.stderr.write(f"{line.reasons}\n")
    stages = [sum(line.details["stages"].values()) for line in lines]
    refused = sum(line.outcome == "refused" for line in lines)
    nothing = recsys("update", "-c", config, "-q")
    full = recsys("update", "-c", config, "-q", "--full")
    full_stages = sum(read_history(folder / "run")[-1].details["stages"].values())
    yield Row(name="full run before the first day", value=before, unit="s")
    yield Row(name=f"full run on {days} days", value=full, unit="s")
    yield Row(name="update, a process: median", value=statistics.median(walls), unit="s")
    yield Row(name="update, a process: largest", value=max(walls), unit="s")
    share = 100 * statistics.median(walls) / full
    yield Row(name="update of the full run", value=share, unit="%", at_most=10.0)
    share = 100 * statistics.median(stages) / full_stages
    yield Row(name="stages of an update of the full run's", value=share, unit="%")
    yield Row(name="update without new events", value=nothing, unit="s", at_most=5.0)
    yield Row(name="refused updates", value=refused)


def write_partitions(folder: Path, num_events: int) -> None:
    """Write made-up events, as many a day."""
    rng = np.random.default_rng(0)
    each = num_events // PARTITIONS
    folder.mkdir(parents=True)
    for number in range(PARTITIONS):
        begin = FIRST + timedelta(days=number)
        start = int(datetime(begin.year, begin.month, begin.day, tzinfo=UTC).timestamp())
        pl.DataFrame(
            {
                "user_id": rng.integers(0, num_events // 20, each),
                "item_id": (rng.pareto(1.0, each) * 100).astype(np.int64) % 100_000,
                "event_time": np.sort(start + rng.integers(0, 86_400, each)),
            }
        ).write_parquet(folder / f"{begin}.parquet")


def reading(folder: Path, num_events: int) -> Iterator[Row]:
    """Measure reading all partitions, one more day, and building the features."""
    write_partitions(folder / "all", num_events)
    (folder / "events").mkdir()
    paths = sorted((folder / "all").iterdir())
    data = DataConfig(partitions=str(folder / "events"))
    config = RunConfig(workspace=folder / "run", data=data)
    for path in paths[:-1]:
        path.rename(folder / "events" / path.name)
    whole, _ = timed(lambda: ingest(config))
    paths[-1].rename(folder / "events" / paths[-1].name)
    day, report = timed(lambda: ingest(config))
    source = SourceConfig(paths=with_dataset(config).data.event_paths())
    settings = FeaturesConfig(events=source, context_features=(), write_events=False)
    build, built = timed(lambda: build_features(settings, folder / "features"))
    assert built.events + built.duplicates == num_events // PARTITIONS * PARTITIONS
    millions = num_events / 1e6
    yield Row(
        name=f"read {PARTITIONS - 1} partitions of {millions:g}M events", value=whole, unit="s"
    )
    yield Row(name=f"read one more day of {report.rows:,}", value=day, unit="s")
    yield Row(
        name="one day of all, per event",
        value=day / report.rows / (whole / (num_events - report.rows)),
        unit="x",
    )
    yield Row(name="build the features of all days", value=build, unit="s")


def main() -> None:
    """Measure and write the result."""
    parser = command_line(__doc__)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--events", type=int, default=5_000_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        rows = [*reading(Path(name) / "reading", arguments.events)]
        rows += updates(Path(name) / "updates", arguments.days)
    notes = (
        f"MovieLens-100K, half of it before {arguments.days} days of as many events each; the "
        "models of the demo."
    )
    write_results("update", rows, notes=notes)


if __name__ == "__main__":
    main()
