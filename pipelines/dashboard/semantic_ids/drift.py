"""What changed from one version to another, over the items of a run.

Axes: N item rows, L levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipelines.dashboard.semantic_ids.catalogue import Items, Rows
from pipelines.dashboard.semantic_ids.measures import tier_numbers
from pipelines.dashboard.semantic_ids.tree import Group, group_of
from pipelines.dashboard.semantic_ids.versions import IdTable
from recsys.semantic_ids.codes import NO_CODE
from recsys.semantic_ids.lifecycle import KeptShares

MOST_MOVES = 20
SAME_MEANING = 0.5
"""A first code means something else where it shares fewer of its items with what it had."""


@dataclass(frozen=True, kw_only=True)
class KeptBy:
    """What some of the items in both versions kept."""

    name: str
    kept: KeptShares


@dataclass(frozen=True, kw_only=True)
class ChangedCode:
    """A first code of both versions."""

    before: Group
    after: Group
    overlap: float
    """Items of both over items of either, among those with an ID in both versions."""


@dataclass(frozen=True, kw_only=True)
class Move:
    """Items that went from one first code to another."""

    before: int
    after: int
    num_items: int
    titles: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Codes of a level that items have."""

    size: int
    used_before: int
    used_after: int
    appended: int
    """Used in the later version alone."""
    gone: int


@dataclass(frozen=True, kw_only=True)
class Drift:
    """A comparison of two versions of equal level sizes."""

    everyone: KeptShares
    parts: Sequence[KeptBy]
    """By popularity."""
    num_added: int
    num_removed: int
    id_rows: tuple[int, int]
    """Ever given out, before and after."""
    vocabularies: Sequence[Vocabulary]
    codes: Sequence[ChangedCode]
    """First codes, the most changed first."""
    moves: Sequence[Move]
    """The largest first."""

    @property
    def num_changed(self) -> int:
        """First codes that mean something else."""
        return sum(code.overlap < SAME_MEANING for code in self.codes)


def _kept(before: NDArray[np.int32], after: NDArray[np.int32]) -> KeptShares:
    """Compare codes [M, L]; 1 where there are none."""
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


def compare(before: IdTable, after: IdTable, items: Items) -> Drift | None:
    """Compare two versions; None where their levels differ, so that no code means the same."""
    if before.level_sizes != after.level_sizes:
        return None
    had, has = before.codes[:, 0] != NO_CODE, after.codes[:, 0] != NO_CODE
    both = had & has
    parts = [
        KeptBy(name=name, kept=_kept(before.codes[inside & both], after.codes[inside & both]))
        for name, inside in tier_numbers(items).items()
        if (inside & both).any()
    ]
    rows = np.flatnonzero(both)
    old, new = (one.codes[rows, 0].astype(np.int64) for one in (before, after))
    return Drift(
        everyone=_kept(before.codes[both], after.codes[both]),
        parts=parts,
        num_added=int((has & ~had).sum()),
        num_removed=int((had & ~has).sum()),
        id_rows=(before.num_id_rows, after.num_id_rows),
        vocabularies=[_vocabulary(before, after, level) for level in range(after.num_levels)],
        codes=_changed(rows, old, new, items),
        moves=_moves(rows, old, new, items, after.level_sizes[0]),
    )


def _vocabulary(before: IdTable, after: IdTable, level: int) -> Vocabulary:
    size = after.level_sizes[level]
    old, new = (
        np.bincount(one.codes[one.rows, level], minlength=size) > 0 for one in (before, after)
    )
    return Vocabulary(
        size=size,
        used_before=int(old.sum()),
        used_after=int(new.sum()),
        appended=int((new & ~old).sum()),
        gone=int((old & ~new).sum()),
    )


def _grouped(rows: Rows, values: Rows) -> dict[int, Rows]:
    """Part item rows by a value, the rows of each ascending."""
    order = np.argsort(values, kind="stable")
    starts = np.flatnonzero(np.diff(values[order], prepend=-1))
    members = np.split(rows[order], starts[1:])
    return dict(zip(values[order][starts].tolist(), members, strict=bool(len(starts))))


def _changed(rows: Rows, old: Rows, new: Rows, items: Items) -> list[ChangedCode]:
    earlier, later = _grouped(rows, old), _grouped(rows, new)
    stayed = np.bincount(old[old == new], minlength=max([*earlier, *later, 0]) + 1)
    nobody = np.zeros(0, np.int64)
    found = []
    for code in sorted(earlier.keys() | later.keys()):
        was, now = earlier.get(code, nobody), later.get(code, nobody)
        common = int(stayed[code])
        found.append(
            ChangedCode(
                before=group_of(items, (code,), was, len(rows)),
                after=group_of(items, (code,), now, len(rows)),
                overlap=common / (len(was) + len(now) - common),
            )
        )
    return sorted(found, key=lambda one: (one.overlap, -one.before.num_items))


def _moves(rows: Rows, old: Rows, new: Rows, items: Items, size: int) -> list[Move]:
    moved = old != new
    groups = _grouped(rows[moved], old[moved] * size + new[moved])
    largest = sorted(groups.items(), key=lambda one: -len(one[1]))[:MOST_MOVES]
    return [
        Move(
            before=cell // size,
            after=cell % size,
            num_items=len(who),
            titles=group_of(items, (), who, len(rows)).titles,
        )
        for cell, who in largest
    ]
