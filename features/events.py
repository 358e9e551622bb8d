"""Raw events to typed rows, and a reason for each row that cannot be one.

A bad row is never dropped in silence: it goes to the quarantine with its reason. The reasons are
tested in the order of ``REASONS``; a row carries the first that fits.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl

from features.scan import naming, scan_file, with_our_names
from features.schema import EVENT_COLUMNS, SourceConfig

REASON = "reason"
MAX_ID_BYTES = 256
EARLIEST = datetime(1990, 1, 1, tzinfo=UTC)
"""Earlier times are zeros and broken clocks, not events."""

_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000}
_TIME = pl.Datetime("us", "UTC")


def _as_time(column: pl.Expr, dtype: pl.DataType, unit: str) -> pl.Expr:
    """Read dates, ISO texts (no zone means UTC) and numbers of ``unit`` as UTC times."""
    numbers = column.cast(pl.Float64, strict=False)
    # Beyond year 9999 nothing is a time, and the cast of a huge float would overflow.
    seconds = numbers / _PER_SECOND[unit]
    usable = seconds.is_between(-2e11, 2e11)
    if dtype.is_integer():
        micros = column.cast(pl.Int64, strict=False) * (1_000_000 // _PER_SECOND[unit])
    else:
        micros = (seconds * 1e6).round()
    from_number = pl.when(usable).then(micros).cast(pl.Int64, strict=False).cast(pl.Datetime("us"))
    from_number = from_number.dt.replace_time_zone("UTC")
    if dtype.is_numeric():
        return from_number
    if dtype == pl.String:
        zoned = column.str.to_datetime(strict=False, time_zone="UTC", time_unit="us", format="%+")
        naive = pl.coalesce(
            column.str.to_datetime(pattern, strict=False, time_unit="us")
            for pattern in ("%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%d")
        ).dt.replace_time_zone("UTC")
        return pl.coalesce(from_number, zoned, naive)
    if isinstance(dtype, pl.Datetime) and dtype.time_zone:
        return column.dt.convert_time_zone("UTC").cast(_TIME)
    return column.cast(pl.Datetime("us"), strict=False).dt.replace_time_zone("UTC")


def _typed(frame: pl.LazyFrame, unit: str) -> pl.LazyFrame:
    """Cast every column; what cannot be cast becomes null beside its raw value."""
    schema = frame.collect_schema()
    numeric = {"sequence_index": pl.Int64, "value": pl.Float64, "slot": pl.Int64}
    numeric["propensity"] = pl.Float64
    casts = []
    for name, dtype in schema.items():
        column = pl.col(name)
        if name == "event_time":
            casts.append(_as_time(column, dtype, unit).alias(name))
        elif name in numeric:
            casts.append(column.cast(numeric[name], strict=False))
        elif name in EVENT_COLUMNS and dtype != pl.String:
            casts.append(column.cast(pl.String, strict=False))
    raw = [
        pl.col(name).is_not_null().alias(f"_has_{name}")
        for name in schema
        if name in numeric or name == "event_time"
    ]
    return frame.with_columns(*raw).with_columns(*casts)


def _reason(columns: list[str], now: datetime) -> pl.Expr:
    """Say what is wrong with a row, null where nothing is."""
    rules: list[tuple[pl.Expr, str]] = []
    for key in ("user_id", "item_id"):
        column = pl.col(key)
        rules += [
            (column.is_null() | (column.str.len_bytes() == 0), f"{key} missing"),
            (column.str.len_bytes() > MAX_ID_BYTES, f"{key} longer than {MAX_ID_BYTES} bytes"),
            (column.str.contains("\x00", literal=True), f"{key} holds a NUL character"),
            (column.is_in(["nan", "NaN", "null", "None"]), f"{key} is nan or null as text"),
            (column.str.contains(r"^-\d+$"), f"{key} is a negative number"),
        ]
    ordered = [name for name in ("event_time", "sequence_index") if name in columns]
    for name in ("event_time", "sequence_index", "value", "slot", "propensity"):
        if name in columns:
            unreadable = pl.col(f"_has_{name}") & pl.col(name).is_null()
            rules.append((unreadable, f"{name} unreadable"))
    if ordered:
        nothing = pl.all_horizontal(pl.col(name).is_null() for name in ordered)
        rules.append((nothing, "no event_time and no sequence_index"))
    if "event_time" in columns:
        time = pl.col("event_time")
        rules += [
            (time < EARLIEST, f"event_time before {EARLIEST.year}"),
            (time > now + timedelta(days=1), "event_time in the future"),
        ]
    if "value" in columns:
        rules.append((~pl.col("value").is_finite(), "value not a finite number"))
    if "propensity" in columns:
        outside = ~pl.col("propensity").is_between(0, 1, closed="right")
        rules.append((outside, "propensity not in (0, 1]"))
    result = pl.lit(None, dtype=pl.String)
    for wrong, text in reversed(rules):
        result = pl.when(wrong.fill_null(value=False)).then(pl.lit(text)).otherwise(result)
    return result.alias(REASON)


def scan_events(path: Path, source: SourceConfig, now: datetime) -> pl.LazyFrame:
    """Scan one event file: typed event columns, the row counter and ``reason``.

    Raises:
        ValueError: If the file cannot be opened or lacks a column.
    """
    raw = scan_file(path, source)
    frame = with_our_names(raw, path, source, known=EVENT_COLUMNS, needed=("user_id", "item_id"))
    columns = frame.collect_schema().names()
    if "event_time" not in columns and "sequence_index" not in columns:
        raise ValueError(
            f"{path} has neither event_time nor sequence_index, so a user's events have no "
            f"order; name the column in data.columns. It has: {', '.join(columns[1:])}"
        )
    with naming(path):
        typed = _typed(frame, source.time_unit)
    return typed.with_columns(_reason(columns, now)).select(*columns, REASON)
