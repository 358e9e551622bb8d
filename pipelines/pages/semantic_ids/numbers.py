"""The measurements of a report of semantic IDs.

Axes: N item rows (row 0 is padding), I id rows (row 0 is none), L levels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pipelines.config.content import BEHAVIOUR
from pipelines.pages.semantic_ids.data import ReportedIds
from pipelines.pages.semantic_ids.examples import (
    MovedItem,
    Neighbourhood,
    PrefixExample,
    moved_items,
    prefix_examples,
)
from recsys.semantic_ids.codes import NO_CODE
from recsys.semantic_ids.collisions import rows_with_content
from recsys.semantic_ids.lifecycle import KeptShares, kept_shares
from recsys.semantic_ids.purity import main_categories
from recsys.semantic_ids.quality import (
    QualityReport,
    code_counts,
    prefix_counts,
    quality_report,
)

GROUP_SIZES = {"alone": 1, "2 to 5": 5, "6 to 20": 20, "21 to 100": 100, "over 100": None}
"""Largest number of items of each group size."""


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Items with and without an ID; the first four count items of the catalogue."""

    num_items: int
    num_with_id: int
    num_without_content: int
    """Without an ID because they have no content."""
    num_without_id: int
    num_departed: int
    """IDs of items that are no longer in the catalogue."""
    num_retired: int


@dataclass(frozen=True, kw_only=True)
class Depth:
    """How far the first ``num_codes`` codes narrow the catalogue."""

    num_codes: int
    num_prefixes: int
    median_items: int
    """Items with an item's prefix, itself included; median over items."""
    largest: int
    shares: Mapping[str, float]
    """Share of items by the size of their group, see ``GROUP_SIZES``."""


@dataclass(frozen=True, kw_only=True)
class VersionDrift:
    """Comparison with another version, over the items that have an ID in both."""

    previous_version: str
    previous_level_sizes: tuple[int, ...]
    kept: KeptShares | None
    """None where the level sizes differ."""
    num_added: int
    num_removed: int
    moved: list[MovedItem]


@dataclass(frozen=True, kw_only=True)
class SemanticIdReport:
    """One report."""

    title: str
    version: str
    parent: str | None
    method: str
    how: str
    encoder: str
    quantizer_digest: str
    level_sizes: tuple[int, ...]
    num_content_levels: int
    """Levels of the quantiser; one after these resolves collisions."""
    settings: Mapping[str, Any]
    counts: Counts
    quality: QualityReport
    usage: list[list[int]]
    """Items of each code of a quantiser level, as published, most used first."""
    depths: list[Depth]
    groups_before: Mapping[str, float]
    """Share of items by the number with the same codes, as encoded."""
    groups_after: Mapping[str, float]
    num_categories: int
    num_with_category: int
    examples: list[PrefixExample]
    drift: VersionDrift | None

    @property
    def is_of_behaviour(self) -> bool:
        """Whether the codes come from behaviour, so that content alone gives others."""
        return self.settings.get("source") == BEHAVIOUR


def group_shares(sizes: Iterable[tuple[int, int]]) -> dict[str, float]:
    """Compute the share of items by group size.

    Args:
        sizes: (size of a group, items in groups of that size).
    """
    found = dict.fromkeys(GROUP_SIZES, 0)
    for size, count in sizes:
        part = next(name for name, most in GROUP_SIZES.items() if most is None or size <= most)
        found[part] += count
    total = max(1, sum(found.values()))
    return {name: count / total for name, count in found.items()}


def depths_of(codes: Tensor, level_sizes: tuple[int, ...]) -> list[Depth]:
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
                largest=max(sizes.tolist()),
                shares=group_shares(pairs),
            )
        )
    return found


def by_id_row(values: Tensor, id_rows: Tensor, size: int, nothing: float) -> Tensor:
    """Lay values by item row [N, ...] out by id row [size, ...]."""
    if len(id_rows) == size and torch.equal(id_rows, torch.arange(size)):
        return values
    out = torch.full((size, *values.shape[1:]), nothing, dtype=values.dtype)
    named = id_rows > 0
    out[id_rows[named]] = values[named]
    return out


