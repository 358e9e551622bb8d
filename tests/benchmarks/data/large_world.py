"""Write a large generated world as Parquet: events by day and bucket of users, and the catalogue.

    OUT/
        world.json                                        the configuration; "complete" at the end
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
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import date, timedelta
from itertools import islice
from multiprocessing import get_context
from pathlib import Path

import polars as pl

from features.parallel import num_cores
from recsys.data.durable import PARTIAL, locked, replace_file, write_durably
from tests.recsys.testing.large_worlds import (
    SPREAD,
    TYPES,
    LargeWorldConfig,
    events_of_partition,
    items_of_range,
)

FIRST_DAY = date(2024, 1, 1)
BYTES_PER_EVENT = 16
"""On disk, at most; 13 of a world of 100M events."""
BYTES_PER_ITEM = 160
ITEMS_PER_FILE = 200_000
RESERVE_BYTES = 1_000_000_000
"""Left free on the disk."""
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

    @property
    def is_events(self) -> bool:
        return self.items is None


@dataclass(kw_only=True)
class Progress:
    """How far a call is."""

    files: int
    """Of the world."""
    files_done: int = 0
    events_done: int = 0
    """Those that were there before included."""
    events_made: int = 0
    """By this call."""
    bytes_made: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Events a second of this call."""
        return self.events_made / max(self.seconds, 1e-9)


def files_of(config: LargeWorldConfig) -> Iterator[WorldFile]:
    """Name every file of a world, the catalogue first."""
    for number, start in enumerate(range(0, config.num_items, ITEMS_PER_FILE)):
        end = min(start + ITEMS_PER_FILE, config.num_items)
        yield WorldFile(f"items/items-{number:05d}.parquet", items=(start, end))
    of = config.num_buckets
    for day, bucket in config.partitions:
        folder = f"events/day={FIRST_DAY + timedelta(days=day)}"
        yield WorldFile(f"{folder}/users-{bucket:04d}-of-{of:04d}.parquet", day, bucket)


def bytes_needed(config: LargeWorldConfig) -> int:
    """Estimate the disk that a world takes, rather too much than too little."""
    return _total(config) * BYTES_PER_EVENT + config.num_items * BYTES_PER_ITEM


def check_disk(config: LargeWorldConfig, out: Path, present: int = 0) -> str:
    """Say what a world needs and what there is.

    Args:
        present: Bytes of it that are there already.

    Raises:
        OSError: The disk is too small.
    """
    needed = max(0, bytes_needed(config) - present)
    free = shutil.disk_usage(out).free
    line = f"{needed / 1e9:.1f} GB of disk needed, {free / 1e9:.1f} GB free on {out}"
    if needed + RESERVE_BYTES > free:
        fits = max(0, free - RESERVE_BYTES) // BYTES_PER_EVENT
        raise OSError(
            f"{line} (1 GB of it stays free): choose a larger disk by --out, or at most "
            f"{fits:,} events"
        )
    return line


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
    """Make one file; return its events and its bytes.

    Raises:
        OSError: It cannot be written, as where the disk is full.
    """
    if file.items is None:
        table = event_table(config, file.day, file.bucket)
    else:
        table = item_table(config, *file.items)
    path = out / file.path
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, lambda partial: table.write_parquet(partial, compression_level=1))
    return (table.height if file.is_events else 0), path.stat().st_size


def check_same(config: LargeWorldConfig, out: Path) -> None:
    """Check that a folder is empty or holds this world.

    Raises:
        ValueError: It holds something else.
    """
    path, wanted = out / DESCRIPTION, asdict(config)
    if not path.exists():
        others = sorted(one.name for one in out.iterdir() if not one.name.startswith("."))
        if others:
            raise ValueError(f"{out} is not empty ({others[0]}); choose another folder")
        return
    held = json.loads(path.read_text(encoding="utf-8"))["world"]
    if differ := [name for name in wanted if held.get(name) != wanted[name]]:
        raise ValueError(
            f"{out} holds a world of other {', '.join(differ)} "
            f"({', '.join(f'{name} = {held.get(name)}' for name in differ)}); choose another "
            "folder, or delete this one"
        )


def described(config: LargeWorldConfig, *, complete: bool) -> str:
    """Lay out world.json."""
    return json.dumps({"world": asdict(config), "complete": complete}, indent=2) + "\n"


def generate(
    config: LargeWorldConfig,
    out: Path,
    *,
    workers: int = 1,
    say: Callable[[str], None] = print,
    report: Callable[[Progress], None] = lambda _: None,
) -> Progress:
    """Write what is missing of a world into a folder.

    Args:
        workers: Processes; 1 works in this one.
        say: Takes the disk needed, before anything is written.
        report: Takes the progress after each file.

    Raises:
        ValueError: The folder holds something else, or another process generates into it.
        OSError: The disk is too small, or a file cannot be written.
    """
    out.mkdir(parents=True, exist_ok=True)
    with locked(out / ".lock", wait=False) as held, ExitStack() as stack:
        if not held:
            raise ValueError(f"another process generates into {out}; wait for it")
        check_same(config, out)
        for leftover in out.rglob(f"{PARTIAL}*"):
            leftover.unlink()
        every = list(files_of(config))
        sizes = {
            file: (out / file.path).stat().st_size for file in every if (out / file.path).exists()
        }
        say(check_disk(config, out, sum(sizes.values())))
        if len(sizes) == len(every):
            return Progress(files=len(every), files_done=len(every), events_done=_total(config))
        write_durably(out / DESCRIPTION, described(config, complete=False))
        write_durably(out / "world.toml", RUN)
        present = (config.events_of(file.day, file.bucket) for file in sizes if file.is_events)
        progress = Progress(files=len(every), files_done=len(sizes), events_done=sum(present))
        missing = (file for file in every if file not in sizes)
        start = time.monotonic()
        pool = None
        if workers > 1:
            pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
            stack.callback(pool.shutdown, cancel_futures=True)
        for events, num_bytes in _made(config, out, missing, pool, 3 * workers):
            progress.files_done += 1
            progress.events_done += events
            progress.events_made += events
            progress.bytes_made += num_bytes
            progress.seconds = time.monotonic() - start
            report(progress)
        write_durably(out / DESCRIPTION, described(config, complete=True))
    return progress


def _total(config: LargeWorldConfig) -> int:
    return config.num_events + config.crawler_events


def _made(
    config: LargeWorldConfig,
    out: Path,
    files: Iterator[WorldFile],
    pool: Executor | None,
    window: int,
) -> Iterator[tuple[int, int]]:
    """Make files here or in a pool; at most ``window`` wait at a time."""
    if pool is None:
        for file in files:
            yield write_file(config, out, file)
        return
    pending: list[Future[tuple[int, int]]] = []
    while True:
        pending += [
            pool.submit(write_file, config, out, one)
            for one in islice(files, window - len(pending))
        ]
        if not pending:
            return
        yield pending.pop(0).result()


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
        f"{done.events_done:,} events in {options.out}; this call made {done.events_made:,} in "
        f"{done.seconds:.1f} s ({done.rate / 1e6:.2f}M events/s, {done.bytes_made / 1e9:.2f} GB)"
    )


if __name__ == "__main__":
    main()
