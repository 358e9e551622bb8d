"""The catalogue and the users: one row per dense row.

These fit into memory; events need not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from features.encoding import Dictionary, extended, find_rows, read_vocabulary, write_vocabulary
from features.events import as_micros, as_number, as_text
from features.people import ForgottenUsers
from features.reading.scan import read_whole
from features.report import Quarantine
from features.schema import DOMAIN, ITEM_ID, SourceConfig

Rows = NDArray[np.int64]

ColumnKind = Literal["number", "date", "category", "list", "vector"]
"""Kind of a column of the catalogue."""
MAX_DISTINCT_SHARE = 0.5
"""Distinct values for each known one, above which a text is a name or an address."""
NUM_BUCKETS = 10
MAX_CATEGORIES = 1_000
"""A user column of more distinct values (a postcode, a name) is no feature."""
TEXT_COLUMNS = ("title", "name", "description", "brand")
"""Columns that an item's display text is taken from, in this order."""


def read_table(
    source: SourceConfig,
    key: str,
    quarantine: Quarantine,
    max_bad_share: float,
    forgotten: ForgottenUsers | None = None,
) -> pl.DataFrame:
    """Read the files of a small table; the mapped columns get our names, all others stay.

    Rows without a usable key, and all but the first of those with the same, go to the quarantine;
    those of forgotten users are left out.
    """
    dictionary = Dictionary(key)
    seen = np.zeros(0, np.bool_)
    frames, num_rows, num_bad = [], 0, 0
    for path in source.paths:
        table = read_whole(path, source, (key,))
        dtype = table.schema[key]
        if not (dtype.is_integer() or dtype in (pl.String, pl.Categorical, pl.Enum)):
            raise ValueError(
                f"{path}: column {key} is {dtype}; it must be text or integers. Write it as text"
            )
        table = table.with_columns(as_text(key, dtype).alias(key))
        codes = dictionary.encode(table[key])
        reason_codes = dictionary.reason_codes(codes)
        seen = np.append(seen, np.zeros(dictionary.size - len(seen), np.bool_))
        first = table[key].is_first_distinct().to_numpy()
        first &= ~np.append(seen, False)[np.minimum(codes, len(seen))]
        good = first & (reason_codes == 0)
        gone = np.zeros(len(good), np.bool_)
        if forgotten:
            gone = forgotten.rows(f"{key.removesuffix('_id')}s", table[key])
        good &= ~gone
        bad = np.flatnonzero(~good & ~gone)
        reasons = [
            dictionary.reason(code) if code else f"{key} was there before"
            for code in reason_codes[bad].tolist()
        ]
        quarantine.add(path, pl.Series(bad), pl.Series(reasons, dtype=pl.String), table[bad])
        seen[codes[good]] = True
        num_rows += table.height - int(np.count_nonzero(gone))
        num_bad += len(bad)
        frames.append(table.filter(good))
    table_name = key.removesuffix("_id")
    quarantine.check_share(table_name, num_bad, num_rows, max_bad_share)
    return pl.concat(frames, how="diagonal_relaxed")


def aligned(table: pl.DataFrame | None, vocabulary: pl.Series, key: str, row: str) -> pl.DataFrame:
    """Align a table with dense rows: one line per row from 1, nulls for unknown values."""
    rows = pl.DataFrame({key: vocabulary}).with_row_index(row, offset=1)
    rows = rows.select(pl.col(row).cast(pl.Int64), key)
    if table is None:
        return rows
    # A file's own dense rows are not ours.
    return rows.join(table.drop(row, strict=False), on=key, how="left", maintain_order="left")


def catalogue(
    table: pl.DataFrame | None, vocabulary: pl.Series, source: SourceConfig | None
) -> pl.DataFrame:
    """Build the catalogue by item row, categories as lists, with ``display_text``.

    ``display_text`` is the title, or the first text there is, or the id.
    """
    items = aligned(table, vocabulary, "item_id", "item_row")
    if source is not None and "categories" in items.columns:
        items = items.with_columns(_category_lists(items.schema["categories"], source))
    if source is not None and "price" in items.columns:
        items = items.with_columns(as_number("price", items.schema["price"], source))
    if source is not None and "available_from" in items.columns:
        dtype = items.schema["available_from"]
        micros = as_micros(pl.col("available_from"), dtype, source)
        items = items.with_columns(micros.cast(pl.Datetime("us", "UTC")).alias("available_from"))
    texts = [name for name in TEXT_COLUMNS if items.schema.get(name) == pl.String]
    shown = [pl.when(pl.col(name).str.strip_chars() != "").then(pl.col(name)) for name in texts]
    return items.with_columns(pl.coalesce(*shown, "item_id").alias("display_text"))


def described(items: pl.DataFrame) -> pl.DataFrame:
    """Keep the items that have more than their id and domain."""
    known = []
    for name, dtype in items.drop(ITEM_ID, DOMAIN, strict=False).schema.items():
        column = pl.col(name)
        if dtype == pl.String:
            column = column.str.strip_chars().replace("", None)
        known.append(column.list.len() > 0 if isinstance(dtype, pl.List) else column.is_not_null())
    return items.filter(pl.any_horizontal(pl.lit(False), *known))


def _category_lists(dtype: pl.DataType, source: SourceConfig) -> pl.Expr:
    column = pl.col("categories")
    if dtype == pl.String:
        column = column.str.split(source.list_separator)
    elif isinstance(dtype, pl.List) and (dtype.inner == pl.String or dtype.inner.is_integer()):
        column = column.list.eval(pl.element().cast(pl.String))
    else:
        raise ValueError(
            f"{source.paths[0]}: column categories is {dtype}; it must be lists of texts, or texts "
            f"with {source.list_separator!r} between the categories (list_separator)"
        )
    stripped = pl.element().str.strip_chars()
    return column.list.eval(stripped.filter(stripped != "")).list.unique(maintain_order=True)


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
    np.save(directory / "values.npy", find_rows(flat, vocabulary))
    # Row 0 (padding) has no categories either.
    offsets = np.concatenate([[0, 0], np.cumsum(lengths)])
    np.save(directory / "offsets.npy", offsets.astype(np.int64))
    write_vocabulary(vocabulary, out / "vocabularies" / "categories.parquet")
    return vocabulary


