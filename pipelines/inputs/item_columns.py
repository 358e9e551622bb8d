"""Which columns of the catalogue are encoded beside the text, and of what kind each is."""

from __future__ import annotations

from typing import Any

import polars as pl

from pipelines.config.content import ContentConfig
from recsys.content.columns import ColumnEncoder, EncodedColumn, Kind

MAX_SHARE = 0.5
"""Distinct values for each known one, above which a text is a name or an address."""


def fit_columns(items: pl.DataFrame, config: ContentConfig) -> ColumnEncoder:
    """Look at the catalogue's columns that ``content.columns`` names.

    Raises:
        ValueError: If a column is not there or cannot be encoded.
    """
    fitted = []
    for name in config.columns:
        if name not in items.columns:
            free = sorted(set(items.columns) - {"item_id", "item_row", "display_text"})
            raise ValueError(
                f"content.columns names {name!r}, which the items do not have; there are: "
                f"{', '.join(free) or 'none'}"
            )
        fitted.append(EncodedColumn.fit(name, kind_of(items[name]), items[name].to_list()))
    return ColumnEncoder(tuple(fitted), config.column_weight)


def column_values(items: pl.DataFrame, columns: ColumnEncoder) -> dict[str, list[Any]]:
    """Read the values of encoded columns; one that the items lack is missing."""
    names = [one.name for one in columns.columns if one.name in items.columns]
    return {name: items[name].to_list() for name in names}


def can_be_encoded(column: pl.Series) -> bool:
    """Whether ``content.columns`` may name a column, and it says more than one thing."""
    try:
        kind_of(column)
    except ValueError:
        return False
    return column.drop_nulls().n_unique() > 1


def kind_of(column: pl.Series) -> Kind:
    """Find out what a column holds.

    Raises:
        ValueError: If it holds long texts, ids or what is neither text, number, date nor list.
    """
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


def kind_of_texts(column: pl.Series) -> Kind:
    """Find out what texts stand for, as those of a CSV file."""
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
    if (distinct := texts.n_unique()) > MAX_SHARE * len(texts) and distinct > 1:
        raise ValueError(
            f"content.columns: {column.name} has {distinct:,} different texts in {len(texts):,} "
            "items, so it is a name rather than a category; put it in content.text_columns"
        )
    return "category"
