"""How often each item is shown, wanted and hit, and by buckets of its training events.

Axes: N item rows (row 0 is padding), C buckets.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.dashboard.context import Context
from pipelines.dashboard.evidence.per_user import Answers
from pipelines.dashboard.query import NotFoundError
from pipelines.dashboard.runs.run import Run
from pipelines.reports.wins import RANK

Rows = NDArray[np.int64]
BOUNDS = (0, 1, 2, 5, 10, 20, 50, 100)
"""Least training events of each bucket."""
NAMES = ("none", "1", "2-4", "5-9", "10-19", "20-49", "50-99", "100 or more")
TOP_SHARE = 0.01


@dataclass(frozen=True, kw_only=True, eq=False)
class Exposure:
    """Of one model's lists."""

    shown: Rows
    """Lists that have the item among the first k, [N]."""
    wanted: Rows
    """Queries whose held-out item it is, [N]."""
    hits: Rows
    """Of these, those whose list has it among the first k, [N]."""
    num_events: Rows
    """Training events, [N]."""

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


def exposure_of(
    context: Context, run: Run, found: Answers, model: str, k: int, num_events: Rows
) -> Exposure:
    """Count a model's lists; kept until they change.

    Raises:
        NotFoundError: The run keeps no lists.
    """
    key = ("exposure", run.key, model, k, found.table.name)
    return context.tables.get(key, found.files, lambda: _count(found, model, k, num_events))


def _count(found: Answers, model: str, k: int, num_events: Rows) -> Exposure:
    name, num_rows = f"top_k_{model}", len(num_events)
    frame = pl.scan_parquet(found.table)
    try:
        if name not in frame.collect_schema():
            raise NotFoundError(f"{found.table.name} keeps no lists of {model}")
        # A user with several held-out items has one list.
        lists = frame.unique("user_row", keep="first").select(
            pl.col(name).list.head(k).explode(empty_as_null=False, keep_nulls=False).alias("row")
        )
        rows = lists.collect()["row"].to_numpy()
        rank = pl.col(f"{RANK}{model}")
        targets = frame.select("item_row", (rank <= k).fill_null(value=False).alias("hit"))
        wanted = targets.collect()
    except (OSError, pl.exceptions.PolarsError) as error:
        raise NotFoundError(f"{found.table} cannot be read: {error}") from error
    items, hit = wanted["item_row"].to_numpy(), wanted["hit"].to_numpy()

    def counted(of: Rows) -> Rows:
        inside = of[(of > 0) & (of < num_rows)]
        return np.bincount(inside, minlength=num_rows)

    return Exposure(
        shown=counted(rows), wanted=counted(items), hits=counted(items[hit]), num_events=num_events
    )
