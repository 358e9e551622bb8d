"""Quality of semantic IDs, measured before any model is trained on them.

Purity is the share of items with one prefix in one category. Deep prefixes hold one item each and
are pure, so a purity is compared with that of the same prefixes with shuffled categories.

Axes: N items, L levels, K codes of a level, D width, Q sampled items, n neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from recsys.semantic_ids.codes import NO_CODE, SemanticIds, id_keys
from recsys.semantic_ids.rq_kmeans import CHUNK_ROWS, ResidualKMeans

NO_CATEGORY = -1
NUM_SHUFFLES = 5


def purity(prefix_keys: Tensor, categories: Tensor) -> float:
    """Share of items in the commonest category of their prefix, of those that have a category.

    Args:
        prefix_keys: [N] int64.
        categories: [N] int64, -1 for none.
    """
    known = categories != NO_CATEGORY
    categories = categories[known]
    if len(categories) == 0:
        return 0.0
    _, prefix = torch.unique(prefix_keys[known], return_inverse=True)
    num_categories = int(categories.max()) + 1
    cells, counts = torch.unique(prefix * num_categories + categories, return_counts=True)
    best = torch.zeros(int(prefix.max()) + 1, dtype=torch.int64, device=counts.device)
    best.scatter_reduce_(0, cells // num_categories, counts, "amax")
    return float(best.sum() / len(prefix))


def purity_by_chance(prefix_keys: Tensor, categories: Tensor) -> float:
    """Average the purity over a few shuffles of the categories among the items that have one."""
    known = categories != NO_CATEGORY
    keys, own = prefix_keys[known], categories[known]
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(NUM_SHUFFLES):
        order = torch.randperm(len(own), generator=generator).to(own.device)
        found.append(purity(keys, own[order]))
    return sum(found) / NUM_SHUFFLES


NUM_SAMPLED, NUM_NEIGHBOURS = 2_000, 10
"""Items whose neighbours are compared, and neighbours of each."""


@dataclass(frozen=True, kw_only=True)
class LevelQuality:
    """One level.

    ``entropy_bits`` of the codes' shares and ``perplexity`` = 2^entropy, the number of codes used
    as if evenly. ``purity``: share of items in the commonest category of their prefix up to this
    level; ``purity_by_chance``: the same with the categories shuffled. ``neighbour_agreement``:
    share of an item's nearest neighbours by content that have its prefix; ``agreement_by_chance``:
    the same for items drawn at random.
    """

    size: int
    num_used: int
    utilisation: float
    entropy_bits: float
    perplexity: float
    num_prefixes: int
    purity: float | None
    purity_by_chance: float | None
    neighbour_agreement: float
    agreement_by_chance: float


@dataclass(frozen=True, kw_only=True)
class QualityReport:
    """One version of IDs.

    ``levels``: as encoded, before collisions are resolved; ``published``: afterwards, with a level
    that resolves collisions where there is one. ``collisions_before``: items that share their codes
    with an earlier item, as encoded. ``largest_group``: most items with one code sequence;
    ``groups_before``: (items, number of sequences that this many items share), ascending.
    ``moved[l]``: share of items whose code at level l was changed to make IDs unique.
    ``reconstruction_error``: squared error over the variance, 1 where all items are replaced by
    their mean; ``errors_by_level[l]``: the same of the first l + 1 codes alone;
    ``published_error``: of the published codes.
    """

    version: str
    num_items: int
    levels: tuple[LevelQuality, ...]
    published: tuple[LevelQuality, ...]
    collisions_before: int
    largest_group: int
    groups_before: tuple[tuple[int, int], ...]
    collisions_after: int
    moved: tuple[float, ...]
    reconstruction_error: float
    errors_by_level: tuple[float, ...]
    published_error: float

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def reconstruction_error(quantizer: ResidualKMeans, vectors: Tensor, codes: Tensor) -> float:
    """Compute the squared error of [N, D] over the variance; 0 where both are 0.

    Args:
        codes: [N, l]; the first l levels rebuild the vectors alone.
    """
    mean = vectors.float().mean(0)
    error, variance = 0.0, 0.0
    for rows, of_rows in zip(
        torch.split(vectors, CHUNK_ROWS), torch.split(codes, CHUNK_ROWS), strict=True
    ):
        rebuilt = quantizer.decode(of_rows).to(rows.device)
        error += float((rows.float() - rebuilt).square().sum(dtype=torch.float64))
        variance += float((rows.float() - mean).square().sum(dtype=torch.float64))
    return error / variance if variance > 0 else float(error > 0)


def content_neighbours(vectors: Tensor, queries: Tensor, num_neighbours: int) -> Tensor:
    """Find the nearest other items, by cosine, of rows ``queries`` [Q]: [Q, n]."""
    unit = functional.normalize(vectors.float(), dim=1)
    found = []
    for some in torch.split(queries, max(1, 2**27 // len(unit))):
        scores = unit[some] @ unit.T
        scores[torch.arange(len(some), device=scores.device), some] = -torch.inf
        found.append(scores.topk(num_neighbours, dim=1).indices)
    return torch.cat(found)


def invalid_share(item_rows: Tensor, codes: Tensor) -> float | None:
    """Compute the share of listed items without an ID; None where nothing is listed.

    Args:
        codes: Of every item row, [N, L], -1 where an item has none.
    """
    listed = item_rows[item_rows != -1]
    inside = (listed > 0) & (listed < len(codes))
    valid = inside & (codes[listed.where(inside, 0)] >= 0).all(1)
    return float((~valid).double().mean()) if len(listed) else None


def level_qualities(
    codes: Tensor,
    level_sizes: tuple[int, ...],
    neighbours: Tensor,
    queries: Tensor,
    categories: Tensor | None = None,
) -> tuple[LevelQuality, ...]:
    """Describe each level of codes [N, L]; see ``LevelQuality``."""
    qualities = []
    for level, size in enumerate(level_sizes):
        counts = torch.bincount(codes[:, level], minlength=size)
        share = counts[counts > 0].double() / len(codes)
        entropy = float(-(share * share.log2()).sum())
        keys = id_keys(codes[:, : level + 1], level_sizes)
        group_sizes = torch.unique(keys, return_counts=True)[1].double()
        pairs = len(codes) * (len(codes) - 1)
        same = float((group_sizes * (group_sizes - 1)).sum())
        num_used = int((counts > 0).sum())
        qualities.append(
            LevelQuality(
                size=size,
                num_used=num_used,
                utilisation=num_used / size,
                entropy_bits=abs(entropy),
                perplexity=2**entropy,
                num_prefixes=len(group_sizes),
                purity=None if categories is None else purity(keys, categories),
                purity_by_chance=None if categories is None else purity_by_chance(keys, categories),
                neighbour_agreement=float((keys[neighbours] == keys[queries, None]).double().mean())
                if neighbours.numel()
                else 0.0,
                agreement_by_chance=same / max(1, pairs),
            )
        )
    return tuple(qualities)


def code_counts(codes: Tensor, level_sizes: Sequence[int]) -> list[Tensor]:
    """Count the items of each code, one [K] int64 a level."""
    return [
        torch.bincount(codes[:, level].long(), minlength=size)
        for level, size in enumerate(level_sizes)
    ]


def quality_report(
    quantizer: ResidualKMeans,
    vectors: Tensor,
    ids: SemanticIds,
    *,
    categories: Tensor | None = None,
    item_rows: Tensor | None = None,
) -> QualityReport:
    """Measure IDs that ``quantizer`` made of vectors.

    Args:
        vectors: One per item row, [num_item_rows, D], row 0 the padding.
        categories: A category's number per item row, [num_item_rows], -1 for none.
        item_rows: Measure these rows alone, [M]; None means all that have an ID. Rows of items
            that are no longer sold keep their ID and have no vector.
    """
    if ids.quantizer_digest != quantizer.digest:
        raise ValueError(
            f"version {ids.version[:12]} was made by quantiser {ids.quantizer_digest[:12]}, this "
            f"is {quantizer.digest[:12]}; load the quantiser saved with the IDs"
        )
    # Sorted, so that the sampled items do not depend on the order in which rows are named.
    rows = ids.item_rows if item_rows is None else torch.unique(item_rows.to(ids.item_rows))
    rows = rows[ids.codes[rows, 0] != NO_CODE].to(vectors.device)
    if len(rows) == 0:
        raise ValueError(f"version {ids.version[:12]} has no item with an ID, nothing to measure")
    content = vectors[rows]
    codes = quantizer.encode(content).long()
    sizes = quantizer.level_sizes
    groups = torch.unique(id_keys(codes, sizes), return_counts=True)[1]
    generator = torch.Generator().manual_seed(0)
    queries = torch.randperm(len(rows), generator=generator)[:NUM_SAMPLED].to(vectors.device)
    neighbours = content_neighbours(content, queries, min(NUM_NEIGHBOURS, len(rows) - 1))
    published = ids.codes.to(rows.device)[rows].long()
    of_rows = None if categories is None else categories.to(rows.device)[rows]
    kept_levels = published[:, : len(sizes)]
    errors = [
        reconstruction_error(quantizer, content, codes[:, : level + 1])
        for level in range(len(sizes))
    ]
    return QualityReport(
        version=ids.version,
        num_items=len(rows),
        levels=level_qualities(codes, sizes, neighbours, queries, of_rows),
        published=level_qualities(published, ids.level_sizes, neighbours, queries, of_rows),
        collisions_before=len(rows) - len(groups),
        largest_group=int(groups.max()),
        groups_before=tuple(
            (int(size), int(count))
            for size, count in zip(*torch.unique(groups, return_counts=True), strict=True)
        ),
        collisions_after=len(rows) - len(torch.unique(id_keys(published, ids.level_sizes))),
        moved=tuple((kept_levels != codes).double().mean(0).tolist()),
        reconstruction_error=errors[-1],
        errors_by_level=tuple(errors),
        published_error=reconstruction_error(quantizer, content, kept_levels),
    )
