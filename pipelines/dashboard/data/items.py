"""Items in words: titles, categories and events of each item row of prepared data.

Axes: N item rows (row 0 is padding).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.dashboard.context import Context
from pipelines.dashboard.query import NotFoundError
from pipelines.inputs.tensors import released_order
from recsys.data.dataset import Sequences

Rows = NDArray[np.int64]
MAX_TITLE = 200


@dataclass(frozen=True, kw_only=True, eq=False)
class RunCatalogue:
    """The items of a run."""

    item_ids: pl.Series
    """[N], "" for rows without an item."""
    titles: pl.Series
    """[N], cut if they are endless; the id if there is no text."""
    categories: pl.Series
    """[N], joined by a comma; "" if there are none."""
    num_events: Rows

    def __len__(self) -> int:
        return len(self.item_ids)

    def title(self, row: int) -> str:
        """Return an item's title; rows that the catalogue lacks are marked as unknown."""
        return str(self.titles[row]) if 0 < row < len(self) else f"unknown item {row}"

    def item_id(self, row: int) -> str:
        """Return an item's id, "" if the catalogue lacks it."""
        return str(self.item_ids[row]) if 0 < row < len(self) else ""

    def note(self, row: int) -> str:
        """Format an item's categories and events."""
        if not 0 < row < len(self):
            return ""
        events = f"{self.num_events[row]:,} training events"
        return f"{self.categories[row]} \u00b7 {events}" if self.categories[row] else events

    def row_of(self, item_id: str) -> int | None:
        """Find an item by its id."""
        found = self.item_ids.index_of(item_id) if item_id else None
        return None if found is None else int(found)

    def matching(self, text: str) -> NDArray[np.bool_]:
        """Mark the rows whose title or id has a text in it, in any case, [N]."""
        wanted = text.casefold()
        if not wanted:
            return np.arange(len(self)) > 0
        found = self.titles.str.to_lowercase().str.contains(wanted, literal=True)
        return (found | (self.item_ids == text)).to_numpy()


def read_catalogue(context: Context, features: Path) -> RunCatalogue:
    """Read the items of prepared data; kept until they change."""
    files = [features / "items.parquet", features / "manifest.json"]
    return context.tables.get(("catalogue", str(features)), files, lambda: _read(features))


def _read(features: Path) -> RunCatalogue:
    try:
        frame = pl.scan_parquet(features / "items.parquet")
        schema = frame.collect_schema()
        text = pl.col("display_text") if "display_text" in schema else pl.lit(None, pl.String)
        kinds = pl.lit("")
        if isinstance(schema.get("categories"), pl.List):
            kinds = pl.col("categories").list.join(", ").fill_null("")
        items = frame.select(
            "item_row",
            "item_id",
            pl.coalesce(text.str.slice(0, MAX_TITLE), "item_id").alias("title"),
            kinds.alias("categories"),
        ).collect()
        sequences = Sequences.load(features / "sequences" / released_order(features))
    except (OSError, ValueError, IndexError, pl.exceptions.PolarsError) as error:
        raise NotFoundError(
            f"the items in {features} cannot be read: {error}. Run its stage build_features again"
        ) from error
    num_rows = 1 + int(items["item_row"].to_numpy().max(initial=0))
    by_row = pl.DataFrame({"item_row": np.arange(num_rows)}).join(
        items, on="item_row", how="left", maintain_order="left"
    )
    counts = sequences.item_counts(sequences.train_end, num_rows).numpy()
    return RunCatalogue(
        item_ids=by_row["item_id"].fill_null(""),
        titles=by_row["title"].fill_null(""),
        categories=by_row["categories"].fill_null(""),
        num_events=counts.astype(np.int64),
    )


def user_row(features: Path, user_id: str) -> int:
    """Find a user by id."""
    found = _users(features).filter(pl.col("id") == user_id).select("row").collect()
    if found.is_empty():
        raise NotFoundError(f"no user {user_id!r} in this run; search for one by a part of the id")
    return int(found.item())


def user_ids(features: Path, rows: Sequence[int]) -> dict[int, str]:
    """Return the ids of users by their rows."""
    frame = _users(features).filter(pl.col("row").is_in(list(rows))).select("row", "id")
    return dict(frame.collect().iter_rows())


def users_matching(features: Path, text: str) -> pl.Series:
    """List the rows of users whose id has a text in it."""
    found = _users(features).filter(pl.col("id").str.contains(text, literal=True))
    return found.select("row").collect()["row"]


def _users(features: Path) -> pl.LazyFrame:
    return pl.scan_parquet(features / "vocabularies" / "users.parquet")


def history(sequences: Sequences, row: int, num_before: int) -> list[tuple[int, str]]:
    """List item rows and times of a user before a query, newest first; "" without times."""
    begin = int(sequences.offsets[row])
    part = slice(begin, begin + num_before)
    items = np.asarray(sequences.item_rows[part])[::-1]
    if sequences.times is None:
        return [(int(item), "") for item in items]
    times = np.asarray(sequences.times[part])[::-1]
    words = (f"{datetime.fromtimestamp(int(time), UTC):%Y-%m-%d %H:%M}" for time in times)
    return list(zip(items.tolist(), words, strict=True))
