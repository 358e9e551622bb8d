"""Numbers of one version for the figures of the report of semantic IDs, from its table of codes.

Content neighbours are measured by the run that makes a version; all else is computed here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pipelines.dashboard.semantic_ids.catalogue import Items, Rows
from pipelines.dashboard.semantic_ids.versions import IdTable, Source
from pipelines.pages.semantic_ids.numbers import (
    Counts,
    Depth,
    SemanticIdReport,
    depths_of,
    group_shares,
)
from recsys.data.batch import Jagged
from recsys.evaluation.slices import item_popularity_slices
from recsys.semantic_ids.purity import NO_CATEGORY
from recsys.semantic_ids.quality import LevelQuality, QualityReport, code_counts


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One version."""

    report: SemanticIdReport
    is_known: bool
    """Whether the run that made the version says how."""
    has_content: bool
    """Whether content neighbours were measured; without, the report's numbers of them are 0."""
    tiers: Sequence[Tier]


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


def measure(table: IdTable, items: Items, source: Source) -> Measured:
    """Compute a version's numbers.

    Raises:
        ValueError: No item of the catalogue has an ID.
    """
    if not len(table.rows):
        raise ValueError("no item of this run's catalogue has an ID in this version")
    made = source.report if source.report.get("version") == table.version else {}
    settings = source.settings if made else {}
    num_items = len(items.item_ids) - 1
    # Where nothing was measured, why an item has none is not known.
    without = int(made.get("num_without_content", num_items - len(table.rows)))
    counts = code_counts(table.own, table.level_sizes)
    depths = depths_of(table.own, table.level_sizes)
    has_content = "quality" in made
    try:
        quality, num_content = _quality(table, items, made, counts, depths)
    except (KeyError, TypeError, ValueError):
        # Measured by another version of recsys.
        has_content = False
        quality, num_content = _quality(table, items, {}, counts, depths)
    report = SemanticIdReport(
        title=source.run.name,
        version=table.version,
        parent=table.parent,
        method=made.get("method", "unknown"),
        how=made.get("how", "published"),
        encoder=made.get("origin", {}).get("encoder", "unknown"),
        quantizer_digest="",
        level_sizes=table.level_sizes,
        num_content_levels=num_content,
        settings=settings,
        counts=Counts(
            num_items=num_items,
            num_with_id=len(table.rows),
            num_without_content=without,
            num_without_id=num_items - len(table.rows),
            num_departed=table.num_departed,
            num_retired=0,
        ),
        quality=quality,
        usage=[one.sort(descending=True).values.tolist() for one in counts[:num_content]],
        depths=depths,
        groups_before=group_shares((size, size * count) for size, count in quality.groups_before),
        groups_after=depths[-1].shares,
        num_categories=len(items.names),
        num_with_category=int((items.categories[table.rows] != NO_CATEGORY).sum()),
        examples=[],
        drift=None,
    )
    return Measured(
        report=report,
        is_known=bool(made),
        has_content=has_content,
        tiers=tiers_of(table, items),
    )


def _quality(
    table: IdTable,
    items: Items,
    made: Mapping[str, Any],
    counts: Sequence[torch.Tensor],
    depths: Sequence[Depth],
) -> tuple[QualityReport, int]:
    """Take what was measured with the content, or count what the codes say alone."""
    purities = [
        purity_of(table, items.categories, level) if items.names else (None, None)
        for level in range(table.num_levels - 1)
    ] + [(None, None)]
    if "quality" in made:
        known = dict(made["quality"])
        names = ("moved", "errors_by_level")
        known |= {name: tuple(known[name]) for name in names}
        known["groups_before"] = tuple(tuple(pair) for pair in known["groups_before"])
        for name in ("levels", "published"):
            known[name] = tuple(LevelQuality(**level) for level in known[name])
        # Reports of earlier versions have a field for it.
        known.pop("drift", None)
        quality = QualityReport(**known)
        published = [
            replace(level, purity=own, purity_by_chance=chance)
            for level, (own, chance) in zip(quality.published, purities, strict=True)
        ]
        return replace(quality, published=tuple(published)), len(quality.levels)
    levels = tuple(
        _level(count, depth, purity)
        for count, depth, purity in zip(counts, depths, purities, strict=True)
    )
    nothing = QualityReport(
        version=table.version,
        num_items=len(table.rows),
        levels=levels,
        published=levels,
        collisions_before=0,
        largest_group=0,
        groups_before=(),
        collisions_after=int((np.diff(table.keys) == 0).sum()),
        moved=(0.0,) * table.num_levels,
        reconstruction_error=0.0,
        errors_by_level=(),
        published_error=0.0,
    )
    return nothing, table.num_levels


