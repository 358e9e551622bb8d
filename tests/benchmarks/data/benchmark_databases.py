"""Features of a million events in PostgreSQL, against those of the same rows in Parquet.

    python -m tests.benchmarks.data.benchmark_databases

The server is the script's own, on this machine, and its transfer is `COPY TO STDOUT` in binary,
thrown away. The steps take turns; values are medians.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

from features.build import build_features
from features.reading.databases import DatabaseTable
from pipelines.config.run import DataConfig, RunConfig
from pipelines.inputs.snapshots import with_snapshots
from pipelines.stages.build_features import features_config
from tests.benchmarks.harness import Row, command_line, timed, write_results
from tests.pipelines.inputs.postgresql_server import postgresql_server

GOAL = 1.5


def make_events(num_events: int) -> pl.DataFrame:
    rng = np.random.default_rng(0)
    items = np.minimum(rng.zipf(1.2, num_events), num_events // 100)
    return pl.DataFrame(
        {
            "user_id": pl.Series(rng.integers(0, num_events // 20, num_events)).cast(pl.String),
            "item_id": pl.Series(items).cast(pl.String),
            "event_time": 1_700_000_000_000_000 + np.sort(rng.integers(0, 10**13, num_events)),
        }
    ).with_columns(pl.col("event_time").cast(pl.Datetime("us", "UTC")))


def load(url: str, events: pl.DataFrame) -> None:
    import adbc_driver_postgresql.dbapi as driver

    with driver.connect(url) as connection, connection.cursor() as cursor:
        cursor.adbc_ingest("orders", events.to_arrow())
        connection.commit()


def prepare(events: Path | str, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    config = RunConfig(workspace=folder, data=DataConfig(events=events))
    build_features(features_config(with_snapshots(config)), folder / "features")


def copy_out(url: str) -> None:
    command = ["psql", url, "-qc", "copy orders to stdout (format binary)"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--events", type=float, default=1e6)
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    events = make_events(int(asked.events))
    with tempfile.TemporaryDirectory() as temporary, postgresql_server() as url:
        folder = Path(temporary)
        events.write_parquet(folder / "events.parquet")
        load(url, events)
        address = f"{url}#orders"
        steps: dict[str, Callable[[], object]] = {
            "Parquet": partial(prepare, folder / "events.parquet", folder / "run"),
            "transfer": partial(copy_out, url),
            "reading": DatabaseTable.parse(address).read,
            "PostgreSQL": partial(prepare, address, folder / "run"),
        }
        seconds: dict[str, list[float]] = {name: [] for name in steps}
        for _ in range(asked.repeats):
            for name, step in steps.items():
                seconds[name].append(timed(step)[0])
    middle = {name: statistics.median(values) for name, values in seconds.items()}
    peer = middle["Parquet"] + middle["transfer"]
    rows = [
        Row(name=f"{events.height:,} events: {name}", value=value, unit="s")
        for name, value in middle.items()
    ]
    share = middle["PostgreSQL"] / peer
    rows.append(
        Row(name="PostgreSQL over Parquet and transfer", value=share, unit="x", at_most=GOAL)
    )
    write_results(
        "databases",
        rows,
        notes="Parquet and PostgreSQL are whole preparations (`build_features`); the latter reads "
        "the table, writes the snapshot and prepares it. Reading is of the table into a frame.",
    )


if __name__ == "__main__":
    main()
