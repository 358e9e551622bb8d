"""How often each item is shown, wanted and hit, by buckets of its training events; its neighbours.

Axes: N item rows (row 0 is padding), C buckets.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from pipelines.dashboard.context import Context
from pipelines.dashboard.data.answers import Answers
from pipelines.dashboard.query import NotFoundError
from pipelines.dashboard.workspaces.run import Run
from pipelines.pages.wins import RANK
from recsys.models.names import EASE, ITEM_KNN, ITEM_TO_ITEM

Rows = NDArray[np.int64]
BOUNDS = (0, 1, 2, 5, 10, 20, 50, 100)
NAMES = ("none", "1", "2-4", "5-9", "10-19", "20-49", "50-99", "100 or more")
TOP_SHARE = 0.01
LISTED = 20
"""Places of a list that are kept."""
NEAREST = 10
VECTORS = {
    "content": ("embed_items/content.npy", "cosine of the text's vectors"),
    "two-tower": ("build_index/item_vectors.npy", "cosine of the item tower's vectors"),
}
WEIGHTS = {
    ITEM_TO_ITEM.label: (ITEM_TO_ITEM.name, "weight by what follows it in histories"),
    ITEM_KNN.label: (ITEM_KNN.name, "weight by users in common"),
    EASE.label: (EASE.name, "linear weight"),
}
WEIGHTS_FILE = "weights.safetensors"


@dataclass(frozen=True, kw_only=True, eq=False)
class Exposure:
    """Exposure of items in one model's lists."""

    shown: Rows
    """Lists that have the item among the first k, [N]."""
    wanted: Rows
    """Queries whose held-out item it is, [N]."""
    hits: Rows
    """Wanted items that the list has among the first k, [N]."""
    num_events: Rows

    @cached_property
    def bucket(self) -> Rows:
        """Bucket of each item, [N]."""
        return np.searchsorted(BOUNDS, self.num_events, side="right") - 1

    def by_bucket(self, counts: Rows) -> Rows:
        """Sum over the items of each bucket, [C]."""
        return np.bincount(self.bucket[1:], weights=counts[1:], minlength=len(NAMES)).astype(
            np.int64
        )

    @property
    def coverage(self) -> float:
        """Share of the items that at least one list shows."""
        return float((self.shown[1:] > 0).mean()) if len(self.shown) > 1 else 0.0

    @property
    def gini(self) -> float:
        """0 where all items are shown equally often, near 1 where few take all."""
        counts = np.sort(self.shown[1:]).astype(np.float64)
        total = counts.sum() * len(counts)
        place = np.arange(1, len(counts) + 1)
        return float(((2 * place - len(counts) - 1) * counts).sum() / total) if total else 0.0

    @property
    def top_share(self) -> float:
        """Share of all places that the hundredth of the items shown most takes."""
        counts = np.sort(self.shown[1:])[::-1]
        first = max(1, round(len(counts) * TOP_SHARE))
        return float(counts[:first].sum() / max(1, counts.sum()))

    def mean_events(self, counts: Rows) -> float:
        """Mean training events of an item, weighted."""
        total = counts[1:].sum()
        return float((counts[1:] * self.num_events[1:]).sum() / total) if total else 0.0

    @cached_property
    def ratio(self) -> NDArray[np.float64]:
        """Share of the places over share of the training events, [N]; NaN without either."""
        places = self.shown / max(1, int(self.shown[1:].sum()))
        merit = self.num_events / max(1, int(self.num_events[1:].sum()))
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where((places > 0) | (merit > 0), places / merit, np.nan)


