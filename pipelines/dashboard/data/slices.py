"""Cut queries into slices by user, item, category, domain, time, and pairs of these.

A query may be in several slices of one slicing or in none.

Axes: M queries, R memberships, C slices of a slicing.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cached_property

import numpy as np
import polars as pl
import torch

from pipelines.dashboard.data.answers import Joined, Rows
from pipelines.dashboard.data.slicing import (
    CROSS,
    Codes,
    Slicing,
    crossed,
    most_frequent,
    of_masks,
)
from pipelines.evaluation.analyse import category_names, item_domains
from pipelines.inputs.tensors import load_catalogue
from recsys.data.batch import Jagged
from recsys.data.dataset import Sequences, concatenated_ranges
from recsys.evaluation.bootstrap import time_blocks
from recsys.evaluation.slices import (
    history_length_slices,
    item_popularity_slices,
    user_activity_slices,
)

NUM_PERIODS = 5
RECENCY = {"within a day": 86_400, "within a week": 7 * 86_400, "within a month": 30 * 86_400}
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
BLOCKS = "blocks "
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

    def blocks(self, num_blocks: int) -> Slicing | None:
        """Cut by time into blocks of equally many queries, named by their middle (Unix seconds)."""
        return self.get(f"{BLOCKS}{num_blocks}")

    def _make(self, group: str) -> Slicing | None:
        first, _, second = group.partition(CROSS)
        if second:
            pair = (self.get(first), self.get(second))
            return None if pair[0] is None or pair[1] is None else crossed(pair[0], pair[1])
        if not len(self._known):
            return None
        if group.startswith(USER):
            return self._user_feature(group)
        if group.startswith(BLOCKS):
            found = self._in_time(int(group.removeprefix(BLOCKS)))
            return found and Slicing(group, tuple(map(_middle, found[1])), found[0], self._all)
        return getattr(self, f"_{group}")() if group in LABELS else None

    @cached_property
    def _all(self) -> Codes:
        return np.arange(len(self._known), dtype=np.int32)

    @cached_property
    def _sequences(self) -> Sequences | None:
        features, order = self._known.features, self._known.order
        return None if features is None else Sequences.load(features / "sequences" / order)

    @cached_property
    def _users(self) -> tuple[Rows, Jagged]:
        """Different users, and their held-out items."""
        known = self._known
        ends = torch.from_numpy(np.append(known.starts, len(known)))
        return known.user_rows[known.starts], Jagged(torch.from_numpy(known.item_rows), ends)

    def _user_activity(self) -> Slicing | None:
        rows, targets = self._users
        if self._sequences is None:
            return None
        starts, ends = np.asarray(self._sequences.offsets), np.asarray(self._sequences.train_end)
        known = (rows > 0) & (rows < len(ends))
        inside = np.where(known, rows, 0)
        trained = np.where(known, ends[inside] - starts[inside], 0)
        return of_masks(user_activity_slices(targets, torch.from_numpy(trained)))

    def _user_feature(self, group: str) -> Slicing | None:
        """Cut by a categorical feature of users, its most frequent values."""
        features, name = self._known.features, group.removeprefix(USER)
        if features is None or not (path := features / "user_features" / f"{name}.npy").exists():
            return None
        values = np.load(path, mmap_mode="r", allow_pickle=False)
        rows = self._known.user_rows
        of_query = np.where((rows > 0) & (rows < len(values)), values[rows % len(values)], 0)
        ids = pl.read_parquet(features / "vocabularies" / f"user_{name}.parquet")
        labels = dict(ids.select("row", "id").iter_rows())
        names = [labels.get(row, "") for row in range(1 + max(labels, default=0))]
        return most_frequent(group, of_query, self._all, names)

    def _item_popularity(self) -> Slicing | None:
        known = self._sequences
        if known is None:
            return None
        num_items = 1 + int(known.item_rows.max()) if known.num_events else 1
        histories = known.histories(known.train_end)
        # As `item_popularity` counts: a repeat of a user counts once. Polars needs half its time.
        pairs = pl.Series(histories.segments().numpy() * num_items + histories.values.numpy())
        counts = np.bincount(pairs.unique().to_numpy() % num_items, minlength=num_items)
        return of_masks(item_popularity_slices(self._users[1], torch.from_numpy(counts)))

    def _history_length(self) -> Slicing | None:
        _, targets = self._users
        lengths = torch.from_numpy(self._known.places.astype(np.int64))[targets.offsets[:-1]]
        return of_masks(history_length_slices(targets, lengths))

    def _category(self) -> Slicing | None:
        features = self._known.features
        if features is None or not (features / "item_categories" / "values.npy").exists():
            return None
        categories = load_catalogue(features, None).categories
        num_categories = 1 + int(categories.values.max()) if len(categories.values) else 1
        return self._of_items("category", categories, category_names(features, num_categories))

    def _domain(self) -> Slicing | None:
        features = self._known.features
        if features is None:
            return None
        known = pl.scan_parquet(features / "items.parquet").select(pl.col("item_row").max())
        domains, names = item_domains(features, 1 + int(known.collect().item() or 0))
        return None if domains is None else self._of_items("domain", domains, names)

    def _of_items(self, group: str, kinds: Jagged, names: Sequence[str]) -> Slicing | None:
        """Cut by an attribute of items, the most frequent first; an item may have several."""
        items = self._known.item_rows
        inside = np.flatnonzero((items > 0) & (items < kinds.batch_size))
        offsets = kinds.offsets.numpy()
        starts, ends = offsets[items[inside]], offsets[items[inside] + 1]
        found = kinds.values.numpy()[concatenated_ranges(starts, ends)]
        return most_frequent(group, found, np.repeat(inside, ends - starts), names)

    def _in_time(self, num_blocks: int) -> tuple[Codes, list[Rows]] | None:
        """Cut by time; returns the block of each query, and the times of each block."""
        times = self._known.times
        blocks = None if times is None else time_blocks(times, num_blocks)
        if times is None or blocks is None:
            return None
        inside = [times[blocks == block] for block in range(int(blocks.max()) + 1)]
        return blocks.astype(np.int32), inside

    def _period(self) -> Slicing | None:
        found = self._in_time(NUM_PERIODS)
        if found is None:
            return None
        ends = [[one.min(), one.max()] if len(one) else [] for one in found[1]]
        days = [dict.fromkeys(f"{datetime.fromtimestamp(int(t), UTC):%F}" for t in e) for e in ends]
        names = [" to ".join(one) or "-" for one in days]
        if len(set(names)) < len(names):
            names = [f"{name} ({place})" for place, name in enumerate(names, 1)]
        return Slicing("period", tuple(names), found[0], self._all)

    def _recency(self) -> Slicing | None:
        times, sequences, rows = self._known.times, self._sequences, self._known.user_rows
        if times is None or sequences is None or sequences.times is None:
            return None
        first = np.asarray(sequences.offsets)[rows]
        before = np.asarray(sequences.times)[np.maximum(first, first + self._known.places - 1)]
        codes = np.searchsorted(list(RECENCY.values()), times - before).astype(np.int32)
        kept = np.flatnonzero(self._known.places > 0).astype(np.int32)
        return Slicing("recency", (*RECENCY, "longer ago"), codes[kept], kept)


def _middle(times: Rows) -> str:
    return str(int(times.mean())) if len(times) else "0"
