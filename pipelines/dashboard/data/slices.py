"""Cut queries by user, item, category, domain, time, and pairs of these.

A query may be in several slices of one group or in none.

Axes: M queries and held-out items, U users.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from features.schema import GIVEN
from pipelines.evaluation.analyse import category_names, item_domains
from pipelines.inputs.tensors import load_catalogue
from recsys.data.batch import Jagged
from recsys.data.dataset import Sequences
from recsys.evaluation.beyond_accuracy import item_popularity
from recsys.evaluation.intervals import time_blocks
from recsys.evaluation.slices import (
    Slice,
    category_slices,
    item_popularity_slices,
    user_activity_slices,
    user_slices,
)

Mask = NDArray[np.bool_]
NUM_PERIODS = 5
MOST = 20
"""Slices of a group by attribute, those with the most queries."""
RECENCY = {"within a day": 86_400, "within a week": 7 * 86_400, "within a month": 30 * 86_400}
CROSS = " x "
CROSSED = (
    *((one, "user_activity") for one in ("category", "domain", "recency", "period")),
    *((one, "item_popularity") for one in ("user_activity", "category", "domain")),
    ("domain", "category"),
    ("period", "category"),
)
"""Pairs of groups that are searched as well."""
LABELS = {"period": "time of the query", "recency": "last event before the query"}


def group_label(group: str) -> str:
    """Format a group, such as "category and user activity"."""
    return " and ".join(LABELS.get(one, one.replace("_", " ")) for one in group.split(CROSS))


def slice_label(key: str) -> str:
    """Format a slice's key, such as "category books, user activity new"."""
    group, _, name = key.partition("/")
    pairs = zip(group.split(CROSS), name.split(CROSS), strict=True)
    return ", ".join(f"{group_label(one)} {part}" for one, part in pairs)


class Slices(NamedTuple):
    """Which queries are in each slice, by group and name, [M]."""

    single: Mapping[str, Mapping[str, Mask]]
    problems: Sequence[str] = ()
    """Groups that are left out because a file cannot be read."""

    @property
    def groups(self) -> list[str]:
        """Names of all groups, the pairs last."""
        pairs = [CROSS.join(pair) for pair in CROSSED if {*pair} <= {*self.single}]
        return [*self.single, *pairs]

    def get(self, group: str) -> dict[str, Mask]:
        """Return the slices of a group, such as ``category`` or ``category x user_activity``."""
        first, _, second = group.partition(CROSS)
        if not second:
            return dict(self.single[first])
        return {
            f"{one}{CROSS}{other}": inside & also
            for one, inside in self.single[first].items()
            for other, also in self.single[second].items()
        }


class _Cut(NamedTuple):
    """The queries, with what they are cut by."""

    queries: pl.DataFrame
    targets: Jagged
    """Held-out item rows by user."""
    features: Path
    sequences: Sequences

    @property
    def rows(self) -> NDArray[np.int64]:
        """Row of each user, 0 if it is not known, [U]."""
        firsts = self.targets.offsets[:-1].numpy()
        found: NDArray[np.int64] = self.queries["user_row"].to_numpy()[firsts]
        return np.where(found < self.sequences.num_user_rows, found, 0)


def cut_slices(queries: pl.DataFrame, targets: Jagged, features: Path | None) -> Slices:
    """Cut queries in all ways that their data allow."""
    if features is None or not len(queries):
        return Slices({})
    found: dict[str, dict[str, Mask]] = {}
    problems = []
    cut = _Cut(queries, targets, features, Sequences.load(features / "sequences" / GIVEN))
    for label, make in WAYS.items():
        try:
            for part in make(cut):
                found.setdefault(part.group, {})[part.name] = part.targets.numpy()
        except (OSError, ValueError, IndexError, pl.exceptions.PolarsError) as error:
            problems.append(f"Slices by {label} are left out: {error}")
    return Slices(found, problems)


