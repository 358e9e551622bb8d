"""One partition of the raw events, such as a day's files, as clean Parquet with our columns.

What is read once is not parsed a second time: a later build reads typed columns, and only the new
day's files are validated.

Axes: E events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import numpy as np
import polars as pl

from features.encoding import Dictionary
from features.events import MICROS, REASONS
from features.ingest import EventFile
from features.report import Quarantine
from features.schema import EVENT_TIME, ITEM_ID, QUARANTINE, USER_ID, FilterConfig, SourceConfig

AFTER_ITS_DAY = "event_time is after its partition"


@dataclass(kw_only=True)
class PartitionReport:
    """Contents of a partition, and counts of its rows."""

    rows: int = 0
    """Events that can be used."""
    quarantined: Counter[str] = field(default_factory=Counter)
    """Rows by reason."""
    first_time: int | None = None
    """Unix seconds of the earliest event that can be used; None without times or events."""
    last_time: int | None = None
    columns: dict[str, str] = field(default_factory=dict)
    """Type of each of our columns as the files have it."""

    @property
    def rows_in(self) -> int:
        return self.rows + sum(self.quarantined.values())


def read_columns(path: Path, source: SourceConfig) -> dict[str, str]:
    """Read the types of our columns without reading rows."""
    return {name: str(dtype) for name, dtype in EventFile.open(path, source).schema.items()}


def clean_partition(
    source: SourceConfig,
    filters: FilterConfig,
    out: Path,
    *,
    now: datetime,
    end: datetime | None = None,
) -> PartitionReport:
    """Write the usable rows of a partition's files as ``out``/events-*.parquet.

    The others go to ``out``/quarantine with file, row and reason. Columns are ours, times
    microseconds in UTC; the order of rows is the files'.
    """
    report = PartitionReport()
    quarantine = Quarantine(out / QUARANTINE)
    users, items = Dictionary(USER_ID), Dictionary(ITEM_ID)
    out.mkdir(parents=True, exist_ok=True)
    number = 0
    for path in source.paths:
        file = EventFile.open(path, source)
        report.columns = {**{n: str(t) for n, t in file.schema.items()}, **report.columns}
        for first_row, batch, typed in file.batches(source, filters, now):
            reasons = _reasons(typed, users, items, end)
            bad = reasons.is_not_null()
            quarantine.add(
                path,
                pl.Series(np.flatnonzero(bad.to_numpy()) + first_row),
                reasons.filter(bad),
                batch.filter(bad),
            )
            kept = _laid_out(typed.filter(~bad), file.schema.names())
            if kept.height:
                kept.write_parquet(out / f"events-{number:05d}.parquet")
                number += 1
                _count(report, kept)
    report.quarantined = quarantine.counts
    bad_rows = sum(quarantine.counts.values())
    quarantine.check_share("event", bad_rows, report.rows_in, filters.max_bad_share)
    return report


def _reasons(
    typed: pl.DataFrame, users: Dictionary, items: Dictionary, end: datetime | None
) -> pl.Series:
    """Find the fault of each row, null for none; ids first, [E]."""
    texts = dict(enumerate(REASONS, start=1))
    reasons = typed["reason"].replace_strict(texts, default=None, return_dtype=pl.String)
    if end is not None and EVENT_TIME in typed.columns:
        is_after = (typed[EVENT_TIME] >= int(end.timestamp()) * MICROS).fill_null(value=False)
        reasons = pl.select(
            pl.when(reasons.is_null() & is_after).then(pl.lit(AFTER_ITS_DAY)).otherwise(reasons)
        ).to_series()
    for dictionary, column in ((items, ITEM_ID), (users, USER_ID)):
        codes = dictionary.reason_codes(dictionary.encode(typed[column]))
        if not codes.any():
            continue
        of_id = [dictionary.reason(int(code)) if code else None for code in codes]
        reasons = pl.select(pl.coalesce(pl.Series(of_id, dtype=pl.String), reasons)).to_series()
    return reasons


def _laid_out(typed: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    if EVENT_TIME not in names:
        return typed.select(names)
    time = pl.col(EVENT_TIME).cast(pl.Datetime("us", "UTC"))
    return typed.select(time if name == EVENT_TIME else pl.col(name) for name in names)


def _count(report: PartitionReport, kept: pl.DataFrame) -> None:
    report.rows += kept.height
    if EVENT_TIME not in kept.columns:
        return
    seconds = kept[EVENT_TIME].dt.epoch("s")
    low, high = seconds.min(), seconds.max()
    assert isinstance(low, int)
    assert isinstance(high, int)
    report.first_time = low if report.first_time is None else min(low, report.first_time)
    report.last_time = high if report.last_time is None else max(high, report.last_time)


def changed_columns(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Describe how the columns of two partitions differ; a new optional one is no change."""
    changes = [f"column {name} is missing" for name in before if name not in now]
    changes += [
        f"column {name} was {before[name]} and is {now[name]}"
        for name in before
        if name in now and classify_type(before[name]) != classify_type(now[name])
    ]
    return changes


def classify_type(dtype: str) -> str:
    """Group types between which values read alike: integers of any width, times of any unit."""
    name = dtype.partition("(")[0]
    if name.startswith(("Int", "UInt")):
        return "integer"
    if name.startswith("Float") or name == "Decimal":
        return "number"
    return "text" if name in ("String", "Categorical", "Enum") else name
