"""Texts that a search reads of each item."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.engine.artifacts import read_json
from recsys.models.text_search.tokens import ItemText
from serving.items import TitleIndex

ATTRIBUTES = ("categories", "brand")
"""Columns whose values a query may name."""
READ = ("title", *ATTRIBUTES, "description", "release_year")
"""Columns that are searched, in this order, where the catalogue has them, and the decade."""


SENTENCES = ("summary", "queries")
"""Attributes by a language model that are no values to compare."""


def read_described(features: Path, enriched: Path) -> tuple[pl.DataFrame, list[str]]:
    """Read the catalogue by item row, with the attributes that a language model found.

    A column of the shop's own is not replaced.

    Returns:
        The items, and the attributes that are texts or lists of them.
    """
    items = pl.read_parquet(features / "items.parquet").sort("item_row")
    found, texts = pl.read_parquet(enriched / "enrichment.parquet"), []
    for name, kind in read_json(enriched / "enrichment.json").get("kinds", {}).items():
        one = found.filter(pl.col("attribute") == name)
        if name in (*items.columns, *SENTENCES) or one.is_empty():
            continue
        values = {
            "array": pl.col("values"),
            "boolean": pl.col("values").list.first() == "yes",
            "number": pl.col("values").list.first().cast(pl.Float64, strict=False),
        }
        column = values.get(kind, pl.col("values").list.first()).alias(name)
        items = items.join(one.select("item_row", column), "item_row", "left").sort("item_row")
        texts += [name] if kind in ("array", "string") else []
    return items, texts


def item_texts(items: pl.DataFrame, found: Sequence[str] = ()) -> list[ItemText]:
    """Read the catalogue, by item row from 1.

    Args:
        found: Further columns that a query may name.
    """
    return [_read_text(item, found) for item in items.sort("item_row").iter_rows(named=True)]


def _read_text(item: dict[str, object], found: Sequence[str]) -> ItemText:
    parts = {name: list(_values(item.get(name))) for name in (*READ, *found)}
    title = " ".join(parts["title"])
    named = [value for name in (*ATTRIBUTES, *found) for value in parts[name]]
    rest = [value for values in parts.values() for value in values]
    rest += [f"{int(year) // 10}0s" for year in parts["release_year"] if year.isdecimal()]
    return ItemText(
        item_row=int(str(item["item_row"])),
        title=title,
        text=" ".join(rest),
        attributes=tuple(dict.fromkeys(named)),
    )


def _values(value: object) -> Iterator[str]:
    if isinstance(value, list):
        yield from (str(one) for one in value if one is not None)
    elif value is not None and str(value).strip():
        yield str(value)


def title_index(texts: Sequence[ItemText], popularity: NDArray[np.float32]) -> TitleIndex:
    """Index titles as a server does, the most popular first."""
    order = sorted(texts, key=lambda item: (-popularity[item.item_row], item.item_row))
    return TitleIndex((item.item_row, item.title) for item in order)
