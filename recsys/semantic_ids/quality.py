"""Quality of semantic IDs, measured before any model is trained on them.

Axes: N items, L levels, K codes of a level, D width, Q sampled items, n neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from recsys.semantic_ids.codes import NO_CODE, SemanticIds, id_keys
from recsys.semantic_ids.rq_kmeans import CHUNK_ROWS, ResidualKMeans

NUM_SAMPLED, NUM_NEIGHBOURS = 2_000, 10
"""Items whose neighbours are compared, and neighbours of each."""


@dataclass(frozen=True, kw_only=True)
class LevelQuality:
    """One level.

    ``perplexity``: 2^entropy of the codes' shares, the number of codes used as if evenly.
    ``neighbour_agreement``: share of an item's nearest neighbours by content that have its prefix
    up to this level; ``agreement_by_chance``: the same for items drawn at random.
    """

    size: int
    num_used: int
    utilisation: float
    perplexity: float
    num_prefixes: int
    neighbour_agreement: float
    agreement_by_chance: float


@dataclass(frozen=True, kw_only=True)
class QualityReport:
    """One version of IDs.

    ``levels``: as encoded, before collisions are resolved; ``published``: afterwards, with a level
    that resolves collisions where there is one. ``collisions_before``: items that share their codes
    with an earlier item, as encoded. ``largest_group``: most items with one code sequence.
    ``moved[l]``: share of items whose code at level l was changed to make IDs unique.
    ``reconstruction_error``: squared error over the variance, 1 where all items are replaced by
    their mean; ``errors_by_level[l]``: the same of the first l + 1 codes alone.
    """

    version: str
    num_items: int
    levels: tuple[LevelQuality, ...]
    published: tuple[LevelQuality, ...]
    collisions_before: int
    largest_group: int
    collisions_after: int
    moved: tuple[float, ...]
    reconstruction_error: float
    errors_by_level: tuple[float, ...]


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


def level_qualities(
    codes: Tensor, level_sizes: tuple[int, ...], neighbours: Tensor, queries: Tensor
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
                perplexity=2**entropy,
                num_prefixes=len(group_sizes),
                neighbour_agreement=float((keys[neighbours] == keys[queries, None]).double().mean())
                if neighbours.numel()
                else 0.0,
                agreement_by_chance=same / max(1, pairs),
            )
        )
    return tuple(qualities)


def quality_report(
    quantizer: ResidualKMeans, vectors: Tensor, ids: SemanticIds, *, item_rows: Tensor | None = None
) -> QualityReport:
    """Measure IDs that ``quantizer`` made of vectors.

    Args:
        vectors: One per item row, [num_item_rows, D], row 0 the padding.
        item_rows: Measure these rows alone, [M]; None means all that have an ID. Rows of items
            that are no longer sold keep their ID and have no vector.
    """
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
    kept_levels = published[:, : len(sizes)]
    errors = [
        reconstruction_error(quantizer, content, codes[:, : level + 1])
        for level in range(len(sizes))
    ]
    return QualityReport(
        version=ids.version,
        num_items=len(rows),
        levels=level_qualities(codes, sizes, neighbours, queries),
        published=level_qualities(published, ids.level_sizes, neighbours, queries),
        collisions_before=len(rows) - len(groups),
        largest_group=int(groups.max()),
        collisions_after=len(rows) - len(torch.unique(id_keys(published, ids.level_sizes))),
        moved=tuple((kept_levels != codes).double().mean(0).tolist()),
        reconstruction_error=errors[-1],
        errors_by_level=tuple(errors),
    )