def _activity(cut: _Cut) -> list[Slice]:
    trained = np.asarray(cut.sequences.train_end) - np.asarray(cut.sequences.offsets[:-1])
    return user_activity_slices(cut.targets, torch.from_numpy(trained)[cut.rows])


def _popularity(cut: _Cut) -> list[Slice]:
    histories = cut.sequences.histories(cut.sequences.train_end)
    num_items = 1 + int(histories.values.max()) if len(histories.values) else 1
    return item_popularity_slices(cut.targets, item_popularity(histories, num_items))


def _categories(cut: _Cut) -> list[Slice]:
    if not (cut.features / "item_categories" / "values.npy").exists():
        return []
    kinds = load_catalogue(cut.features, None).categories
    names = category_names(cut.features, 1 + int(kinds.values.max()) if len(kinds.values) else 1)
    return _largest(category_slices(cut.targets, "category", kinds, names))


def _domains(cut: _Cut) -> list[Slice]:
    last = pl.scan_parquet(cut.features / "items.parquet").select(pl.col("item_row").max())
    domains, names = item_domains(cut.features, 1 + int(last.collect().item() or 0))
    if domains is None:
        return []
    return _largest(category_slices(cut.targets, "domain", domains, names))


def _user_features(cut: _Cut) -> Iterator[Slice]:
    """Cut by each categorical feature of users."""
    for path in sorted((cut.features / "user_features").glob("*.npy")):
        # Rows of users' ids have no names and are no groups.
        named = cut.features / "vocabularies" / f"user_{path.stem}.parquet"
        if not named.exists():
            continue
        values = np.load(path, mmap_mode="r", allow_pickle=False)
        own = torch.from_numpy(np.where(cut.rows < len(values), values[cut.rows % len(values)], 0))
        labels = pl.read_parquet(named).select("id", "row").iter_rows()
        members = {str(label): own == row for label, row in labels}
        yield from _largest(user_slices(cut.targets, f"user {path.stem}", members))


def _largest(slices: Sequence[Slice]) -> list[Slice]:
    """Keep the largest slices of a group; none if there is one alone."""
    kept = [part for part in slices if bool(part.targets.any())]
    kept.sort(key=lambda part: -int(part.targets.sum()))
    return kept[:MOST] if len(kept) > 1 else []


def _period(cut: _Cut) -> Iterator[Slice]:
    if cut.queries["time"].has_nulls():
        return
    times = cut.queries["time"].to_numpy()
    blocks = time_blocks(times, NUM_PERIODS)
    if blocks is None:
        return
    for block in range(int(blocks.max()) + 1):
        inside = np.equal(blocks, block)
        ends = [times[inside].min(), times[inside].max()] if inside.any() else []
        days = dict.fromkeys(f"{datetime.fromtimestamp(int(end), UTC):%F}" for end in ends)
        name = f"{' to '.join(days) or '-'} ({block + 1})"
        yield Slice("period", name, torch.from_numpy(inside))


def _recency(cut: _Cut) -> Iterator[Slice]:
    if cut.queries["time"].has_nulls() or cut.sequences.times is None:
        return
    times, places = (cut.queries[name].to_numpy() for name in ("time", "place"))
    first = np.asarray(cut.sequences.offsets)[cut.queries["user_row"].to_numpy()]
    before = np.asarray(cut.sequences.times)[np.maximum(first, first + places - 1)]
    codes = np.searchsorted(list(RECENCY.values()), times - before)
    for code, name in enumerate((*RECENCY, "longer ago")):
        yield Slice("recency", name, torch.from_numpy((codes == code) & (places > 0)))


WAYS: dict[str, Callable[[_Cut], Sequence[Slice] | Iterator[Slice]]] = {
    "user activity": _activity,
    "item popularity": _popularity,
    "category": _categories,
    "domain": _domains,
    "time of the query": _period,
    "last event before the query": _recency,
    "features of users": _user_features,
}
"""Ways to cut, by their names in warnings."""
