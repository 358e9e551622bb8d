"""Properties of items, which filters and rules may read, and how items were encoded."""

from __future__ import annotations

import re
from pathlib import Path
from typing import cast, get_args

import polars as pl

from pipelines.engine.artifacts import plain, read_json
from pipelines.engine.console import log
from pipelines.engine.stage import StageContext
from pipelines.inputs.tensors import WORDS_FILE
from serving.bundle.manifest import (
    PROPERTY_NAME_PATTERN,
    ContentSource,
    EnrichmentSource,
    PropertyKind,
)
from serving.bundle.properties import Properties, to_unix_seconds
from serving.filtering.compile import RESERVED

ELSEWHERE = frozenset(
    ["item_row", "display_text", "title", "name", "description", "categories", *RESERVED]
)
"""Columns of the catalogue itself, or without use in a filter."""
MAX_TEXTS = 100_000
MAX_LENGTH = 200
NUMBER = r"^[-+]?(0|[1-9]\d*)?(\.\d+)?([eE][-+]?\d+)?$"
"""A text with leading zeros is a code, such as a postcode."""
DAY = r"^\d{4}-\d{2}-\d{2}([T ].*)?$"


def item_properties(items: pl.DataFrame) -> tuple[Properties, dict[str, str]]:
    """Take all columns that can be properties.

    Returns:
        The properties, and why each other column is none.
    """
    kinds: dict[str, PropertyKind] = {}
    left_out: dict[str, str] = {}
    for name in items.columns:
        if name in ELSEWHERE:
            continue
        found = _find_kind(name, items[name])
        if found in get_args(PropertyKind):
            kinds[name] = cast("PropertyKind", found)
        else:
            left_out[name] = found
    values = {name: items[name].to_list() for name in kinds}
    return Properties.of_values(kinds, values), left_out


def _find_kind(name: str, column: pl.Series) -> str:
    """Find a column's kind, or why it has none."""
    if not re.match(PROPERTY_NAME_PATTERN, name):
        return "its name is too long, or has a dot, slash or backtick"
    dtype = column.dtype
    if column.null_count() == len(column):
        return "it is empty"
    if dtype.is_numeric() or dtype == pl.Boolean:
        return "boolean" if dtype == pl.Boolean else "number"
    if dtype in (pl.Date, pl.Datetime):
        return "date"
    inner = dtype.inner if isinstance(dtype, pl.List) else dtype
    if inner in (pl.String, pl.Categorical, pl.Enum) or (inner != dtype and inner.is_integer()):
        return _find_kind_of_texts(column)
    return f"{dtype} is not a kind that filters compare"


def _find_kind_of_texts(column: pl.Series) -> str:
    """Find the kind of texts or of lists of them."""
    listed = isinstance(column.dtype, pl.List)
    texts = column.explode() if listed else column
    texts = texts.cast(pl.String).str.strip_chars().unique().drop_nulls()
    texts = texts.filter(texts != "")
    if len(texts) == 0:
        return "it is empty"
    if not listed:
        if texts.str.contains(NUMBER).all():
            return "number"
        if texts.str.to_lowercase().is_in(["true", "false"]).all():
            return "boolean"
        if texts.str.contains(DAY).all() and _are_dates(texts):
            return "date"
    if len(texts) > MAX_TEXTS:
        return f"it has more than {MAX_TEXTS} distinct texts"
    if (texts.str.len_chars() > MAX_LENGTH).any():
        return f"it has a text of more than {MAX_LENGTH} characters"
    return "list" if listed else "text"


def _are_dates(texts: pl.Series) -> bool:
    try:
        for text in texts:
            to_unix_seconds(text)
    except (ValueError, OverflowError):
        return False
    return True


def take_properties(items: pl.DataFrame) -> Properties:
    """Take all columns that can be properties, and report the others."""
    found, left_out = item_properties(items)
    for name, why in left_out.items():
        log.print(f"item column {name} cannot be filtered by: {why}", style="dim")
    return found


def content_words(context: StageContext) -> Path | None:
    """Return the file of how words were encoded; None without words."""
    file = context.inputs["embed_items"] / WORDS_FILE
    return file if file.exists() else None


def content_source(context: StageContext) -> ContentSource:
    """Describe how items were encoded, so that appended items are encoded equally."""
    config = context.config
    made = read_json(context.inputs["embed_items"] / "content.json")
    enrichment = None
    if made["described_by"] is not None:
        settings = plain(config.enrichment)
        enrichment = EnrichmentSource(settings=settings, **made["described_by"])
    return ContentSource(
        encoder=config.content.encoder,
        text_columns=list(config.content.text_columns),
        settings=plain(config.content),
        table={
            "columns": dict(config.data.item_columns),
            "separator": config.data.separator,
            "list_separator": config.data.list_separator,
        },
        name=made["encoder"],
        columns=made["columns"],
        enrichment=enrichment,
    )
