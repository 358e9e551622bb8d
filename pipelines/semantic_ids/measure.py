"""The measurement of a version of semantic IDs, for its report and the dashboard alike.

The run that makes a version measures its content (errors, neighbours, moved codes) and writes it
down; the rest is computed here from the table of codes.

Axes: N item rows (row 0 is padding), M items, L levels, D width.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from pipelines.config.content import BEHAVIOUR
from pipelines.semantic_ids.items import Items, Rows
from pipelines.semantic_ids.table import (
    Group,
    IdTable,
    group_of,
    grouped,
    most_popular,
    prefix_text,
)
from recsys.data.batch import Jagged
from recsys.evaluation.slices import item_popularity_slices
from recsys.semantic_ids.codes import NO_CODE, id_keys
from recsys.semantic_ids.lifecycle import KeptShares
from recsys.semantic_ids.quality import (
    NO_CATEGORY,
    LevelQuality,
    QualityReport,
    code_counts,
    level_qualities,
    prefix_counts,
)

GROUP_SIZES = {"alone": 1, "2 to 5": 5, "6 to 20": 20, "21 to 100": 100, "over 100": None}
"""Largest number of items of each group size."""
MOST_GROUPS, MOST_MOVES = 50, 20
SAME_MEANING = 0.5
"""A first code means something else if it shares fewer of its items with those it had."""
NUM_EACH, LISTED = 4, 8
"""Example items that are popular, and as many of the tail; items listed for each."""
MOVED_EACH = 3
"""Moved items shown of each level that changed first."""


@dataclass(frozen=True, kw_only=True)
class Depth:
    """Items with the same first ``num_codes`` codes."""

    num_codes: int
    num_prefixes: int
    median_items: int
    """Items with an item's prefix, itself included; median over items."""
    largest: int
    shares: Mapping[str, float]
    """Share of items by the size of their group, see ``GROUP_SIZES``."""


@dataclass(frozen=True, kw_only=True)
class Tier:
    """Items of one popularity."""

    name: str
    num_items: int
    num_with_id: int
    codes_used: tuple[float, ...]
    """Share of each level's codes that one of them has."""
    alone: tuple[float, ...]
    """Share of them whose prefix, by its length, no other item has."""


@dataclass(frozen=True, kw_only=True)
class SemanticIdReport:
    """Measurements of one version."""

    title: str
    version: str
    parent: str | None
    level_sizes: tuple[int, ...]
    made: Mapping[str, Any] = field(default_factory=dict)
    """Report of the run that made it; empty if it is not known."""
    num_items: int
    num_with_id: int
    num_without_content: int
    """Items without an ID because they have no content."""
    num_departed: int
    """IDs of items that are no longer in the catalogue."""
    num_retired: int | None = None
    """IDs of earlier versions that no item has; None if they were not counted."""
    levels: tuple[LevelQuality, ...]
    content: QualityReport | None
    """Measured with the content; None if it is not known."""
    num_content_levels: int
    """Levels of the quantiser; one after these resolves collisions."""
    num_shared: int
    """Items that share their ID with an earlier one."""
    usage: Sequence[Sequence[int]]
    """Items of each code of a quantiser level, most used first."""
    depths: Sequence[Depth]
    groups_before: Mapping[str, float]
    """Share of items by the number with the same codes, as encoded."""
    num_categories: int
    num_with_category: int
    tiers: Sequence[Tier]

    @property
    def settings(self) -> Mapping[str, Any]:
        """The [semantic_ids] table that the version was made with."""
        origin = self.made.get("origin")
        found = origin.get("settings") if isinstance(origin, Mapping) else None
        return found if isinstance(found, Mapping) else {}

    @property
    def is_of_behaviour(self) -> bool:
        """True if the codes come from behaviour, so that content alone gives others."""
        return bool(self.settings.get("source") == BEHAVIOUR)

    @property
    def num_waiting(self) -> int:
        """Items with content and no ID."""
        return self.num_items - self.num_with_id - self.num_without_content


def group_shares(sizes: Iterable[tuple[int, int]]) -> dict[str, float]:
    """Compute the share of items by group size.

    Args:
        sizes: Size of a group, and items in groups of that size.
    """
    found = dict.fromkeys(GROUP_SIZES, 0)
    for size, count in sizes:
        part = next(name for name, most in GROUP_SIZES.items() if most is None or size <= most)
        found[part] += count
    total = max(1, sum(found.values()))
    return {name: count / total for name, count in found.items()}


