"""Counts of a day by table and key.

    <workspace>/monitoring/days/2026-11-22.parquet          table, key, count

Tables: ``total`` (events, users, valued, value), ``event_type``, ``domain``, ``value``, ``hour``,
``category``, ``item``, ``user``, and ``user.<column>`` and ``item.<column>`` of known columns.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np
import polars as pl

from features.scan import naming
from recsys.data.durable import replace_file

MAX_USERS = 20_000
"""Users of a day that are kept by id, the same ones every day."""
NUM_BINS = 10
MAX_LEVELS = 200
"""Texts with more values than this are names, not categories."""
UNKNOWN = "unknown"
COUNTS = pl.Schema({"table": pl.String(), "key": pl.String(), "count": pl.Float64()})


@dataclass(frozen=True)
class Sketch:
    """Counts of one day."""

    counts: pl.DataFrame

    def total(self, key: str) -> float:
        """Return a number of table ``total``, or 0."""
        found = self.counts.filter((pl.col("table") == "total") & (pl.col("key") == key))
        return float(found["count"].sum())

    def save(self, folder: Path, day: date) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / f"{day}.parquet", self.counts.write_parquet)

    @classmethod
    def load(cls, folder: Path, day: date) -> Sketch | None:
        """Read a day; None if it was not kept or is damaged, since it can be made again."""
        path = folder / f"{day}.parquet"
        try:
            with naming(path):
                return cls(pl.read_parquet(path))
        except ValueError:
            return None


@dataclass(frozen=True, kw_only=True)
class KnownTables:
    """Columns of items and users, each as a few categories."""

    items: pl.DataFrame
    """item_id, item.<column>, ..."""
    categories: pl.DataFrame
    """item_id, category: a row for each of an item's categories."""
    users: pl.DataFrame
    """user_id, user.<column>, ..."""


def build_tables(
    items: pl.DataFrame | None,
    users: pl.DataFrame | None,
    edges: Mapping[str, Sequence[float]] | None = None,
) -> tuple[KnownTables, dict[str, list[float]]]:
    """Cut known columns of the catalogue and the users' table into categories.

    Returns:
        The tables, and the edges of all numeric columns.
    """
    kept = {name: list(values) for name, values in (edges or {}).items()}
    items = pl.DataFrame(schema={"item_id": pl.String()}) if items is None else items
    users = pl.DataFrame(schema={"user_id": pl.String()}) if users is None else users
    lists = pl.DataFrame(schema={"item_id": pl.String(), "category": pl.String()})
    if "categories" in items.columns:
        named = pl.col("categories").cast(pl.List(pl.String())).alias("category")
        lists = items.select("item_id", named)
        lists = lists.explode("category", empty_as_null=True).drop_nulls()
    columns = {"item": items, "user": users}
    cut = {
        kind: table.select(f"{kind}_id")
        .hstack(_cut_columns(table, kind, kept))
        .unique(f"{kind}_id", keep="first", maintain_order=True)
        for kind, table in columns.items()
    }
    return KnownTables(items=cut["item"], categories=lists, users=cut["user"]), kept


def _cut_columns(table: pl.DataFrame, kind: str, edges: dict[str, list[float]]) -> list[pl.Series]:
    skipped = {"item_id", "user_id", "item_row", "user_row", "title", "description", "domain"}
    found = []
    for column in table.columns:
        values, name = table[column], f"{kind}.{column}"
        if column in skipped or values.dtype.is_nested() or values.dtype.is_temporal():
            continue
        if values.dtype.is_numeric():
            numbers = values.cast(pl.Float64)
            if name not in edges:
                known = numbers.drop_nulls().to_numpy() if len(numbers.drop_nulls()) else [0.0]
                cuts = np.nanquantile(known, np.linspace(0, 1, NUM_BINS + 1)[1:-1])
                edges[name] = sorted(set(np.round(cuts, 6).tolist()))
            bins = np.searchsorted(edges[name], numbers.fill_null(np.nan).to_numpy())
            texts = pl.Series(bins).cast(pl.String)
            values = pl.select(pl.when(numbers.is_null()).then(None).otherwise(texts)).to_series()
        elif values.n_unique() > MAX_LEVELS:
            continue
        found.append(values.cast(pl.String).alias(name))
    return found