def bucket_edges(numbers: pl.Series) -> list[float]:
    """Choose the edges of about equally full buckets of a column of numbers."""
    finite = numbers.filter(numbers.is_finite())
    edges = (finite.quantile(part / NUM_BUCKETS, "lower") for part in range(1, NUM_BUCKETS))
    return sorted({edge for edge in edges if edge is not None})


def bucket_names(numbers: pl.Series, edges: list[float]) -> pl.Series:
    """Return the name of each number's bucket "(lower, upper]", null for null."""
    bounds = [-math.inf, *edges, math.inf]
    names = pl.Series([f"({low!r}, {high!r}]" for low, high in pairwise(bounds)])
    places = np.searchsorted(np.array(edges), numbers.fill_null(0).to_numpy(), side="left")
    return names[places].set(numbers.is_null(), None)


def parse_edges(vocabulary: pl.Series) -> list[float]:
    """Read the edges back out of the names that ``bucket_names`` gave."""
    uppers = vocabulary.str.extract(r", (.+)\]$").cast(pl.Float64).drop_nulls()
    return sorted(edge for edge in uppers.to_list() if math.isfinite(edge))


def as_categories(column: pl.Series, previous: pl.Series | None = None) -> pl.Series | None:
    """Turn a column into category names; numbers of many values fall into ten equal parts."""
    if column.dtype == pl.String:
        numbers = column.cast(pl.Float64, strict=False)
        if numbers.null_count() == column.null_count():
            column = numbers
    bucketed = previous is not None and previous.str.contains(r"^\(.+, .+\]$").all()
    if column.dtype.is_numeric() and (column.n_unique() > NUM_BUCKETS or bucketed):
        numbers = column.cast(pl.Float64).fill_nan(None)
        edges = (
            parse_edges(previous) if previous is not None and bucketed else bucket_edges(numbers)
        )
        return bucket_names(numbers, edges)
    if column.dtype.is_nested() or column.n_unique() > MAX_CATEGORIES:
        return None
    return column.cast(pl.String)


def write_user_features(
    users: pl.DataFrame, columns: Sequence[str], out: Path, previous: Path | None = None
) -> tuple[dict[str, int], list[str]]:
    """Write user_features/ for the columns that can serve."""
    cardinality, warnings = {}, []
    for name in columns:
        if name not in users.columns[2:]:
            raise ValueError(
                f"no user column {name!r} for a feature; there are: "
                f"{', '.join(users.columns[2:]) or 'none'}. Mend user_features"
            )
        file = f"user_{name}.parquet"
        earlier = previous / "vocabularies" / file if previous else None
        known = read_vocabulary(earlier) if earlier is not None and earlier.exists() else None
        values = as_categories(users[name], known)
        if values is None:
            warnings.append(
                f"user column {name} is no feature: lists, or over {MAX_CATEGORIES} values"
            )
            continue
        vocabulary = extended(values, known)
        write_vocabulary(vocabulary, out / "vocabularies" / file)
        path = out / "user_features" / f"{name}.npy"
        path.parent.mkdir(exist_ok=True)
        np.save(path, np.concatenate([[0], find_rows(values, vocabulary)]))
        cardinality[name] = len(vocabulary) + 1
    return cardinality, warnings


def kind_of_column(column: pl.Series) -> ColumnKind:
    """Find out what a column holds."""
    dtype = column.dtype
    if isinstance(dtype, (pl.List, pl.Array)):
        inner = dtype.inner
        assert isinstance(inner, (pl.DataType, type(pl.DataType)))
        if isinstance(inner, pl.DataType) and inner.is_float():
            return "vector"
        if inner == pl.String or (isinstance(inner, pl.DataType) and inner.is_integer()):
            return "list" if isinstance(dtype, pl.List) else "vector"
    elif dtype.is_numeric():
        return "number"
    elif dtype in (pl.Date, pl.Datetime):
        return "date"
    elif dtype == pl.Boolean:
        return "category"
    elif dtype in (pl.String, pl.Categorical, pl.Enum):
        return kind_of_texts(column.cast(pl.String))
    raise ValueError(
        f"content.columns: {column.name} is {dtype}; it must be numbers, dates, texts of few "
        "values, lists of texts, or lists of decimal numbers (vectors)"
    )


def kind_of_texts(column: pl.Series) -> ColumnKind:
    """Infer the type of texts, as those of a CSV file."""
    texts = column.str.strip_chars()
    texts = texts.filter(texts != "").drop_nulls()
    if len(texts) and texts.cast(pl.Float64, strict=False).null_count() == 0:
        return "number"
    if len(texts) and texts.str.contains(r"^\d{4}-\d{2}-\d{2}([T ].*)?$").all():
        return "date"
    if len(texts) and texts.str.contains(r"^\[\s*-?[\d.].*\]$").all():
        return "vector"
    if len(texts) and texts.str.contains("|", literal=True).any():
        return "list"
    if (distinct := texts.n_unique()) > MAX_DISTINCT_SHARE * len(texts) and distinct > 1:
        raise ValueError(
            f"content.columns: {column.name} has {distinct:,} different texts in {len(texts):,} "
            "items, so it is a name rather than a category; put it in content.text_columns"
        )
    return "category"