def _level(
    counts: torch.Tensor, depth: Depth, purity: tuple[float | None, float | None]
) -> LevelQuality:
    """Describe a level by its codes alone."""
    used = counts[counts > 0].double()
    share = used / used.sum()
    entropy = abs(float(-(share * share.log2()).sum()))
    return LevelQuality(
        size=len(counts),
        num_used=len(used),
        utilisation=len(used) / len(counts),
        entropy_bits=entropy,
        perplexity=2**entropy,
        num_prefixes=depth.num_prefixes,
        purity=purity[0],
        purity_by_chance=purity[1],
        neighbour_agreement=0.0,
        agreement_by_chance=0.0,
    )


def purity_of(table: IdTable, categories: Rows, level: int) -> tuple[float, float]:
    """Share of items in the commonest category of their prefix, and with categories shuffled."""
    own = categories[table.rows]
    known = own != NO_CATEGORY
    prefixes, own = table.keys[known] // prod(table.level_sizes[level + 1 :]), own[known]
    shuffled = np.random.default_rng(0).permutation(own)
    return _purity(prefixes, own), _purity(prefixes, shuffled)


def _purity(prefixes: Rows, categories: Rows) -> float:
    if not len(categories):
        return 0.0
    num_categories = int(categories.max()) + 1
    cells = np.sort(prefixes * num_categories + categories)
    starts = np.flatnonzero(np.diff(cells, prepend=-1))
    counts = np.diff(np.append(starts, len(cells)))
    of_prefix = np.flatnonzero(np.diff(cells[starts] // num_categories, prepend=-1))
    return float(np.maximum.reduceat(counts, of_prefix).sum() / len(cells))


def tier_numbers(items: Items) -> dict[str, NDArray[np.bool_]]:
    """Part items into head, torso, tail and cold as the evaluation does, [N] each."""
    counts = torch.from_numpy(items.popularity)
    rows = torch.arange(len(counts))
    parts = item_popularity_slices(Jagged(rows, torch.arange(len(counts) + 1)), counts)
    found = {}
    for part in parts:
        inside = part.targets.numpy().copy()
        inside[0] = False
        found[part.name] = inside
    return found


def tiers_of(table: IdTable, items: Items) -> list[Tier]:
    """Measure each popularity that an item has."""
    alone = []
    for level in range(table.num_levels):
        prefixes = table.keys // prod(table.level_sizes[level + 1 :])
        starts = np.flatnonzero(np.diff(prefixes, prepend=-1))
        sizes = np.diff(np.append(starts, len(prefixes)))
        alone.append(np.repeat(sizes == 1, sizes))
    found = []
    for name, inside in tier_numbers(items).items():
        if not inside.any():
            continue
        own = inside[table.rows]
        codes = table.codes[table.rows[own]]
        used = [
            np.count_nonzero(np.bincount(codes[:, level])) / size
            for level, size in enumerate(table.level_sizes)
        ]
        found.append(
            Tier(
                name=name,
                num_items=int(inside.sum()),
                num_with_id=int(own.sum()),
                codes_used=tuple(used),
                alone=tuple(float(one[own].mean()) if own.any() else 0.0 for one in alone),
            )
        )
    return found
