"""The items of a workspace or a bundle, with their main category and popularity.

Axes: N item rows (row 0 is padding), M categories of all items together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.models.names import POPULARITY
from recsys.models.popularity import Popularity
from recsys.semantic_ids.quality import NO_CATEGORY

Rows = NDArray[np.int64]
MOST_ITEMS = 0.5
"""A category of more items than this share separates nothing."""
MAX_TITLE = 160
"""Characters of a title that are shown."""


@dataclass(frozen=True, kw_only=True)
class Items:
    """Items by item row."""

    item_ids: pl.Series
    """[N]."""
    titles: pl.Series
    """[N]; the item's id where it has no title."""
    categories: Rows
    """Number of each item's main category, [N]; -1 for none."""
    names: Sequence[str]
    """Names of the categories."""
    popularity: NDArray[np.float64]
    """Events of each item, [N]; zeros where nothing is known."""

    def title(self, row: int) -> str:
        return str(self.titles[row])[:MAX_TITLE]


def _items(
    item_ids: Sequence[str] | pl.Series,
    titles: Sequence[str] | pl.Series,
    categories: tuple[Rows, list[str]],
    popularity: NDArray[np.float64],
) -> Items:
    """Build items from ids and titles by item row, the padding's first."""
    frame = pl.DataFrame({"item_id": item_ids, "title": titles})
    title = pl.when(pl.col("title").fill_null("") == "").then("item_id").otherwise("title")
    return Items(
        item_ids=frame["item_id"],
        titles=frame.select(title.alias("title"))["title"],
        categories=categories[0],
        names=categories[1],
        popularity=popularity,
    )


def choose_categories(values: Rows, offsets: Rows, names: Sequence[str]) -> tuple[Rows, list[str]]:
    """Choose one category for each item: the commonest of its own.

    One that more than half of the items have counts only if an item has no other.

    Args:
        values: Category rows, [M]; 0 is none.
        offsets: Where each item's begin, [N + 1].
        names: Of category rows, [C]; the first is of none.

    Returns:
        The number of each item's category, [N], -1 without one, and the names by number.
    """
    num_items = len(offsets) - 1
    owners = np.repeat(np.arange(num_items), np.diff(offsets))
    known = values > 0
    # Sorting is five times as fast as np.unique, which hashes.
    cells = np.sort(owners[known] * len(names) + values[known])
    cells = cells[np.diff(cells, prepend=-1) > 0]
    owners, values = cells // len(names), cells % len(names)
    counts = np.bincount(values, minlength=len(names))
    starts = np.flatnonzero(np.diff(owners, prepend=-1))
    most = MOST_ITEMS * len(starts)
    used = np.flatnonzero(counts).tolist()
    order = sorted(used, key=lambda row: (counts[row] > most, -counts[row], names[row]))
    place = np.zeros(len(names), np.int64)
    place[order] = np.arange(len(order))
    found = np.full(num_items, NO_CATEGORY, np.int64)
    if len(starts):
        found[owners[starts]] = np.minimum.reduceat(place[values], starts)
    return found, [names[row] for row in order]


def workspace_items(features: Path) -> Items:
    """Read the items of a build_features artefact."""
    table = pl.read_parquet(
        features / "items.parquet", columns=["item_row", "item_id", "display_text"]
    ).sort("item_row")
    padding = pl.Series([""])
    names = [""]
    known = features / "vocabularies" / "categories.parquet"
    if known.exists():
        names += pl.read_parquet(known).sort("row")["id"].to_list()
    values, offsets = (
        np.load(features / "item_categories" / f"{name}.npy", allow_pickle=False)
        for name in ("values", "offsets")
    )
    orders = sorted(path for path in (features / "sequences").iterdir() if path.is_dir())
    given = features / "sequences" / "given"
    rows = np.load((given if given in orders else orders[0]) / "item_rows.npy", mmap_mode="r")
    num_rows = table.height + 1
    counts = np.bincount(rows, minlength=num_rows)[:num_rows].astype(np.float64)
    counts[0] = 0
    return _items(
        pl.concat([padding, table["item_id"]]),
        pl.concat([padding, table["display_text"]]),
        choose_categories(values, offsets, names),
        counts,
    )


def bundle_items(bundle: Path) -> Items:
    """Read the items of a bundle, or of a delta with the bundle that it extends."""
    from serving.bundle.catalogue import Catalogue
    from serving.bundle.delta import Delta
    from serving.bundle.published import read_chain

    first, *deltas = read_chain(bundle)
    catalogue = Catalogue.load(first.directory)
    for link in deltas:
        catalogue = Delta.load(link).extend(catalogue)
    values, offsets = catalogue.category_values, catalogue.category_offsets
    names = list(catalogue.category_names)
    scores = Popularity.load(first.directory / POPULARITY.name).item_scores.clamp_min(0)
    popularity = np.zeros(len(catalogue.item_ids))
    popularity[: len(scores)] = scores.numpy()
    return _items(
        list(catalogue.item_ids),
        list(catalogue.display_texts),
        choose_categories(np.asarray(values), np.asarray(offsets), names),
        popularity,
    )