class PlaceCounts(NamedTuple):
    """How often each item has each place; pairs that occur, by place."""

    places: NDArray[np.int8]
    """From 0, ascending."""
    items: NDArray[np.int32]
    counts: NDArray[np.int32]

    @classmethod
    def of(cls, places: Rows, items: Rows, num_rows: int) -> PlaceCounts:
        """Count pairs of the first `LISTED` places and items below ``num_rows``."""
        inside = (items > 0) & (items < num_rows) & (places >= 0) & (places < LISTED)
        cells, counts = np.unique(places[inside] * num_rows + items[inside], return_counts=True)
        return cls(
            (cells // num_rows).astype(np.int8),
            (cells % num_rows).astype(np.int32),
            counts.astype(np.int32),
        )

    def first(self, k: int, num_rows: int) -> Rows:
        """Sum over the first ``k`` places, [N]."""
        end = np.searchsorted(self.places, k)
        found = np.bincount(self.items[:end], self.counts[:end], num_rows)
        return found.astype(np.int64)


class Counts(NamedTuple):
    """Counts of one model's lists, for every list length at once."""

    shown: PlaceCounts
    """Lists that have the item at each place."""
    hits: PlaceCounts
    """Queries that wanted it and have it there."""
    wanted: Rows
    """Queries that wanted it, [N]."""


def count_exposure(
    context: Context, run: Run, found: Answers, model: str, k: int, num_events: Rows
) -> Exposure:
    """Count a model's lists; kept until they change."""
    key = ("exposure", run.key, model, found.table.name)
    num_rows = len(num_events)
    counts = context.tables.get(key, found.files, lambda: _count(found, model, num_rows))
    return Exposure(
        shown=counts.shown.first(k, num_rows),
        wanted=counts.wanted,
        hits=counts.hits.first(k, num_rows),
        num_events=num_events,
    )


def _count(found: Answers, model: str, num_rows: int) -> Counts:
    name, frame = f"top_k_{model}", pl.scan_parquet(found.table)
    try:
        if name not in frame.collect_schema():
            raise NotFoundError(f"{found.table.name} keeps no lists of {model}")
        read = frame.select("user_row", "item_row", f"{RANK}{model}", name).collect()
    except (OSError, pl.exceptions.PolarsError) as error:
        raise NotFoundError(f"{found.table} cannot be read: {error}") from error
    # A user with several held-out items has one list; their queries lie side by side.
    users, lists = read["user_row"], read[name]
    if not users.is_sorted() or (users.diff() == 0).any():
        lists = read.unique("user_row", keep="first")[name]
    lengths = lists.list.len().fill_null(0).to_numpy().astype(np.int64)
    rows = lists.drop_nulls().explode(empty_as_null=False).to_numpy()
    ends = np.cumsum(lengths)
    places = np.arange(len(rows)) - np.repeat(ends - lengths, lengths)
    items = read["item_row"].to_numpy()
    ranks = read[f"{RANK}{model}"].fill_null(0).to_numpy()
    known = items[(items > 0) & (items < num_rows)]
    wanted = np.bincount(known, minlength=num_rows)
    shown = PlaceCounts.of(places, rows, num_rows)
    return Counts(shown, PlaceCounts.of(ranks - 1, items, num_rows), wanted)


def nearest(path: Path, row: int) -> list[tuple[str, str, list[tuple[int, float]]]]:
    """List name, meaning and scored items of each source that a workspace keeps."""
    found = []
    for name, (file, words) in VECTORS.items():
        if (path / file).exists():
            found.append((name, words, by_vectors(path / file, row)))
    for name, (model, words) in WEIGHTS.items():
        weights = path / "refit" / model / WEIGHTS_FILE
        if weights.exists():
            found.append((name, words, by_weights(weights, row)))
    return found


def by_vectors(path: Path, row: int) -> list[tuple[int, float]]:
    """Rank items by cosine, best first; nothing where the item has no vector."""
    try:
        vectors = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError):
        return []
    if vectors.ndim != 2 or not 0 < row < len(vectors) or not np.any(vectors[row]):
        return []
    query = np.asarray(vectors[row], np.float32)
    scores = np.asarray(vectors, np.float32) @ query
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(query)
    with np.errstate(divide="ignore", invalid="ignore"):
        cosines = np.where(lengths > 0, scores / lengths, -np.inf)
    cosines[[0, row]] = -np.inf
    best = np.argsort(-cosines, kind="stable")[:NEAREST]
    return [(int(one), float(cosines[one])) for one in best if np.isfinite(cosines[one])]


def by_weights(path: Path, row: int) -> list[tuple[int, float]]:
    """Read an item's strongest weights, best first."""
    try:
        with safe_open(path, "np") as file:
            offsets = file.get_tensor("offsets")
            if not 0 < row < len(offsets) - 1:
                return []
            part = slice(int(offsets[row]), int(offsets[row + 1]))
            if part.start == part.stop:
                return []
            rows = file.get_slice("rows")[part]
            weights = file.get_slice("weights")[part]
    except (OSError, ValueError, SafetensorError):
        return []
    order = np.argsort(-weights, kind="stable")
    ranked = [(int(rows[one]), float(weights[one])) for one in order if rows[one] != row]
    return ranked[:NEAREST]
