"""Write the kept events as Parquet, one folder a day, and beside them what was shown.

Axes: E events, D days from the first to the last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import polars as pl

from features.encoding import MISSING
from features.events import MICROS
from features.ingest import NO_SEQUENCE, NO_SLOT, OPTIONAL_FIELDS, ORDER, record_dtype
from features.parallel import Runner
from features.preparation.ids import TextColumns
from features.preparation.ranges import RowFiles, UserRange
from features.records import SLICE_RECORDS, RecordFile, Records, Rows, partition
from features.schema import EVENT_TIME, EVENT_TYPE, PROPENSITY, SEQUENCE_INDEX, SLOT, VALUE

MICROS_PER_DAY = 86_400 * MICROS
_EPOCH = date(1970, 1, 1)


def days_of(records: Records) -> Rows:
    """Number each event's day (UTC) since 1970, [E]."""
    days: Rows = records["time"] // MICROS_PER_DAY
    return days


def as_table(records: Records, texts: TextColumns) -> pl.DataFrame:
    """Give records their columns back; the codes of user and item are dense rows by now."""
    fields = records.dtype.names or ()
    raw = pl.DataFrame({name: np.ascontiguousarray(records[name]) for name in fields})
    time = pl.col("time") if "time" in fields else pl.lit(None, dtype=pl.Int64)
    sequence = pl.lit(None, dtype=pl.Int64)
    if ORDER in fields:
        sequence = pl.when(pl.col(ORDER) != NO_SEQUENCE).then(ORDER)
    value = pl.col("value") if "value" in fields else pl.lit(None, dtype=pl.Float64)
    # One type for all, as where the files have none, needs no look-up an event.
    kind = pl.lit(texts.types[0])
    if len(texts.types) > 1:
        kind = pl.lit(pl.Series(texts.types)).gather(pl.col("type"))
    columns = [
        pl.col("user").cast(pl.Int64).alias("user_row"),
        pl.col("item").cast(pl.Int64).alias("item_row"),
        time.cast(pl.Datetime("us", "UTC")).alias(EVENT_TIME),
        sequence.alias(SEQUENCE_INDEX),
        kind.alias(EVENT_TYPE),
        value.fill_nan(None).alias(VALUE),
    ]
    for field in texts.files:
        if field in fields:
            known = pl.when(pl.col(field) != int(MISSING)).then(field)
            text = pl.lit(texts.of(field)).gather(known)
            columns.append(text.alias(OPTIONAL_FIELDS[field].column))
    if "slot" in fields:
        slot = pl.when(pl.col("slot") != NO_SLOT).then(pl.col("slot").cast(pl.Int64))
        columns.append(slot.alias(SLOT))
    if "propensity" in fields:
        columns.append(pl.col("propensity").fill_nan(None).alias(PROPENSITY))
    return raw.select(columns)


@dataclass(frozen=True, kw_only=True)
class PlaceDaysTask:
    """A range of users whose kept events go to their days."""

    range: UserRange
    rows: RowFiles
    first_day: int
    counts: Rows
    """Kept events of each day from ``first_day``, [D]; without times one for all."""
    starts: Rows
    """Where they go, [D]."""
    target: Path


def place_days(task: PlaceDaysTask) -> None:
    """Write a range's kept events, with dense rows, to their days."""
    target = RecordFile(task.target, record_dtype(task.range.fields))
    partition(
        iter([task.range.read()]), target, task.rows.dense,
        lambda part: days_of(part) - task.first_day, task.counts, task.starts,
    )  # fmt: skip
    target.close()


@dataclass(frozen=True, kw_only=True)
class DayTask:
    """A day's kept events."""

    range: UserRange
    """Where they lie; of all users."""
    texts: TextColumns
    folder: Path


def write_day(task: DayTask) -> None:
    """Write a day as part-*.parquet."""
    task.folder.mkdir(parents=True, exist_ok=True)
    given = task.range
    for number, start in enumerate(range(given.start, given.end, SLICE_RECORDS)):
        part = replace(given, start=start, end=min(start + SLICE_RECORDS, given.end)).read()
        path = task.folder / f"part-{number:05d}.parquet"
        as_table(part, task.texts).write_parquet(path, compression="lz4")


def write_days(
    ranges: Sequence[UserRange], rows: RowFiles, day_counts: Sequence[Rows], first_day: int,
    texts: TextColumns, target: Path, directory: Path, run: Runner,
) -> None:  # fmt: skip
    """Write events/day=YYYY-MM-DD/part-*.parquet, within a day by user and moment."""
    fields = ranges[0].fields
    num_days = max(len(counts) for counts in day_counts)
    padded = [np.pad(counts, (0, num_days - len(counts))) for counts in day_counts]
    totals = np.sum(padded, axis=0)
    bounds = np.concatenate([[0], np.cumsum(totals)])
    tasks, cursor = [], bounds[:-1]
    for one, counts in zip(ranges, padded, strict=True):
        tasks.append(
            PlaceDaysTask(
                range=one, rows=rows, first_day=first_day, counts=counts, starts=cursor,
                target=target,
            )
        )  # fmt: skip
        cursor = cursor + counts
    for _ in run(place_days, tasks):
        pass
    days = []
    for day in np.flatnonzero(totals).tolist():
        name = _EPOCH + timedelta(days=first_day + day) if "time" in fields else "unknown"
        of_day = UserRange(
            path=target, fields=fields, start=int(bounds[day]), end=int(bounds[day + 1]),
            first_user=0, last_user=0,
        )  # fmt: skip
        days.append(DayTask(range=of_day, texts=texts, folder=directory / f"day={name}"))
    for _ in run(write_day, days):
        pass


def write_shown(parts: Iterator[Records], texts: TextColumns, directory: Path) -> int:
    """Write records of dense rows as part-*.parquet, in order; return how many there are."""
    directory.mkdir(parents=True)
    count = 0
    for number, part in enumerate(parts):
        as_table(part, texts).write_parquet(
            directory / f"part-{number:05d}.parquet", compression="lz4"
        )
        count += len(part)
    return count
