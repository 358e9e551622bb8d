"""Write the kept events as Parquet, one folder a day, and beside them what was shown.

Axes: E events, D days from the first to the last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import polars as pl

from features.encoding import MISSING
from features.events import MICROS
from features.ingest import NO_SEQUENCE, NO_SLOT, OPTIONAL_FIELDS, Dictionaries
from features.parallel import num_cores
from features.records import SLICE_RECORDS, RecordFile, Records, Rows, partition
from features.schema import EVENT_TIME, EVENT_TYPE, PROPENSITY, SEQUENCE_INDEX, SLOT, VALUE

MICROS_PER_DAY = 86_400 * MICROS
_EPOCH = date(1970, 1, 1)


def days_of(records: Records) -> Rows:
    """Number each event's day (UTC) since 1970, [E]."""
    days: Rows = records["time"] // MICROS_PER_DAY
    return days


def as_table(records: Records, texts: Dictionaries) -> pl.DataFrame:
    """Give records their columns back; the codes of user and item are dense rows by now."""
    fields = records.dtype.names or ()
    raw = pl.DataFrame({name: np.ascontiguousarray(records[name]) for name in fields})
    time = pl.col("time") if "time" in fields else pl.lit(None, dtype=pl.Int64)
    sequence = pl.lit(None, dtype=pl.Int64)
    if "sequence" in fields:
        sequence = pl.when(pl.col("sequence") != NO_SEQUENCE).then("sequence")
    value = pl.col("value") if "value" in fields else pl.lit(None, dtype=pl.Float64)
    kind = pl.col("type").cat.to(texts.types.dtype).cast(pl.String)
    if texts.types.size == 1:
        # One type for all, as where the files have none, needs no look-up an event.
        kind = pl.lit(texts.types.texts()[0])
    columns = [
        pl.col("user").cast(pl.Int64).alias("user_row"),
        pl.col("item").cast(pl.Int64).alias("item_row"),
        time.cast(pl.Datetime("us", "UTC")).alias(EVENT_TIME),
        sequence.alias(SEQUENCE_INDEX),
        kind.alias(EVENT_TYPE),
        value.fill_nan(None).alias(VALUE),
    ]
    for field, dictionary in texts.optional().items():
        if field in fields:
            known = pl.when(pl.col(field) != int(MISSING)).then(field)
            text = known.cat.to(dictionary.dtype).cast(pl.String)
            columns.append(text.alias(OPTIONAL_FIELDS[field].column))
    if "slot" in fields:
        slot = pl.when(pl.col("slot") != NO_SLOT).then(pl.col("slot").cast(pl.Int64))
        columns.append(slot.alias(SLOT))
    if "propensity" in fields:
        columns.append(pl.col("propensity").fill_nan(None).alias(PROPENSITY))
    return raw.select(columns)


def write_days(
    records: Iterator[Records],
    dense: Callable[[Records], Records],
    target: RecordFile,
    day_counts: Rows,
    first_day: int,
    texts: Dictionaries,
    directory: Path,
) -> None:
    """Write events/day=YYYY-MM-DD/part-*.parquet, within a day by user and moment.

    Args:
        dense: Keeps those that count and gives them dense rows.
        target: Where they are sorted by day.
        day_counts: Events of each day from ``first_day``, [D]; without times one for all.
    """
    has_time = "time" in (target.dtype.names or ())
    partition(records, target, dense, lambda part: days_of(part) - first_day, day_counts)
    bounds = np.concatenate([[0], np.cumsum(day_counts)])

    def write(day: int) -> None:
        name = _EPOCH + timedelta(days=first_day + day) if has_time else "unknown"
        folder = directory / f"day={name}"
        folder.mkdir(parents=True)
        first, last = int(bounds[day]), int(bounds[day + 1])
        for number, start in enumerate(range(first, last, SLICE_RECORDS)):
            part = target.read(start, min(start + SLICE_RECORDS, last))
            table = as_table(part, texts)
            table.write_parquet(folder / f"part-{number:05d}.parquet", compression="lz4")

    with ThreadPoolExecutor(num_cores()) as pool:
        # list() lets the first failure rise.
        list(pool.map(write, np.flatnonzero(day_counts).tolist()))


def write_shown(parts: Iterator[Records], texts: Dictionaries, directory: Path) -> int:
    """Write records of dense rows as part-*.parquet, in order; return how many there are."""
    directory.mkdir(parents=True)
    count = 0
    for number, part in enumerate(parts):
        as_table(part, texts).write_parquet(
            directory / f"part-{number:05d}.parquet", compression="lz4"
        )
        count += len(part)
    return count
