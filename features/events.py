"""Raw events to typed columns, and a reason for each row that cannot be used.

A bad row is never lost in silence: it goes to the quarantine under its reason, the first of
``REASONS`` that fits. What is wrong with an id is found once an id, in encoding.py.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl

from features.schema import (
    EARLIEST_YEAR,
    EVENT_COLUMNS,
    EVENT_TIME,
    EVENT_TYPE,
    PROPENSITY,
    SEQUENCE_INDEX,
    SLOT,
    TEXT_COLUMNS,
    VALUE,
    SourceConfig,
)

MICROS = 1_000_000
FUTURE_TOLERANCE = timedelta(days=1)
REASONS = (
    "event_time is missing",
    "event_time is unreadable",
    "event_time is too early",
    "event_time is in the future",
    "sequence_index is missing",
    "sequence_index is not a whole number",
    "event_type is missing",
    "value is not a number",
    "value is not finite",
    "slot is not a whole number >= 0",
    "propensity is not in (0, 1]",
)
_CODES = {reason: code for code, reason in enumerate(REASONS, start=1)}
_PER_SECOND = {"s": 1, "ms": 1_000, "us": MICROS}
_ISO_PATTERNS = ("%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%dT%H:%M", "%Y-%m-%d")
# Seconds around year 8300: beyond it nothing is a time, and int64 microseconds overflow soon after.
_LARGEST_SECONDS = 2e11
LARGEST_SLOT = 2**31 - 1


def check_types(path: Path, schema: pl.Schema) -> None:
    """Refuse whole columns that cannot hold what they should."""
    for name in TEXT_COLUMNS:
        dtype = schema.get(name)
        if dtype is None or dtype.is_integer() or dtype in (pl.String, pl.Categorical, pl.Enum):
            continue
        raise ValueError(
            f"{path}: column {name} is {dtype}; it must be text or integers. Write it as text "
            "(floats lose long ids), or map another column to it"
        )
    for name in (SEQUENCE_INDEX, VALUE, SLOT, PROPENSITY):
        dtype = schema.get(name)
        if dtype is not None and not (dtype.is_numeric() or dtype == pl.String):
            raise ValueError(f"{path}: column {name} is {dtype}; it must be a number")
    dtype = schema.get(EVENT_TIME)
    if dtype is not None and not (
        dtype.is_numeric() or dtype == pl.String or dtype in (pl.Date, pl.Datetime)
    ):
        raise ValueError(
            f"{path}: column event_time is {dtype}; it must be a date, a time with date, an ISO "
            "text, or a number since 1970 with the source's time_unit"
        )
    if EVENT_TIME not in schema and SEQUENCE_INDEX not in schema:
        raise ValueError(
            f"{path} has neither event_time nor sequence_index, so a user's events have no order; "
            f"map one of its columns ({', '.join(schema)}) to either"
        )


def as_text(column: str, dtype: pl.DataType) -> pl.Expr:
    """Read a column of texts or integers as texts."""
    return pl.col(column) if dtype == pl.String else pl.col(column).cast(pl.String)


def as_number(column: str, dtype: pl.DataType, source: SourceConfig) -> pl.Expr:
    """Read numbers, or texts of numbers, as floats, null where unreadable."""
    number = pl.col(column)
    if source.decimal_comma and dtype == pl.String:
        number = number.str.replace_all(".", "", literal=True).str.replace(",", ".", literal=True)
    return number.cast(pl.Float64, strict=False)


def as_micros(column: pl.Expr, dtype: pl.DataType, source: SourceConfig) -> pl.Expr:
    """Read numbers, dates, times and ISO texts as microseconds since 1970, null where unreadable.

    A time of no zone is one of ``source.time_zone``; where the clocks go back and it could be
    either of two, or forward and it is neither, it is unreadable.
    """
    if isinstance(dtype, pl.Datetime) and dtype.time_zone:
        return column.dt.epoch("us")
    if dtype in (pl.Date, pl.Datetime):
        return _zoned(column.cast(pl.Datetime("us")), source.time_zone)
    if source.time_format is not None and (dtype == pl.String or dtype.is_integer()):
        text = column.cast(pl.String).str.strip_chars()
        naive = text.str.to_datetime(source.time_format, strict=False, time_unit="us")
        return _zoned(naive, source.time_zone)
    if dtype == pl.String:
        number = _number_as_micros(column.cast(pl.Float64, strict=False), source)
        text = column.str.strip_chars().str.replace(" ", "T", literal=True)
        with_zone = text.str.to_datetime(
            "%Y-%m-%dT%H:%M:%S%.f%#z", strict=False, time_unit="us", time_zone="UTC"
        )
        utc = text.str.strip_suffix("Z").str.to_datetime(
            "%Y-%m-%dT%H:%M:%S%.f", strict=False, time_unit="us"
        )
        naive = pl.coalesce(
            text.str.to_datetime(pattern, strict=False, time_unit="us") for pattern in _ISO_PATTERNS
        )
        ends_in_z = text.str.ends_with("Z")
        return pl.coalesce(
            number,
            pl.when(ends_in_z).then(utc.dt.epoch("us")).otherwise(with_zone.dt.epoch("us")),
            _zoned(naive, source.time_zone),
        )
    if dtype.is_integer():
        usable = column.cast(pl.Float64).abs() < _LARGEST_SECONDS * _PER_SECOND[source.time_unit]
        factor = MICROS // _PER_SECOND[source.time_unit]
        return pl.when(usable).then(column.cast(pl.Int64, strict=False) * factor)
    return _number_as_micros(column.cast(pl.Float64), source)


def _number_as_micros(number: pl.Expr, source: SourceConfig) -> pl.Expr:
    seconds = number / _PER_SECOND[source.time_unit]
    usable = seconds.abs() < _LARGEST_SECONDS
    return pl.when(usable).then((seconds * MICROS).round()).cast(pl.Int64, strict=False)


def _zoned(naive: pl.Expr, zone: str) -> pl.Expr:
    if zone == "UTC":
        return naive.dt.epoch("us")
    return naive.dt.replace_time_zone(zone, ambiguous="null", non_existent="null").dt.epoch("us")


def typed_columns(schema: pl.Schema, source: SourceConfig) -> list[pl.Expr]:
    """Cast the event columns that are there; what cannot be cast becomes null."""
    columns = []
    for name in EVENT_COLUMNS:
        dtype = schema.get(name)
        if dtype is None:
            continue
        if name == EVENT_TIME:
            columns.append(as_micros(pl.col(name), dtype, source).alias(name))
        elif name in (SEQUENCE_INDEX, SLOT):
            whole = pl.col(name).cast(pl.Float64, strict=False)
            whole = pl.when(whole == whole.round()).then(pl.col(name))
            exact = pl.col(name) if dtype.is_integer() or dtype == pl.String else whole
            columns.append(exact.cast(pl.Int64, strict=False).alias(name))
        elif name in (VALUE, PROPENSITY):
            columns.append(as_number(name, dtype, source))
        else:
            columns.append(as_text(name, dtype).alias(name))
    return columns


def _raw(name: str) -> pl.Expr:
    return pl.col(f"raw_{name}")


def reason_code(schema: pl.Schema, now: datetime) -> pl.Expr:
    """Compute the fault of a typed row: a place in REASONS from 1, or 0 for none, uint8.

    Reads the typed columns and, as ``raw_<column>``, whether each had anything in the file.
    """
    rules: list[tuple[pl.Expr, str]] = []
    if EVENT_TIME in schema:
        time = pl.col(EVENT_TIME)
        earliest = datetime(EARLIEST_YEAR, 1, 1, tzinfo=UTC)
        latest = now + FUTURE_TOLERANCE
        rules += [
            (~_raw(EVENT_TIME), "event_time is missing"),
            (time.is_null(), "event_time is unreadable"),
            (time < int(earliest.timestamp()) * MICROS, "event_time is too early"),
            (time > int(latest.timestamp()) * MICROS, "event_time is in the future"),
        ]
    if SEQUENCE_INDEX in schema:
        place = pl.col(SEQUENCE_INDEX)
        if EVENT_TIME not in schema:
            rules.append((~_raw(SEQUENCE_INDEX), "sequence_index is missing"))
        unreadable = _raw(SEQUENCE_INDEX) & place.is_null()
        rules.append((unreadable, "sequence_index is not a whole number"))
    if EVENT_TYPE in schema:
        rules.append((pl.col(EVENT_TYPE).is_null(), "event_type is missing"))
    if VALUE in schema:
        value = pl.col(VALUE)
        rules.append((_raw(VALUE) & value.is_null(), "value is not a number"))
        rules.append((~value.is_finite(), "value is not finite"))
    if SLOT in schema:
        slot = pl.col(SLOT)
        unusable = slot.is_null() | ~slot.is_between(0, LARGEST_SLOT)
        rules.append((_raw(SLOT) & unusable, "slot is not a whole number >= 0"))
    if PROPENSITY in schema:
        propensity = pl.col(PROPENSITY)
        # NaN compares as the largest number, so it is beyond 1.
        unusable = propensity.is_null() | (propensity <= 0) | (propensity > 1)
        rules.append((_raw(PROPENSITY) & unusable, "propensity is not in (0, 1]"))
    code = pl.lit(0, dtype=pl.UInt8)
    for wrong, reason in reversed(rules):
        found = pl.lit(_CODES[reason], dtype=pl.UInt8)
        code = pl.when(wrong.fill_null(value=False)).then(found).otherwise(code)
    return code.alias("reason")


def had_value(schema: pl.Schema) -> list[pl.Expr]:
    """Note where the raw columns have anything, for ``reason_code``."""
    names = (EVENT_TIME, SEQUENCE_INDEX, VALUE, SLOT, PROPENSITY)
    return [pl.col(n).is_not_null().alias(f"raw_{n}") for n in names if n in schema]
