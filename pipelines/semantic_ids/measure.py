"""The measurement of a version of semantic IDs, for the dashboard.

The run that makes a version measures its content (errors, neighbours, moved codes) and writes it
down; the rest is computed here from the table of codes.

Axes: N item rows (row 0 is padding), M items, L levels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from pipelines.config.content import BEHAVIOUR
from pipelines.semantic_ids.items import Items
from pipelines.semantic_ids.table import IdTable
from recsys.semantic_ids.codes import NO_CODE
from recsys.semantic_ids.lifecycle import KeptShares
from recsys.semantic_ids.quality import (
    NO_CATEGORY,
    LevelQuality,
    QualityReport,
    code_counts,
    level_qualities,
)

SAME_MEANING = 0.5
"""A first code means something else if it shares fewer of its items with those it had."""


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
    num_shared: int
    """Items that share their ID with an earlier one."""
    num_with_category: int
    levels: tuple[LevelQuality, ...]
    content: QualityReport | None
    """Measured with the content; None if it is not known."""
    num_content_levels: int
    """Levels of the quantiser; one after these resolves collisions."""
    usage: Sequence[Sequence[int]]
    """Items of each code of a quantiser level, most used first."""

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
    num_items = len(items.item_ids) - 1
    num_content = table.num_levels if content is None else len(content.levels)
    usage = code_counts(own, table.level_sizes)[:num_content]
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
        num_shared=int((np.diff(table.keys) == 0).sum()),
        num_with_category=int((items.categories[table.rows] != NO_CATEGORY).sum()),
        levels=levels,
        content=content,
        num_content_levels=num_content,
        usage=[one.sort(descending=True).values.tolist() for one in usage],
    )


@dataclass(frozen=True, kw_only=True)
class Drift:
    """A comparison of two versions over the items of a catalogue.

    Without equal level sizes no code means the same, and only the versions are known.
    """

    before: str
    after: str
    sizes: tuple[tuple[int, ...], tuple[int, ...]]
    kept: KeptShares | None = None
    num_added: int = 0
    num_removed: int = 0
    overlaps: Sequence[float] = ()
    """Items of a first code in both versions over those in either, the least first."""

    @property
    def num_changed(self) -> int:
        """First codes that mean something else."""
        return sum(overlap < SAME_MEANING for overlap in self.overlaps)


class IdsMeasurement(NamedTuple):
    """A version with everything that its page shows."""

    report: SemanticIdReport
    drift: Drift | None
    """None without a version to compare with."""
    table: IdTable
    items: Items


def measure_drift(before: IdTable, after: IdTable) -> Drift:
    """Compare two versions over the items with an ID in both."""
    names, sizes = (before.version, after.version), (before.level_sizes, after.level_sizes)
    if sizes[0] != sizes[1]:
        return Drift(before=names[0], after=names[1], sizes=sizes)
    had, has = before.codes[:, 0] != NO_CODE, after.codes[:, 0] != NO_CODE
    rows = np.flatnonzero(had & has)
    same = before.codes[rows] == after.codes[rows]  # [M, L]
    prefix = np.logical_and.accumulate(same, axis=1)
    old, new = (one.codes[rows, 0] for one in (before, after))
    was, now, common = (
        np.bincount(one, minlength=sizes[0][0]) for one in (old, new, old[old == new])
    )
    used = was + now > 0
    return Drift(
        before=names[0],
        after=names[1],
        sizes=sizes,
        kept=_kept(same, prefix),
        num_added=int((has & ~had).sum()),
        num_removed=int((had & ~has).sum()),
        overlaps=(common[used] / (was + now - common)[used]).tolist(),
    )


def _kept(same: NDArray[np.bool_], prefix: NDArray[np.bool_]) -> KeptShares:
    """Average equal codes [M, L]; 1 without any."""
    num_items = len(same)
    if not num_items:
        same = prefix = np.ones((1, same.shape[1]), np.bool_)
    return KeptShares(
        num_items=num_items,
        full=float(prefix[:, -1].mean()),
        per_level=tuple(same.mean(0).tolist()),
        per_prefix=tuple(prefix.mean(0).tolist()),
    )