def build_sketch(events: pl.DataFrame, tables: KnownTables) -> Sketch:
    """Count a day's events."""
    rows = _described(events, tables)
    listed = rows.select("item_id").join(tables.categories, on="item_id", how="left")
    users = rows.unique("user_id", maintain_order=True)
    columns = {
        **{name: rows[name] for name in ("event_type", "domain", "value", "hour")},
        "item": rows["item_id"],
        **{name: rows[name] for name in tables.items.columns[1:]},
        **({"category": listed["category"].fill_null(UNKNOWN)} if len(tables.categories) else {}),
        **{name: users[name] for name in tables.users.columns[1:]},
        "user": _kept_users(rows["user_id"]),
    }
    counted = [_totals(events)]
    for table, keys in columns.items():
        counts = keys.alias("key").cast(pl.String).value_counts(name="count")
        number = pl.col("count").cast(pl.Float64)
        counted.append(counts.select(pl.lit(table).alias("table"), "key", number))
    return Sketch(pl.concat(counted).sort("table", "key"))


def _described(events: pl.DataFrame, tables: KnownTables) -> pl.DataFrame:
    """Join the columns of item and user to each event, in few categories."""
    defaults = {"event_type": pl.String(), "value": pl.Float64(), "domain": pl.String()}
    missing = [
        pl.lit(None, dtype).alias(name)
        for name, dtype in {**defaults, "event_time": pl.Datetime("us", "UTC")}.items()
        if name not in events.columns
    ]
    value = pl.col("value")
    whole = (value == value.round(0)) & (value.abs() <= 100)
    log_bin = (4 * (value.abs() + 1e-9).log(2)).round(0).cast(pl.Int64).cast(pl.String)
    rows = events.with_columns(missing).select(
        "user_id",
        "item_id",
        "event_type",
        "domain",
        pl.col("event_time").dt.hour().cast(pl.String).alias("hour"),
        pl.when(value.is_null() | value.is_nan())
        .then(pl.lit("none"))
        .when(whole)
        .then(pl.lit("=") + value.cast(pl.Int64, strict=False).cast(pl.String))
        .otherwise(pl.when(value < 0).then(pl.lit("-")).otherwise(pl.lit("+")) + log_bin)
        .alias("value"),
    )
    rows = rows.join(tables.items, on="item_id", how="left", maintain_order="left")
    rows = rows.join(tables.users, on="user_id", how="left", maintain_order="left")
    return rows.with_columns(pl.all().fill_null(UNKNOWN))


def _totals(events: pl.DataFrame) -> pl.DataFrame:
    has_values = "value" in events.columns
    values = (events["value"] if has_values else pl.Series([], dtype=pl.Float64)).drop_nulls()
    values = values.drop_nans()
    found = {
        "events": events.height,
        "users": events["user_id"].n_unique(),
        "valued": len(values),
        "value": values.sum(),
        "value_squares": (values**2).sum(),
    }
    rows = [("total", name, float(value)) for name, value in found.items()]
    return pl.DataFrame(rows, schema=COUNTS, orient="row")


def _kept_users(users: pl.Series) -> pl.Series:
    """Leave out users beyond the limit, by a hash of their ids that is the same every day."""
    distinct = users.unique()
    if len(distinct) <= MAX_USERS:
        return users
    hashes = pl.Series([zlib.crc32(one.encode()) for one in distinct.to_list()])
    kept = distinct.gather(hashes.arg_sort().head(MAX_USERS))
    return users.filter(users.is_in(kept.implode()))
