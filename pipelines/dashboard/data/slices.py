"""Cut queries into slices by user, item, category, domain, time, and pairs of these.

A query may be in several slices of one slicing or in none.

Axes: M queries, R memberships, C slices of a slicing.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import NamedTuple

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from pipelines.dashboard.data.answers import Joined, Rows
from pipelines.evaluation.analyse import category_names, item_domains
from pipelines.inputs.tensors import load_catalogue
from recsys.data.batch import Jagged
from recsys.data.dataset import Sequences, concatenated_ranges
from recsys.evaluation.bootstrap import time_blocks
from recsys.evaluation.slices import (
    Slice,
    history_length_slices,
    item_popularity_slices,
    user_activity_slices,
)

Codes = NDArray[np.int32]
NUM_PERIODS = 5
MAX_CATEGORIES = 20
"""Categories that are slices, those with the most held-out items."""
RECENCY = {"within a day": 86_400, "within a week": 7 * 86_400, "within a month": 30 * 86_400}
CROSS = " x "
CROSSED = (
    ("user_activity", "item_popularity"),
    ("category", "user_activity"),
    ("category", "item_popularity"),
    ("domain", "user_activity"),
    ("domain", "item_popularity"),
    ("domain", "category"),
    ("recency", "user_activity"),
    ("period", "user_activity"),
    ("period", "category"),
)
"""Pairs of slicings that are searched as well."""
LABELS = {
    "user_activity": "user activity",
    "item_popularity": "item popularity",
    "history_length": "history length",
    "category": "category",
    "domain": "domain",
    "period": "time of the query",
    "recency": "last event before the query",
}
USER = "user "
"""Begins the name of a slicing by a feature of users."""


def group_label(group: str) -> str:
    """Format a slicing, such as "category and user activity"."""
    return " and ".join(LABELS.get(one, one.replace("_", " ")) for one in group.split(CROSS))


def slice_label(key: str) -> str:
    """Format a slice's key, such as "category books, user activity new"."""
    group, _, name = key.partition("/")
    pairs = zip(group.split(CROSS), name.split(CROSS), strict=True)
    return ", ".join(f"{group_label(one)} {part}" for one, part in pairs)


class Slicing(NamedTuple):
    """A way to cut the queries."""

    group: str
    names: tuple[str, ...]
    """Names of its slices, [C]."""
    codes: Codes
    """Slice of each membership, [R]."""
    queries: Codes
    """Query of each membership, ascending, [R]."""

    @property
    def keys(self) -> list[str]:
        """Keys of its slices in addresses, ``<group>/<name>``."""
        return [f"{self.group}/{name}" for name in self.names]


def everything(num_queries: int) -> Slicing:
    """Take all queries as one slice."""
    every = np.arange(num_queries, dtype=np.int32)
    return Slicing("all", ("all",), np.zeros(num_queries, np.int32), every)


def crossed(first: Slicing, second: Slicing) -> Slicing:
    """Cut by both; if both have several slices of a query, each combination counts."""
    num_queries = 1 + max([-1, *first.queries[-1:].tolist()])
    lengths = np.bincount(second.queries, minlength=num_queries)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    starts, ends = offsets[first.queries], offsets[first.queries + 1]
    others = second.codes[concatenated_ranges(starts, ends)]
    codes = np.repeat(first.codes, ends - starts) * len(second.names) + others
    return Slicing(
        f"{first.group}{CROSS}{second.group}",
        tuple(f"{one}{CROSS}{other}" for one in first.names for other in second.names),
        codes.astype(np.int32),
        np.repeat(first.queries, ends - starts),
    )


def _most_frequent(
    group: str, values: Rows, queries: Rows | Codes, names: Sequence[str]
) -> Slicing | None:
    """Cut by the most frequent values of memberships, [R] (0 is none); None with fewer than two."""
    counts = np.bincount(values, minlength=len(names))[: len(names)]
    counts[0] = 0
    order = np.argsort(-counts, kind="stable")[:MAX_CATEGORIES]
    order = order[counts[order] > 0]
    if len(order) < 2:
        return None
    code_of = np.full(1 + int(values.max()), -1, np.int32)
    code_of[order] = np.arange(len(order))
    codes = code_of[values]
    labels = tuple(names[row] for row in order)
    return Slicing(group, labels, codes[codes >= 0], queries[codes >= 0].astype(np.int32))


