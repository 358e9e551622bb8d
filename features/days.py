"""Write the kept events as Parquet, one folder a day.

Axes: E events, D days from the first to the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from features.encoding import MISSING
from features.events import MICROS
from features.ingest import NO_SEQUENCE, NO_SLOT, OPTIONAL_FIELDS, ORDER, record_dtype
from features.parallel import in_order
from features.preparation.ids import TextColumns
from features.preparation.ranges import RowFiles, UserRange
from features.records import SLICE_RECORDS, RecordFile, Records, Rows, partition
from features.schema import EVENT_TIME, EVENT_TYPE, PROPENSITY, SEQUENCE_INDEX, SLOT, VALUE

MICROS_PER_DAY = 86_400 * MICROS
_EPOCH = date(1970, 1, 1)


def as_table(records: Records, texts: TextColumns) -> pl.DataFrame:
    """Convert records with dense rows to a table with the columns of events."""
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


class DayShare(NamedTuple):
    """A range of users, its kept events of each day and where they go, [D] each."""

    range: UserRange
    counts: Rows
    starts: Rows


def place_days(share: DayShare, rows: RowFiles, first_day: int, path: Path) -> None:
    """Write a range's kept events, with dense rows, to their days."""
    target = RecordFile(path, record_dtype(share.range.fields))
    partition(
        iter([share.range.read()]),
        target,
        rows.dense,
        lambda part: part["time"] // MICROS_PER_DAY - first_day,
        share.counts,
        share.starts,
    )
    target.close()


def write_day(day: tuple[UserRange, Path], texts: TextColumns) -> None:
    """Write the events of a day as part-*.parquet into its folder."""
    given, folder = day
    folder.mkdir(parents=True, exist_ok=True)
    for number, start in enumerate(range(given.start, given.end, SLICE_RECORDS)):
        part = replace(given, start=start, end=min(start + SLICE_RECORDS, given.end)).read()
        path = folder / f"part-{number:05d}.parquet"
        as_table(part, texts).write_parquet(path, compression="lz4")


def write_days(
    ranges: Sequence[UserRange],
    rows: RowFiles,
    day_counts: Sequence[Rows],
    first_day: int,
    texts: TextColumns,
    scratch: Path,
    directory: Path,
) -> None:
    """Write events/day=YYYY-MM-DD/part-*.parquet, within a day by user and moment.

    ``day_counts`` has each range's kept events of each day from ``first_day`` on; without times
    one count. The events are sorted by day in the file ``scratch``.
    """
    fields = ranges[0].fields
    num_days = max(len(counts) for counts in day_counts)
    padded = [np.pad(counts, (0, num_days - len(counts))) for counts in day_counts]
    totals = np.sum(padded, axis=0)
    bounds = np.concatenate([[0], np.cumsum(totals)])
    shares, cursor = [], bounds[:-1]
    for one, counts in zip(ranges, padded, strict=True):
        shares.append(DayShare(one, counts, cursor))
        cursor = cursor + counts
    for _ in in_order(partial(place_days, rows=rows, first_day=first_day, path=scratch), shares):
        pass
    days = []
    for day in np.flatnonzero(totals).tolist():
        name = _EPOCH + timedelta(days=first_day + day) if "time" in fields else "unknown"
        events = UserRange(scratch, fields, int(bounds[day]), int(bounds[day + 1]), 0, 0)
        days.append((events, directory / f"day={name}"))
    for _ in in_order(partial(write_day, texts=texts), days):
        pass
