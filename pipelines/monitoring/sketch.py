"""Sketch of a day: counts by table and key, and a sample of its events.

    <workspace>/monitoring/days/2026-11-22.parquet          table, key, count
    <workspace>/monitoring/days/2026-11-22.sample.parquet   some of its events

Tables: ``total`` (events, users, valued, value), ``event_type``, ``domain``, ``value``, ``hour``,
``category``, ``item``, ``user``, and ``user.<column>`` and ``item.<column>`` of known columns.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import NamedTuple

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


class Sketch(NamedTuple):
    """One day."""

    counts: pl.DataFrame
    sample: pl.DataFrame

    def digest(self) -> str:
        """Digest of what the day counted."""
        text = self.counts.sort("table", "key").write_csv()
        return hashlib.sha256(text.encode()).hexdigest()

    def total(self, key: str) -> float:
        """Return a number of table ``total``, or 0."""
        found = self.counts.filter((pl.col("table") == "total") & (pl.col("key") == key))
        return float(found["count"].sum())

    def save(self, folder: Path, day: date) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / f"{day}.sample.parquet", self.sample.write_parquet)
        replace_file(folder / f"{day}.parquet", self.counts.write_parquet)

    @classmethod
    def load(cls, folder: Path, day: date) -> Sketch | None:
        """Read a day; None if it was not kept or is damaged, since it can be made again."""
        found = []
        for path in (folder / f"{day}.parquet", folder / f"{day}.sample.parquet"):
            try:
                with naming(path):
                    found.append(pl.read_parquet(path))
            except ValueError:
                return None
        return cls(*found)


@dataclass(frozen=True, kw_only=True)
class KnownTables:
    """Columns of items and users, each as a few categories."""

    items: pl.DataFrame
    """item_id, category (first of the list), item.<column>, ..."""
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
        lists = items.select(
            "item_id", pl.col("categories").cast(pl.List(pl.String())).alias("category")
        )
        first = lists.with_columns(pl.col("category").list.first())
        lists = lists.explode("category", empty_as_null=True).drop_nulls()
    else:
        first = items.select("item_id", pl.lit(None, pl.String).alias("category"))
    known = first.hstack(_cut_columns(items, "item", kept))
    return (
        KnownTables(
            items=known.unique("item_id", keep="first", maintain_order=True),
            categories=lists,
            users=users.select("user_id")
            .hstack(_cut_columns(users, "user", kept))
            .unique("user_id", keep="first", maintain_order=True),
        ),
        kept,
    )


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
                cuts = np.nanquantile(
                    numbers.drop_nulls().to_numpy() if len(numbers.drop_nulls()) else [0.0],
                    np.linspace(0, 1, NUM_BINS + 1)[1:-1],
                )
                edges[name] = sorted(set(np.round(cuts, 6).tolist()))
            bins = np.searchsorted(edges[name], numbers.fill_null(np.nan).to_numpy())
            texts = pl.Series(bins).cast(pl.String)
            values = pl.select(pl.when(numbers.is_null()).then(None).otherwise(texts)).to_series()
        elif values.n_unique() > MAX_LEVELS:
            continue
        found.append(values.cast(pl.String).alias(name))
    return found


def build_sketch(
    events: pl.DataFrame, tables: KnownTables, max_examples: int, seed: int = 0
) -> Sketch:
    """Count a day's events."""
    rows = _described(events, tables)
    parts = [_totals(rows)]
    by_event = ["event_type", "domain", "value_bin", "hour", "item_id"]
    by_event += [name for name in rows.columns if name.startswith("item.")]
    table_of = {"value_bin": "value", "item_id": "item"}
    parts += [_counted(rows[name], table_of.get(name, name)) for name in by_event]
    listed = rows.select("item_id").join(tables.categories, on="item_id", how="left")
    if len(tables.categories):
        parts.append(_counted(listed["category"].fill_null(UNKNOWN), "category"))
    users = rows.unique("user_id", maintain_order=True)
    parts += [_counted(users[name], name) for name in users.columns if name.startswith("user.")]
    parts.append(_counted(_kept_users(rows["user_id"]), "user"))
    sample = rows.sort("user_id", "item_id", "event_time", "event_type").sample(
        min(max_examples, rows.height), seed=seed
    )
    return Sketch(pl.concat(parts).sort("table", "key"), sample)


def _described(events: pl.DataFrame, tables: KnownTables) -> pl.DataFrame:
    """Join the columns of item and user to each event, in few categories."""
    defaults = {"event_type": pl.String(), "value": pl.Float64(), "domain": pl.String()}
    missing = [
        pl.lit(None, dtype).alias(name)
        for name, dtype in {**defaults, "event_time": pl.Datetime("us", "UTC")}.items()
        if name not in events.columns
    ]
    rows = events.with_columns(missing).select("user_id", "item_id", "event_time", *defaults)
    size = pl.col("value").abs()
    whole = (pl.col("value") == pl.col("value").round(0)) & (size <= 100)
    log_bin = (4 * (size + 1e-9).log(2)).round(0).cast(pl.Int64).cast(pl.String)
    rows = rows.with_columns(
        pl.col("event_time").dt.hour().cast(pl.String).fill_null(UNKNOWN).alias("hour"),
        pl.when(pl.col("value").is_null() | pl.col("value").is_nan())
        .then(pl.lit("none"))
        .when(whole)
        .then(pl.lit("=") + pl.col("value").cast(pl.Int64, strict=False).cast(pl.String))
        .otherwise(pl.when(pl.col("value") < 0).then(pl.lit("-")).otherwise(pl.lit("+")) + log_bin)
        .alias("value_bin"),
    )
    rows = rows.join(tables.items, on="item_id", how="left", maintain_order="left")
    rows = rows.join(tables.users, on="user_id", how="left", maintain_order="left")
    texts = [name for name, kind in rows.schema.items() if kind == pl.String()]
    return rows.with_columns(pl.col(texts).fill_null(UNKNOWN))


def _totals(rows: pl.DataFrame) -> pl.DataFrame:
    values = rows["value"].drop_nulls().drop_nans()
    found = {
        "events": rows.height,
        "users": rows["user_id"].n_unique(),
        "valued": len(values),
        "value": values.sum(),
        "value_squares": (values**2).sum(),
    }
    return pl.DataFrame(
        {
            "table": ["total"] * len(found),
            "key": list(found),
            "count": [float(one) for one in found.values()],
        },
        schema=COUNTS,
    )


def _counted(keys: pl.Series, table: str) -> pl.DataFrame:
    counts = keys.alias("key").cast(pl.String).value_counts(name="count")
    return counts.select(pl.lit(table).alias("table"), "key", pl.col("count").cast(pl.Float64))


def _kept_users(users: pl.Series) -> pl.Series:
    """Leave out users beyond the limit, by a hash of their ids that is the same every day."""
    distinct = users.unique()
    if len(distinct) <= MAX_USERS:
        return users
    hashes = pl.Series([zlib.crc32(one.encode()) for one in distinct.to_list()])
    kept = distinct.gather(hashes.arg_sort().head(MAX_USERS))
    return users.filter(users.is_in(kept.implode()))
