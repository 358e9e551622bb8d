"""Write a large generated world as Parquet: events by day and bucket of users, and the catalogue.

    OUT/
        world.json                                        the configuration
        world.toml                                        a run's configuration
        events/day=2024-01-01/users-0003-of-0010.parquet
        items/items-00000.parquet

Each file is made by itself and renamed into place, so a killed call goes on where it was, on any
number of processes, to the same bytes.

    python -m tests.benchmarks.data.large_world --out world --events 1e8
    recsys run world/world.toml
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from datetime import date, timedelta
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import polars as pl

from features.parallel import num_cores
from recsys.data.durable import PARTIAL, replace_file, write_durably
from tests.recsys.testing.large_worlds import (
    SPREAD,
    TYPES,
    LargeWorldConfig,
    events_of_partition,
    items_of_range,
)

FIRST_DAY = date(2024, 1, 1)
ITEMS_PER_FILE = 200_000
DESCRIPTION = "world.json"
RUN = """# A generated world; make it by: python -m tests.benchmarks.data.large_world
[data]
events = "events"
items = "items"
"""


@dataclass(frozen=True)
class WorldFile:
    """One file to make: events of a day and bucket, or a range of items."""

    path: str
    """Below the world's folder."""
    day: int = 0
    bucket: int = 0
    items: tuple[int, int] | None = None


class Made(NamedTuple):
    """What a call made."""

    events: int
    num_bytes: int
    seconds: float

    @property
    def rate(self) -> float:
        """Events a second."""
        return self.events / max(self.seconds, 1e-9)


def files_of(config: LargeWorldConfig) -> Iterator[WorldFile]:
    """Name every file of a world, the catalogue first."""
    for number, start in enumerate(range(0, config.num_items, ITEMS_PER_FILE)):
        end = min(start + ITEMS_PER_FILE, config.num_items)
        yield WorldFile(f"items/items-{number:05d}.parquet", items=(start, end))
    of = config.num_buckets
    for day, bucket in config.partitions:
        folder = f"events/day={FIRST_DAY + timedelta(days=day)}"
        yield WorldFile(f"{folder}/users-{bucket:04d}-of-{of:04d}.parquet", day, bucket)


def event_table(config: LargeWorldConfig, day: int, bucket: int) -> pl.DataFrame:
    """Make one partition of the events."""
    events = events_of_partition(config, day, bucket)
    table = pl.DataFrame(
        {"user": events.users, "item": events.items, "time": events.times, "type": events.types}
    )
    number = pl.col("item") * (SPREAD % config.num_items) % config.num_items
    return table.select(
        pl.format("user-{}", "user").alias("user_id"),
        pl.format("item-{}", number).alias("item_id"),
        pl.from_epoch("time").dt.cast_time_unit("us").dt.replace_time_zone("UTC")
        .alias("event_time"),
        pl.col("type").cat.to(pl.Enum(TYPES)).cast(pl.String).alias("event_type"),
    )  # fmt: skip


def item_table(config: LargeWorldConfig, start: int, end: int) -> pl.DataFrame:
    """Make a range of the catalogue."""
    part = items_of_range(config, start, end)
    return pl.DataFrame(
        {
            "item_id": part.catalogue.item_ids,
            "title": part.catalogue.titles,
            "description": part.catalogue.descriptions,
            "categories": [list(names) for names in part.catalogue.categories],
            "price": part.catalogue.prices,
            "domain": part.domains,
            "available_from": pl.Series(part.available_from),
        }
    ).with_columns(
        pl.from_epoch("available_from").dt.cast_time_unit("us").dt.replace_time_zone("UTC")
    )


def write_file(config: LargeWorldConfig, out: Path, file: WorldFile) -> tuple[int, int]:
    """Make one file; return its events and its bytes."""
    if file.items is None:
        table = event_table(config, file.day, file.bucket)
    else:
        table = item_table(config, *file.items)
    path = out / file.path
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, lambda part: table.write_parquet(part, compression_level=1))
    return (table.height if file.items is None else 0), path.stat().st_size


def generate(config: LargeWorldConfig, out: Path, *, workers: int = 1) -> Made:
    """Write what is missing of a world into a folder.

    Raises:
        ValueError: The folder holds something else.
        OSError: A file cannot be written.
    """
    out.mkdir(parents=True, exist_ok=True)
    description, wanted = out / DESCRIPTION, json.dumps(asdict(config), indent=2) + "\n"
    held = description.read_text(encoding="utf-8") if description.exists() else ""
    if held != wanted and any(out.iterdir()):
        raise ValueError(
            f"{out} holds other files or a world of other options; choose another folder"
        )
    write_durably(description, wanted)
    write_durably(out / "world.toml", RUN)
    for leftover in out.rglob(f"{PARTIAL}*"):
        leftover.unlink()
    missing = [file for file in files_of(config) if not (out / file.path).exists()]
    start = time.monotonic()
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        made = list(pool.map(partial(write_file, config, out), missing))
    events, num_bytes = (sum(column) for column in zip((0, 0), *made, strict=True))
    return Made(events, num_bytes, time.monotonic() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--events", type=float, default=1e6)
    parser.add_argument("--users", type=float, default=0, help="0: a user for 20 events")
    parser.add_argument("--items", type=float, default=0, help="0: an item for 1,000 events")
    parser.add_argument("--days", type=int, default=100, help="from 2024-01-01 on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--crawler-events", type=float, default=0, help="further ones of one user")
    parser.add_argument("--workers", type=int, default=0, help="processes; 0 for the cores")
    options = parser.parse_args()
    events = int(options.events)
    config = LargeWorldConfig(
        num_events=events,
        num_users=int(options.users) or max(1, events // 20),
        num_items=int(options.items) or max(1_000, events // 1_000),
        num_days=options.days,
        seed=options.seed,
        crawler_events=int(options.crawler_events),
    )
    done = generate(config, options.out, workers=options.workers or num_cores())
    print(
        f"{done.events:,} events written to {options.out} in {done.seconds:.1f} s "
        f"({done.rate / 1e6:.2f}M events/s, {done.num_bytes / 1e9:.2f} GB)"
    )


if __name__ == "__main__":
    main()
