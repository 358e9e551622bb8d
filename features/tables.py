"""The catalogue and the users: one row per dense row, whatever their files hold.

These fit into memory; events need not.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from features.scan import ROW, naming, scan_file
from features.schema import SourceConfig
from features.vocabulary import extended, rows_of, write_vocabulary

Rows = NDArray[np.int64]

NUM_BUCKETS = 10
MAX_CATEGORIES = 1_000
"""A user column of more distinct values (a postcode, a name) is no feature."""
TEXT_COLUMNS = ("title", "description", "brand", "categories")


def read_table(source: SourceConfig, key: str) -> pl.DataFrame:
    """Read a small table; the mapped columns get our names, all others stay.

    Rows without a key are left out and of rows with the same key the first stays.

    Raises:
        ValueError: If a file cannot be read or lacks the key column.
    """
    frames = []
    for path in source.paths:
        frame = scan_file(path, source)
        present = frame.collect_schema().names()
        names = {theirs: ours for ours, theirs in source.columns.items()}
        for theirs in [*names, *([] if key in names.values() else [key])]:
            if theirs not in present:
                raise ValueError(
                    f"{path} has no column {theirs!r}; it has: "
                    f"{', '.join(column for column in present if column != ROW)}"
                )
        with naming(path):
            frames.append(frame.drop(ROW).rename(names).collect())
    table = pl.concat(frames, how="diagonal_relaxed").with_columns(pl.col(key).cast(pl.String))
    return table.filter(pl.col(key).is_not_null() & (pl.col(key) != "")).unique(
        key, keep="first", maintain_order=True
    )


def aligned(table: pl.DataFrame | None, vocabulary: pl.Series, key: str, row: str) -> pl.DataFrame:
    """Lay a table out by dense row: one line per row from 1, nulls where nothing is known."""
    rows = pl.DataFrame({key: vocabulary}).with_row_index(row, offset=1)
    rows = rows.select(pl.col(row).cast(pl.Int64), key)
    if table is None:
        return rows
    return rows.join(table, on=key, how="left", maintain_order="left")


def catalogue(table: pl.DataFrame | None, vocabulary: pl.Series, separator: str) -> pl.DataFrame:
    """Lay out the catalogue by item row, categories as lists, with ``display_text``.

    ``display_text`` is the title, or the first text there is, or the id.
    """
    items = aligned(table, vocabulary, "item_id", "item_row")
    if "categories" in items.columns and items["categories"].dtype == pl.String:
        parts = pl.col("categories").str.split(separator).list.eval(pl.element().str.strip_chars())
        items = items.with_columns(parts.list.eval(pl.element().filter(pl.element() != "")))
    texts = [name for name in TEXT_COLUMNS if items.schema.get(name) == pl.String]
    shown = [pl.when(pl.col(name).str.strip_chars() != "").then(pl.col(name)) for name in texts]
    return items.with_columns(pl.coalesce(*shown, "item_id").alias("display_text"))


def write_categories(items: pl.DataFrame, out: Path, previous: pl.Series | None) -> pl.Series:
    """Write item_categories/ and its vocabulary; return the vocabulary."""
    if "categories" not in items.columns:
        lists = pl.Series("categories", [[]] * items.height, dtype=pl.List(pl.String))
    else:
        lists = items["categories"].fill_null([])
    flat = lists.explode(empty_as_null=False) if items.height else pl.Series(dtype=pl.String)
    vocabulary = extended(flat, previous)
    lengths = lists.list.len().cast(pl.Int64).to_numpy()
    directory = out / "item_categories"
    directory.mkdir(parents=True)
    np.save(directory / "values.npy", rows_of(flat, vocabulary))
    # Row 0 (padding) has no categories either.
    np.save(
        directory / "offsets.npy", np.concatenate([[0, 0], np.cumsum(lengths)]).astype(np.int64)
    )
    write_vocabulary(vocabulary, out / "vocabularies" / "categories.parquet")
    return vocabulary


def as_categories(column: pl.Series) -> pl.Series | None:
    """Turn a column into category names; numbers with many values fall into ten equal parts.

    Returns:
        None where the column cannot serve: lists, or more than ``MAX_CATEGORIES`` values.
    """
    if column.dtype == pl.String:
        numbers = column.cast(pl.Float64, strict=False)
        if numbers.null_count() == column.null_count():
            column = numbers
    if column.dtype.is_numeric() and column.n_unique() > NUM_BUCKETS:
        edges = [column.quantile(part / NUM_BUCKETS) for part in range(1, NUM_BUCKETS)]
        breaks = sorted({edge for edge in edges if edge is not None})
        return column.cut(breaks).cast(pl.String)
    if column.dtype.is_nested() or column.n_unique() > MAX_CATEGORIES:
        return None
    return column.cast(pl.String)


def write_user_features(
    users: pl.DataFrame, columns: Sequence[str], out: Path
) -> tuple[dict[str, int], list[str]]:
    """Write user_features/ for the columns that can serve.

    Returns:
        Cardinality by feature, and a warning for each column that cannot serve.

    Raises:
        ValueError: If a column does not exist.
    """
    cardinality, warnings = {}, []
    for name in columns:
        if name not in users.columns:
            raise ValueError(
                f"no user column {name!r} for a feature; there are: "
                f"{', '.join(users.columns[2:]) or 'none'}"
            )
        values = as_categories(users[name])
        if values is None:
            warnings.append(
                f"user column {name} is no feature: it has over {MAX_CATEGORIES} values"
            )
            continue
        vocabulary = extended(values)
        write_vocabulary(vocabulary, out / "vocabularies" / f"user_{name}.parquet")
        path = out / "user_features" / f"{name}.npy"
        path.parent.mkdir(exist_ok=True)
        np.save(path, np.concatenate([[0], rows_of(values, vocabulary)]))
        cardinality[name] = len(vocabulary) + 1
    return cardinality, warnings
