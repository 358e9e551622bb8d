"""Which columns of the catalogue are encoded beside the text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from features.tables import kind_of_column
from pipelines.config.content import ContentConfig
from recsys.content.columns import ColumnEncoder, EncodedColumn


def column_named(items: pl.DataFrame, name: str, setting: str) -> pl.Series:
    """Take a column that a setting names.

    Raises:
        ValueError: There is none of that name; says the setting and what there is.
    """
    if name not in items.columns:
        free = sorted(set(items.columns) - {"item_id", "item_row", "display_text"})
        raise ValueError(
            f"{setting}, which the items do not have; there are: {', '.join(free) or 'none'}"
        )
    return items[name]


def fit_columns(
    items: pl.DataFrame, config: ContentConfig, images: Mapping[str, Sequence[Any]]
) -> ColumnEncoder:
    """Look at the catalogue's columns that ``content.columns`` names, and at images' vectors.

    Raises:
        ValueError: If a column is not there or cannot be encoded.
    """
    fitted = []
    for name in config.columns:
        column = column_named(items, name, f"content.columns names {name!r}")
        fitted.append(EncodedColumn.fit(name, kind_of_column(column), column.to_list()))
    fitted += [EncodedColumn.fit(name, "vector", vectors) for name, vectors in images.items()]
    return ColumnEncoder(tuple(fitted), config.column_weight)


def column_values(items: pl.DataFrame, columns: ColumnEncoder) -> dict[str, list[Any]]:
    """Read the values of encoded columns; one that the items lack is missing."""
    names = [one.name for one in columns.columns if one.name in items.columns]
    return {name: items[name].to_list() for name in names}
