"""Semantic IDs from what people take together, for items that content then places.

Codes that a generative model predicts should group what follows on what, of which content alone
says little: on Amazon Beauty IDs from a sequence model's item vectors gave a generator a quarter
more hits than IDs from content. Items get the codes of their behaviour vectors. The quantiser that
is published beside them lives in the space of the content: each code stands where the content of
its items is on average, level by level, so that an item that nobody has met gets codes by content.

Axes: N item rows (row 0 is padding), L levels, K codes of a level, D width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from recsys.semantic_ids.codes import SemanticIds
from recsys.semantic_ids.collisions import resolve_collisions, rows_with_content
from recsys.semantic_ids.kmeans import Centres
from recsys.semantic_ids.rq_kmeans import ResidualKMeans, ResidualKMeansConfig

FAR = 1e3
"""Largest squared lengths by which a code without items is out of reach."""


class BehaviourIds(NamedTuple):
    """IDs of a catalogue, and what gives new items theirs."""

    ids: SemanticIds
    quantizer: ResidualKMeans
    """In the space of the content."""


def behaviour_ids(behaviour: Tensor, content: Tensor, config: ResidualKMeansConfig) -> BehaviourIds:
    """Give every item row with content an ID by its behaviour.

    Args:
        behaviour: A vector of each item that says what it is taken with, [N, D], such as a
            sequence model's; row 0 is not read.
        content: Content embeddings, [N, D']; rows that are zero get no ID.
        config: Levels and how the codebooks are fitted.

    Raises:
        ValueError: The two are of different items, or there are fewer items than codes of a level.
    """
    if len(behaviour) != len(content):
        raise ValueError(
            f"{len(behaviour)} behaviour vectors and {len(content)} content vectors; give one of "
            "each to every item row"
        )
    has_content = rows_with_content(content)
    has_content[0] = False
    rows = has_content.nonzero().flatten()
    vectors = behaviour[rows].float()
    fitted = ResidualKMeans.fit(vectors, config)
    unique = resolve_collisions(fitted, vectors, fitted.encode(vectors))
    quantizer = _among_content(content[rows], unique.codes, config.level_sizes)
    ids = SemanticIds.of_items(
        unique.codes,
        level_sizes=unique.level_sizes,
        quantizer_digest=quantizer.digest,
        item_rows=rows,
        num_item_rows=len(content),
    )
    return BehaviourIds(ids, quantizer)


def _among_content(content: Tensor, codes: Tensor, level_sizes: tuple[int, ...]) -> ResidualKMeans:
    """Put each code where the content that is left of its items is on average."""
    residual = content.float()
    levels = []
    for level, size in enumerate(level_sizes):
        chosen = codes[:, level].long()
        counts = torch.bincount(chosen, minlength=size)[:, None]
        sums = residual.new_zeros(size, residual.shape[1]).index_add_(0, chosen, residual)
        centres = sums / counts.clamp(min=1)
        # A code that no item has is nobody's nearest.
        penalties = (counts[:, 0] == 0) * residual.square().sum(1).max() * FAR
        levels.append(Centres(centres, penalties.to(centres.dtype)))
        residual = residual - centres[chosen]
    return ResidualKMeans(levels)
