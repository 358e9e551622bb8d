"""The catalogue with the attributes that a language model found, as columns like others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from recsys.content.attribute_schema import build_extraction
from recsys.content.config import AttributeConfig
from recsys.content.prompt import type_of

SENTENCES = ("summary", "queries")
"""Built-in attributes that are no values to compare."""


def read_described(
    features: Path, enriched: Path, attributes: Sequence[AttributeConfig]
) -> tuple[pl.DataFrame, list[str]]:
    """Read the catalogue by item row; a column of the shop's own is not replaced.

    Returns:
        The items, and the attributes that are texts or lists of them.
    """
    items = pl.read_parquet(features / "items.parquet").sort("item_row")
    found, texts = pl.read_parquet(enriched / "enrichment.parquet"), []
    for name, kind in build_extraction(attributes).schema["properties"].items():
        one = found.filter(pl.col("attribute") == name)
        if name in (*items.columns, *SENTENCES) or one.is_empty():
            continue
        values = {
            "array": pl.col("values"),
            "boolean": pl.col("values").list.first() == "yes",
            "number": pl.col("values").list.first().cast(pl.Float64, strict=False),
        }
        column = values.get(type_of(kind), pl.col("values").list.first()).alias(name)
        items = items.join(one.select("item_row", column), "item_row", "left").sort("item_row")
        texts += [name] if type_of(kind) in ("array", "string") else []
    return items, texts
