"""Write the kept events as Parquet, a file for each range of users."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

from features.encoding import MISSING
from features.ingest import NO_SEQUENCE, NO_SLOT, OPTIONAL_FIELDS, ORDER
from features.parallel import in_order
from features.preparation.ids import TextColumns
from features.preparation.ranges import RowFiles, UserRange
from features.records import Records
from features.schema import EVENT_TIME, EVENT_TYPE, PROPENSITY, SEQUENCE_INDEX, SLOT, VALUE


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


def write_range(
    numbered: tuple[int, UserRange], rows: RowFiles, texts: TextColumns, directory: Path
) -> None:
    """Write the kept events of a range of users, with dense rows, as a file."""
    number, given = numbered
    kept = rows.dense(given.read())
    if len(kept):
        path = directory / f"part-{number:05d}.parquet"
        as_table(kept, texts).write_parquet(path, compression="lz4")


def write_event_tables(
    ranges: Sequence[UserRange], rows: RowFiles, texts: TextColumns, directory: Path
) -> None:
    """Write events/part-*.parquet, by user and moment."""
    directory.mkdir()
    task = partial(write_range, rows=rows, texts=texts, directory=directory)
    for _ in in_order(task, enumerate(ranges)):
        pass
