"""How often each item is shown, wanted and hit, by buckets of its training events.

Axes: N item rows (row 0 is padding), C buckets.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.dashboard.context import Context
from pipelines.dashboard.data.answers import Answers
from pipelines.dashboard.query import NotFoundError
from pipelines.dashboard.workspaces.run import Run
from pipelines.evaluation.per_user import RANK

Rows = NDArray[np.int64]
BOUNDS = (0, 1, 2, 5, 10, 20, 50, 100)
NAMES = ("none", "1", "2-4", "5-9", "10-19", "20-49", "50-99", "100 or more")
TOP_SHARE = 0.01
LISTED = 20
"""Places of a list that are kept."""


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


def count_exposure(
    context: Context, run: Run, found: Answers, model: str, k: int, num_events: Rows
) -> Exposure:
    """Count the first ``k`` places of a model's lists; kept until they change."""
    key = ("exposure", run.key, model, k, found.table.name)
    return context.tables.get(key, found.files, lambda: _count(found, model, k, num_events))


def _count(found: Answers, model: str, k: int, num_events: Rows) -> Exposure:
    name, frame = f"top_k_{model}", pl.scan_parquet(found.table)
    try:
        if name not in frame.collect_schema():
            raise NotFoundError(f"{found.table.name} keeps no lists of {model}")
        listed = pl.col(name).list.head(k)
        read = frame.select("user_row", "item_row", f"{RANK}{model}", listed).collect()
    except (OSError, pl.exceptions.PolarsError) as error:
        raise NotFoundError(f"{found.table} cannot be read: {error}") from error
    # A user with several held-out items has one list; their queries lie side by side.
    users, lists = read["user_row"], read[name]
    if not users.is_sorted() or (users.diff() == 0).any():
        lists = read.unique("user_row", keep="first")[name]
    num_rows = len(num_events)

    def counted(rows: Rows) -> Rows:
        inside = rows[(rows > 0) & (rows < num_rows)]
        return np.bincount(inside, minlength=num_rows).astype(np.int64)

    items = read["item_row"].to_numpy()
    ranks = read[f"{RANK}{model}"].fill_null(0).to_numpy()
    return Exposure(
        shown=counted(lists.drop_nulls().explode(empty_as_null=False).to_numpy()),
        wanted=counted(items),
        hits=counted(items[(ranks >= 1) & (ranks <= k)]),
        num_events=num_events,
    )