def _disjoint(slices: Sequence[Slice]) -> Slicing:
    """Take slices that do not overlap."""
    codes = np.full(len(slices[0].targets), -1, np.int32)
    for code, part in enumerate(slices):
        codes[part.targets.numpy()] = code
    kept = np.flatnonzero(codes >= 0).astype(np.int32)
    return Slicing(slices[0].group, tuple(part.name for part in slices), codes[kept], kept)


class Slicings:
    """All slicings of joined queries, each computed when it is first needed."""

    def __init__(self, known: Joined) -> None:
        self._known = known
        self._made: dict[str, Slicing | None] = {}
        self.problems: list[str] = []
        """Slicings that are left out because a file cannot be read."""

    @cached_property
    def groups(self) -> list[str]:
        """Return the names of the single ones."""
        features = self._known.features
        own: list[str] = []
        if features is not None:
            # Rows of users' ids have no names and are no groups.
            named = features / "vocabularies"
            own = sorted(path.stem for path in (features / "user_features").glob("*.npy"))
            own = [name for name in own if (named / f"user_{name}.parquet").exists()]
        # Counting users by item takes longest, so that is left until it is needed.
        counted = "" if features is None else "item_popularity"
        names = [*LABELS, *(f"{USER}{name}" for name in own)]
        return [name for name in names if name == counted or self.get(name) is not None]

    @property
    def searched(self) -> list[Slicing]:
        """All single ones and the crossed pairs."""
        names = [*self.groups, *(CROSS.join(pair) for pair in CROSSED)]
        return [one for one in map(self.get, names) if one is not None]

    def get(self, group: str) -> Slicing | None:
        """Return a slicing, such as ``category`` or ``category x user_activity``; None without."""
        if group not in self._made:
            try:
                self._made[group] = self._make(group)
            except (OSError, ValueError, pl.exceptions.PolarsError) as error:
                self.problems.append(f"Slices by {group_label(group)} are left out: {error}")
                self._made[group] = None
        return self._made[group]

    def _make(self, group: str) -> Slicing | None:
        first, _, second = group.partition(CROSS)
        if second:
            pair = (self.get(first), self.get(second))
            return None if pair[0] is None or pair[1] is None else crossed(pair[0], pair[1])
        if not len(self._known) or not (group in LABELS or group.startswith(USER)):
            return None
        if group.startswith(USER):
            return self._user_feature(group)
        found: Slicing | None = getattr(self, f"_{group}")()
        return found

    def blocks(self, num_blocks: int) -> tuple[Slicing, list[Rows]] | None:
        """Cut by time into blocks of equally many queries, with the times of each block."""
        times = self._known.times
        codes = None if times is None else time_blocks(times, num_blocks)
        if times is None or codes is None:
            return None
        inside = [times[codes == block] for block in range(int(codes.max()) + 1)]
        every = np.arange(len(self._known), dtype=np.int32)
        names = tuple(str(block) for block in range(len(inside)))
        return Slicing("blocks", names, codes.astype(np.int32), every), inside

    @cached_property
    def _sequences(self) -> Sequences | None:
        features, order = self._known.features, self._known.order
        return None if features is None else Sequences.load(features / "sequences" / order)

    @cached_property
    def _targets(self) -> Jagged:
        """Held-out items of the different users."""
        ends = np.append(self._known.starts, len(self._known))
        return Jagged(torch.from_numpy(self._known.item_rows), torch.from_numpy(ends))

    def _user_activity(self) -> Slicing | None:
        if self._sequences is None:
            return None
        starts, ends = np.asarray(self._sequences.offsets), np.asarray(self._sequences.train_end)
        rows = self._known.user_rows[self._known.starts]
        known = (rows > 0) & (rows < len(ends))
        inside = np.where(known, rows, 0)
        trained = np.where(known, ends[inside] - starts[inside], 0)
        return _disjoint(user_activity_slices(self._targets, torch.from_numpy(trained)))

    def _user_feature(self, group: str) -> Slicing | None:
        """Cut by a categorical feature of users, its most frequent values."""
        features, name = self._known.features, group.removeprefix(USER)
        if features is None or not (path := features / "user_features" / f"{name}.npy").exists():
            return None
        values = np.load(path, mmap_mode="r", allow_pickle=False)
        rows = self._known.user_rows
        own = np.where((rows > 0) & (rows < len(values)), values[rows % len(values)], 0)
        ids = pl.read_parquet(features / "vocabularies" / f"user_{name}.parquet")
        labels = dict(ids.select("row", "id").iter_rows())
        names = [labels.get(row, "") for row in range(1 + max(labels, default=0))]
        return _most_frequent(group, own, np.arange(len(rows)), names)

    def _item_popularity(self) -> Slicing | None:
        known = self._sequences
        if known is None:
            return None
        num_items = 1 + int(known.item_rows.max()) if known.num_events else 1
        histories = known.histories(known.train_end)
        # As `item_popularity` counts: a repeat of a user counts once. Polars needs half its time.
        pairs = pl.Series(histories.segments().numpy() * num_items + histories.values.numpy())
        counts = np.bincount(pairs.unique().to_numpy() % num_items, minlength=num_items)
        return _disjoint(item_popularity_slices(self._targets, torch.from_numpy(counts)))

    def _history_length(self) -> Slicing:
        lengths = torch.from_numpy(self._known.places[self._known.starts].astype(np.int64))
        return _disjoint(history_length_slices(self._targets, lengths))

    def _category(self) -> Slicing | None:
        features = self._known.features
        if features is None or not (features / "item_categories" / "values.npy").exists():
            return None
        categories = load_catalogue(features, None).categories
        num_categories = 1 + int(categories.values.max()) if len(categories.values) else 1
        return self._by_item("category", categories, category_names(features, num_categories))

    def _domain(self) -> Slicing | None:
        features = self._known.features
        if features is None:
            return None
        known = pl.scan_parquet(features / "items.parquet").select(pl.col("item_row").max())
        domains, names = item_domains(features, 1 + int(known.collect().item() or 0))
        return None if domains is None else self._by_item("domain", domains, names)

    def _by_item(self, group: str, kinds: Jagged, names: Sequence[str]) -> Slicing | None:
        """Cut by an attribute of items, the most frequent first; an item may have several."""
        items = self._known.item_rows
        inside = np.flatnonzero((items > 0) & (items < kinds.batch_size))
        offsets = kinds.offsets.numpy()
        starts, ends = offsets[items[inside]], offsets[items[inside] + 1]
        found = kinds.values.numpy()[concatenated_ranges(starts, ends)]
        return _most_frequent(group, found, np.repeat(inside, ends - starts), names)

    def _period(self) -> Slicing | None:
        found = self.blocks(NUM_PERIODS)
        if found is None:
            return None
        ends = [[one.min(), one.max()] if len(one) else [] for one in found[1]]
        days = [dict.fromkeys(f"{datetime.fromtimestamp(int(t), UTC):%F}" for t in e) for e in ends]
        names = [" to ".join(one) or "-" for one in days]
        if len(set(names)) < len(names):
            names = [f"{name} ({place})" for place, name in enumerate(names, 1)]
        return found[0]._replace(group="period", names=tuple(names))

    def _recency(self) -> Slicing | None:
        times, sequences, rows = self._known.times, self._sequences, self._known.user_rows
        if times is None or sequences is None or sequences.times is None:
            return None
        first = np.asarray(sequences.offsets)[rows]
        before = np.asarray(sequences.times)[np.maximum(first, first + self._known.places - 1)]
        codes = np.searchsorted(list(RECENCY.values()), times - before).astype(np.int32)
        kept = np.flatnonzero(self._known.places > 0).astype(np.int32)
        return Slicing("recency", (*RECENCY, "longer ago"), codes[kept], kept)
