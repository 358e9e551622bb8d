"""Semantic IDs from behaviour, with a quantiser of content for new items.

A generative model predicts codes better if they group items that follow each other, of which
content says little: on Amazon Beauty, IDs from a sequence model's item vectors gave a quarter more
hits than IDs from content. Items are encoded by their behaviour vectors. The published quantiser is
in the space of the content: the vector of a code is the mean content of its items, level by level,
so that new items are encoded by content.

Axes: N item rows (row 0 is padding), L levels, K codes of a level, D width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from recsys.semantic_ids.codes import NO_CODE, SemanticIds
from recsys.semantic_ids.collisions import item_rows_with_content, resolve_collisions
from recsys.semantic_ids.rq_kmeans import Centres, ResidualKMeans, ResidualKMeansConfig

FAR = 1e3
"""Largest squared lengths by which a code without items is out of reach."""


class BehaviourIds(NamedTuple):
    """IDs of a catalogue, and the quantiser for new items."""

    ids: SemanticIds
    quantizer: ResidualKMeans
    """In the space of the content."""


def behaviour_ids(
    behaviour: Tensor,
    content: Tensor,
    config: ResidualKMeansConfig,
    start: SemanticIds | None = None,
) -> BehaviourIds:
    """Return every item row with content an ID by its behaviour.

    Args:
        behaviour: Item vectors of a sequence model, [N, D]; row 0 is not read.
        content: Content embeddings, [N, D']; rows that are zero get no ID.
    """
    has_content = item_rows_with_content(content)
    rows = has_content.nonzero().flatten()
    vectors = behaviour[rows].float()
    warm = None if start is None else _warm(behaviour, has_content, start, config.level_sizes)
    fitted = ResidualKMeans.fit(vectors, config, start=warm)
    unique = resolve_collisions(fitted, vectors, fitted.encode(vectors))
    quantizer = ResidualKMeans(means_of_codes(content[rows], unique.codes, config.level_sizes))
    return BehaviourIds(unique.at(rows, len(content), quantizer), quantizer)


def means_of_codes(vectors: Tensor, codes: Tensor, level_sizes: tuple[int, ...]) -> list[Centres]:
    """Compute the mean residual of each code's items, level by level.

    Args:
        vectors: [M, D].
        codes: Of the same items, [M, L] or more levels.
    """
    residual = vectors.float()
    levels = []
    for level, size in enumerate(level_sizes):
        chosen = codes[:, level].long()
        counts = torch.bincount(chosen, minlength=size)[:, None]
        sums = residual.new_zeros(size, residual.shape[1]).index_add_(0, chosen, residual)
        centres = sums / counts.clamp(min=1)
        # A code without items must never be the nearest.
        penalties = (counts[:, 0] == 0) * residual.square().sum(1).max() * FAR
        levels.append(Centres(centres, penalties.to(centres.dtype)))
        residual = residual - centres[chosen]
    return levels


def _warm(
    behaviour: Tensor, has_content: Tensor, start: SemanticIds, level_sizes: tuple[int, ...]
) -> ResidualKMeans | None:
    """Build a quantiser of behaviour from the means of the published codes' items."""
    size = min(len(behaviour), start.num_item_rows)
    known = (start.codes[:size, 0] != NO_CODE) & has_content[:size].cpu()
    if not bool(known.any()) or start.level_sizes[: len(level_sizes)] != level_sizes:
        return None
    rows = known.nonzero().flatten().to(behaviour.device)
    codes = start.codes[:size][known].to(behaviour.device)
    levels = means_of_codes(behaviour[rows], codes, level_sizes)
    # A code that lost its items may get others.
    return ResidualKMeans([Centres(one.vectors, torch.zeros_like(one.penalties)) for one in levels])