def _depths(codes: Tensor, level_sizes: tuple[int, ...]) -> list[Depth]:
    """Measure each prefix length; codes [M, L]."""
    counts = prefix_counts(codes, level_sizes)
    found = []
    for level in range(len(level_sizes)):
        sizes, items = torch.unique(counts[:, level], return_counts=True)
        pairs = list(zip(sizes.tolist(), items.tolist(), strict=True))
        found.append(
            Depth(
                num_codes=level + 1,
                num_prefixes=sum(count // size for size, count in pairs),
                median_items=int(counts[:, level].median()),
                largest=int(sizes.max()),
                shares=group_shares(pairs),
            )
        )
    return found


def read_quality(made: Mapping[str, Any]) -> QualityReport | None:
    """Read the quality that a run wrote down; None if it is missing or of another form."""
    try:
        return TypeAdapter(QualityReport).validate_python(made.get("quality"))
    except ValidationError:
        return None


def measure(
    table: IdTable,
    items: Items,
    made: Mapping[str, Any],
    *,
    title: str,
    content: QualityReport | None = None,
    num_retired: int | None = None,
) -> SemanticIdReport:
    """Measure a version.

    Args:
        made: ``semantic_ids_report.json`` of the run that made it; empty if it is not known.
        content: Quality of the codes; that of ``made`` by default.
    """
    if not len(table.rows):
        raise ValueError("no item of this run's catalogue has an ID in this version")
    content = read_quality(made) if content is None else content
    own, nothing = table.own.long(), torch.zeros(0, dtype=torch.int64)
    categories = torch.from_numpy(items.categories[table.rows]) if items.names else None
    levels = level_qualities(own, table.level_sizes, nothing, nothing, categories)
    if content is not None:
        levels = tuple(
            replace(level, neighbour_agreement=measured.neighbour_agreement)
            for level, measured in zip(levels, content.published, strict=True)
        )
    counts, num_items = code_counts(own, table.level_sizes), len(items.item_ids) - 1
    num_content = table.num_levels if content is None else len(content.levels)
    groups = () if content is None else content.groups_before
    return SemanticIdReport(
        title=title,
        version=table.version,
        parent=table.parent,
        level_sizes=table.level_sizes,
        made=made,
        num_items=num_items,
        num_with_id=len(table.rows),
        # If nothing was measured, the reason why an item has none is not known.
        num_without_content=int(made.get("num_without_content", num_items - len(table.rows))),
        num_departed=table.num_departed,
        num_retired=num_retired,
        levels=levels,
        content=content,
        num_content_levels=num_content,
        num_shared=int((np.diff(table.keys) == 0).sum()),
        usage=[one.sort(descending=True).values.tolist() for one in counts[:num_content]],
        depths=_depths(own, table.level_sizes),
        groups_before=group_shares((size, size * count) for size, count in groups),
        num_categories=len(items.names),
        num_with_category=int((items.categories[table.rows] != NO_CATEGORY).sum()),
        tiers=_tiers(table, items),
    )


def _tier_members(items: Items) -> dict[str, NDArray[np.bool_]]:
    """Divide items into head, torso, tail and cold as the evaluation does, [N] each."""
    counts = torch.from_numpy(items.popularity)
    every = Jagged(torch.arange(len(counts)), torch.arange(len(counts) + 1))
    found = {}
    for part in item_popularity_slices(every, counts):
        inside = part.targets.numpy().copy()
        inside[0] = False
        if inside.any():
            found[part.name] = inside
    return found


def _tiers(table: IdTable, items: Items) -> list[Tier]:
    alone = prefix_counts(table.own.long(), table.level_sizes).numpy() == 1  # [M, L]
    found = []
    for name, inside in _tier_members(items).items():
        own = inside[table.rows]
        codes = table.codes[table.rows[own]]
        used = [
            np.count_nonzero(np.bincount(codes[:, level])) / size
            for level, size in enumerate(table.level_sizes)
        ]
        shares = alone[own].mean(0) if own.any() else np.zeros(table.num_levels)
        found.append(
            Tier(
                name=name,
                num_items=int(inside.sum()),
                num_with_id=int(own.sum()),
                codes_used=tuple(used),
                alone=tuple(shares.tolist()),
            )
        )
    return found


@dataclass(frozen=True, kw_only=True)
class Collisions:
    """The largest groups of items with equal codes."""

    groups: Sequence[tuple[str, tuple[int, ...]]] = ()
    """Codes and item rows."""
    num_groups: int = 0
    num_items: int = 0
    """In groups of two or more."""
    words: str
    """Meaning of the codes, or why they are not known."""


def collisions_of(codes: NDArray[np.int32], sizes: tuple[int, ...], words: str) -> Collisions:
    """Group item rows by equal codes [N, l], the largest groups first."""
    rows = np.flatnonzero(codes[:, 0] != NO_CODE)
    keys = id_keys(torch.from_numpy(np.asarray(codes)[rows]), sizes).numpy()
    groups = [members for members in grouped(rows, keys).values() if len(members) > 1]
    groups.sort(key=lambda members: -len(members))
    return Collisions(
        groups=[
            (prefix_text(codes[members[0]].tolist()), tuple(members.tolist()))
            for members in groups[:MOST_GROUPS]
        ],
        num_groups=len(groups),
        num_items=sum(map(len, groups)),
        words=words,
    )


@dataclass(frozen=True, kw_only=True)
class ChangedCode:
    """A first code of both versions."""

    before: Group
    after: Group
    overlap: float
    """Items of both over items of either, among those with an ID in both versions."""


@dataclass(frozen=True, kw_only=True)
class Drift:
    """A comparison of two versions over the items of a catalogue.

    Without equal level sizes no code means the same, and only the versions are known.
    """

    before: str
    after: str
    sizes: tuple[tuple[int, ...], tuple[int, ...]]
    kept: KeptShares | None = None
    by_popularity: Mapping[str, KeptShares] = field(default_factory=dict)
    num_added: int = 0
    num_removed: int = 0
    id_rows: tuple[int, int] = (0, 0)
    """Ever given out, before and after."""
    vocabularies: Sequence[tuple[int, ...]] = ()
    """Codes of each level: all, used before, used after, newly used, no longer used."""
    codes: Sequence[ChangedCode] = ()
    """First codes, the most changed first."""
    moves: Sequence[tuple[int, int, int, tuple[str, ...]]] = ()
    """First code before and after, items and the titles of the most popular, largest first."""
    moved: Sequence[tuple[str, str, str, int]] = ()
    """Title, ID before and after, and codes kept, of the most popular moved items."""

    @property
    def num_changed(self) -> int:
        """First codes that mean something else."""
        return sum(code.overlap < SAME_MEANING for code in self.codes)


def _kept(before: NDArray[np.int32], after: NDArray[np.int32]) -> KeptShares:
    """Compare codes [M, L]; 1 without any."""
    same = before == after
    if not len(same):
        same = np.ones((1, before.shape[1]), np.bool_)
    prefix = np.logical_and.accumulate(same, axis=1)
    return KeptShares(
        num_items=len(before),
        full=float(prefix[:, -1].mean()),
        per_level=tuple(same.mean(0).tolist()),
        per_prefix=tuple(prefix.mean(0).tolist()),
    )


def drift_of(before: IdTable, after: IdTable, items: Items) -> Drift:
    """Compare two versions."""
    names, sizes = (before.version, after.version), (before.level_sizes, after.level_sizes)
    if sizes[0] != sizes[1]:
        return Drift(before=names[0], after=names[1], sizes=sizes)
    had, has = before.codes[:, 0] != NO_CODE, after.codes[:, 0] != NO_CODE
    both = had & has
    rows = np.flatnonzero(both)
    old, new = (one.codes[rows, 0].astype(np.int64) for one in (before, after))
    moved, size = old != new, sizes[0][0]
    moves = sorted(
        grouped(rows[moved], old[moved] * size + new[moved]).items(), key=lambda one: -len(one[1])
    )
    return Drift(
        before=names[0],
        after=names[1],
        sizes=sizes,
        kept=_kept(before.codes[both], after.codes[both]),
        by_popularity={
            name: _kept(before.codes[inside & both], after.codes[inside & both])
            for name, inside in _tier_members(items).items()
            if (inside & both).any()
        },
        num_added=int((has & ~had).sum()),
        num_removed=int((had & ~has).sum()),
        id_rows=(before.num_id_rows, after.num_id_rows),
        vocabularies=[_vocabulary(before, after, level) for level in range(after.num_levels)],
        codes=_changed(rows, old, new, items),
        moves=[
            (cell // size, cell % size, len(who), group_of(items, (), who, len(rows)).titles)
            for cell, who in moves[:MOST_MOVES]
        ],
        moved=_moved(before, after, rows, items),
    )


def _vocabulary(before: IdTable, after: IdTable, level: int) -> tuple[int, ...]:
    size = after.level_sizes[level]
    old, new = (
        np.bincount(one.codes[one.rows, level], minlength=size) > 0 for one in (before, after)
    )
    return (size, *(int(one.sum()) for one in (old, new, new & ~old, old & ~new)))


def _changed(rows: Rows, old: Rows, new: Rows, items: Items) -> list[ChangedCode]:
    earlier, later = grouped(rows, old), grouped(rows, new)
    stayed = np.bincount(old[old == new], minlength=max([*earlier, *later, 0]) + 1)
    none = np.zeros(0, np.int64)
    found = []
    for code in sorted(earlier.keys() | later.keys()):
        was, now = earlier.get(code, none), later.get(code, none)
        common = int(stayed[code])
        found.append(
            ChangedCode(
                before=group_of(items, (code,), was, len(rows)),
                after=group_of(items, (code,), now, len(rows)),
                overlap=common / (len(was) + len(now) - common),
            )
        )
    return sorted(found, key=lambda one: (one.overlap, -one.before.num_items))


def _moved(
    before: IdTable, after: IdTable, rows: Rows, items: Items
) -> list[tuple[str, str, str, int]]:
    """List the most popular moved items of each level that is the first to differ."""
    same = np.logical_and.accumulate(before.codes[rows] == after.codes[rows], axis=1).sum(1)
    return [
        (items.title(row), before.text(row), after.text(row), level)
        for level in range(after.num_levels)
        for row in most_popular(items, rows[same == level], MOVED_EACH)
    ]


@dataclass(frozen=True, kw_only=True)
class PrefixExample:
    """An item with the items that share its prefixes and its nearest neighbours by content."""

    kind: Literal["popular", "tail", "spread"]
    title: str
    category: str
    popularity: float
    semantic_id: str
    groups: Sequence[tuple[int, int, Sequence[tuple[str, str, int]]]]
    """Codes shared, items that share them, and those that share no more; longest prefix first."""
    nearest: Sequence[tuple[str, str, int]]
    """Title, ID and shared codes of the nearest by content."""


def choose_examples(table: IdTable, items: Items, vectors: Tensor) -> list[PrefixExample]:
    """Choose popular items and some of the tail, each with another first code.

    If nothing is popular, rows are evenly spread.

    Args:
        vectors: Content by item row, [N, D].
    """
    rows = np.sort(table.rows)
    if not items.popularity[rows].any():
        step = max(1, len(rows) // (2 * NUM_EACH))
        spread = rows[::step][: 2 * NUM_EACH].tolist()
        return [_example(table, items, vectors, row, "spread") for row in spread]
    order = rows[np.lexsort((rows, -items.popularity[rows]))].tolist()
    popular = _of_other_codes(order, table, NUM_EACH)
    tail = _of_other_codes([row for row in reversed(order) if row not in popular], table, NUM_EACH)
    return [
        *(_example(table, items, vectors, row, "popular") for row in popular),
        *(_example(table, items, vectors, row, "tail") for row in tail),
    ]


def _of_other_codes(rows: Sequence[int], table: IdTable, most: int) -> list[int]:
    """Return rows in order while their first codes differ, then the first of the others."""
    first: dict[int, int] = {}
    for row in rows:
        first.setdefault(int(table.codes[row, 0]), row)
        if len(first) == most:
            break
    chosen = list(first.values())
    return [*chosen, *(row for row in rows[:most] if row not in chosen)][:most]


def _example(
    table: IdTable,
    items: Items,
    vectors: Tensor,
    row: int,
    kind: Literal["popular", "tail", "spread"],
) -> PrefixExample:
    rows = np.sort(table.rows)
    rows = rows[rows != row]
    same = table.codes[rows] == table.codes[row]
    shared = np.logical_and.accumulate(same, axis=1).sum(1)
    # The nearest by content come first.
    one = vectors[row].float()[None]
    cosines = torch.nn.functional.cosine_similarity(vectors[rows].float(), one)
    order = cosines.sort(descending=True, stable=True).indices.numpy()
    rows, shared = rows[order], shared[order]

    def listed(inside: NDArray[np.bool_]) -> list[tuple[str, str, int]]:
        some = rows[inside][:LISTED].tolist(), shared[inside][:LISTED].tolist()
        return [
            (items.title(one), table.text(one), depth) for one, depth in zip(*some, strict=True)
        ]

    return PrefixExample(
        kind=kind,
        title=items.title(row),
        category=items.category(row),
        popularity=float(items.popularity[row]),
        semantic_id=table.text(row),
        groups=[
            (depth, int((shared >= depth).sum()), listed(shared == depth))
            for depth in range(table.num_levels - 1, 0, -1)
        ],
        nearest=listed(np.ones(len(rows), np.bool_)),
    )