def check(reported: ReportedIds) -> None:
    """Refuse tables that do not fit together.

    Raises:
        ValueError: Lengths differ, or an id row is named twice or does not exist.
    """
    catalogue, id_rows = reported.catalogue, reported.id_rows
    lengths = {
        "id_rows": len(id_rows),
        "vectors": len(reported.vectors),
        "titles": len(catalogue.titles),
        "categories": len(catalogue.categories),
        "popularity": len(catalogue.popularity),
    }
    if len(set(lengths.values())) > 1:
        raise ValueError(f"each needs a row for every item row and the padding, got {lengths}")
    named = id_rows[id_rows != 0]
    size = reported.ids.num_item_rows
    if len(named) and (named.min() < 0 or named.max() >= size):
        raise ValueError(
            f"id_rows run from {named.min()} to {named.max()}; version "
            f"{reported.ids.version[:12]} has rows [0, {size})"
        )
    if len(set(named.tolist())) < len(named):
        raise ValueError("id_rows name one id row for two item rows; each item has its own")


def counts_of(reported: ReportedIds, codes: Tensor) -> Counts:
    """Count items with an ID; codes by item row, [N, L]."""
    has_id = codes[1:, 0] != NO_CODE
    has_content = rows_with_content(reported.vectors[1:].float())
    return Counts(
        num_items=len(has_id),
        num_with_id=int(has_id.sum()),
        num_without_content=int((~has_id & ~has_content).sum()),
        num_without_id=int((~has_id).sum()),
        num_departed=len(reported.ids.item_rows) - int(has_id.sum()),
        num_retired=reported.num_retired,
    )


def drift_of(reported: ReportedIds, now: Neighbourhood, id_rows: Tensor) -> VersionDrift | None:
    """Compare with the previous version, if there is one."""
    previous = reported.previous
    if previous is None:
        return None
    comparable = previous.level_sizes == reported.ids.level_sizes
    before = Neighbourhood(reported, previous.by_item_row(id_rows).codes)
    has, had = set(reported.ids.item_rows.tolist()), set(previous.item_rows.tolist())
    return VersionDrift(
        previous_version=previous.version,
        previous_level_sizes=previous.level_sizes,
        kept=kept_shares(reported.ids, previous) if comparable else None,
        num_added=len(has - had),
        num_removed=len(had - has),
        moved=moved_items(now, before) if comparable else [],
    )


def numbers_of(reported: ReportedIds) -> SemanticIdReport:
    """Compute the measurements of a report.

    Raises:
        ValueError: The quantiser did not make the IDs, no item has one, or tables do not fit.
    """
    check(reported)
    ids, sizes = reported.ids, reported.quantizer.level_sizes
    id_rows = torch.from_numpy(reported.id_rows).long()
    codes = ids.by_item_row(id_rows).codes
    now = Neighbourhood(reported, codes)
    categories, names = main_categories(reported.catalogue.categories)
    quality = quality_report(
        reported.quantizer,
        by_id_row(reported.vectors, id_rows, ids.num_item_rows, 0.0),
        ids,
        categories=by_id_row(categories, id_rows, ids.num_item_rows, -1) if names else None,
        item_rows=id_rows[now.rows],
    )
    counts = code_counts(now.own, sizes)
    depths = depths_of(now.own, ids.level_sizes)
    return SemanticIdReport(
        title=reported.title,
        version=ids.version,
        parent=ids.parent,
        method=reported.settings.get("method", "unknown"),
        how=reported.how,
        encoder=reported.origin.get("encoder", "unknown"),
        quantizer_digest=ids.quantizer_digest,
        level_sizes=ids.level_sizes,
        num_content_levels=len(sizes),
        settings=reported.settings,
        counts=counts_of(reported, codes),
        quality=quality,
        usage=[one.sort(descending=True).values.tolist() for one in counts],
        depths=depths,
        groups_before=group_shares((size, size * count) for size, count in quality.groups_before),
        groups_after=depths[-1].shares,
        num_categories=len(names),
        num_with_category=int((categories[now.rows] >= 0).sum()),
        examples=prefix_examples(now),
        drift=drift_of(reported, now, id_rows),
    )
