"""Items and users in words: titles, categories and events of each item row of prepared data.

Axes: N item rows (row 0 is padding).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

from features.schema import GIVEN
from pipelines.dashboard.context import Context
from pipelines.dashboard.query import NotFoundError
from pipelines.pages.document import Window
from recsys.data.dataset import Sequences

MAX_TITLE = 200


def read_items(context: Context, features: Path) -> pl.DataFrame:
    """Read the items of prepared data; kept until they change.

    Returns:
        A row for each item row, [N]: item_row, item_id ("" for rows without an item), title (the id
        if there is no text), categories (joined by a comma) and events of training.
    """
    files = [features / "items.parquet", features / "manifest.json"]
    return context.tables.get(("items", str(features)), files, lambda: _read(features))


def _read(features: Path) -> pl.DataFrame:
    try:
        items = pl.read_parquet(features / "items.parquet")
        sequences = Sequences.load(features / "sequences" / GIVEN)
    except (OSError, ValueError, IndexError, pl.exceptions.PolarsError) as error:
        raise NotFoundError(
            f"the items in {features} cannot be read: {error}. Run its stage build_features again"
        ) from error
    title, kinds = pl.col("item_id"), pl.lit("")
    if "display_text" in items.columns:
        title = pl.coalesce(pl.col("display_text").str.slice(0, MAX_TITLE), title)
    if isinstance(items.schema.get("categories"), pl.List):
        kinds = pl.col("categories").list.join(", ")
    num_rows = 1 + int(items["item_row"].to_numpy().max(initial=0))
    counts = sequences.item_counts(sequences.train_end, num_rows).numpy()
    named = items.select("item_row", "item_id", title.alias("title"), kinds.alias("categories"))
    every = pl.DataFrame({"item_row": np.arange(num_rows), "events": counts.astype(np.int64)})
    return every.join(named, on="item_row", how="left", maintain_order="left").with_columns(
        pl.col("item_id", "title", "categories").fill_null("")
    )


def past_events(sequences: Sequences, row: int, split: str) -> slice:
    """Return the events of a user row before the held-out ones of a split, oldest first."""
    ends = sequences.validation_end if split == "test" else sequences.train_end
    return slice(int(sequences.offsets[row]), int(ends[row]))


def item_words(items: pl.DataFrame, row: int) -> tuple[str, str, str]:
    """Return an item's id and title, and its categories with its events."""
    if not 0 < row < len(items):
        return "", f"unknown item {row}", ""
    one = items.row(row, named=True)
    events = f"{one['events']:,} training events"
    note = f"{one['categories']} \u00b7 {events}" if one["categories"] else events
    return one["item_id"], one["title"], note


def title_matches(text: str) -> pl.Expr:
    """Match items whose title has a text in it, in any case, or that have it as their id."""
    found = pl.col("title").str.to_lowercase().str.contains(text.casefold(), literal=True)
    return found | (pl.col("item_id") == text)


def cut_window(
    frame: pl.DataFrame, window: Window, columns: Sequence[str], default: str
) -> pl.DataFrame:
    """Order a table by a column of the window, missing values last, and cut the window's rows.

    Args:
        default: Column that orders without a choice, descending.
    """
    named = window.order_by is not None and window.order_by < len(columns)
    by = columns[window.order_by or 0] if named else default
    descending = window.descending or not named
    ordered = frame.sort(by, descending=descending, nulls_last=True, maintain_order=True)
    return ordered.slice(window.start, window.length)


def user_row(features: Path, user_id: str) -> int:
    """Find a user by id."""
    users = pl.scan_parquet(features / "vocabularies" / "users.parquet")
    found = users.filter(pl.col("id") == user_id).select("row").collect()
    if found.is_empty():
        raise NotFoundError(f"no user {user_id!r} in this run; search for one by a part of the id")
    return int(found.item())
