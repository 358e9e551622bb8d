"""The sources of a bundle: where candidates come from, see ``recsys.retrieval.sources``.

Requests are ranked one by one, so that their scores do not depend on other requests.
"""

from __future__ import annotations

import recsys.models.names as names
from recsys.retrieval.generated import GeneratedSource
from recsys.retrieval.model_sources import (
    AdaptedSource,
    ContentNeighbours,
    SimilarContentSource,
    positive_sources,
    sequence_source,
    similarity_source,
    two_tower_source,
)
from recsys.retrieval.sources import PopularSource, ScoredSource, Source, WeightsSource
from serving.bundle.adapters import NO_ADAPTERS, Adapters
from serving.bundle.history_models import CONTENT_SIMILARITY, ENSEMBLE, SEQUENCE
from serving.bundle.load import Bundle
from serving.settings import ServingOptions

BEAM_WIDTH = 50
"""Prefixes that generation keeps after each level."""


def sources_of(
    bundle: Bundle,
    options: ServingOptions,
    adapters: Adapters = NO_ADAPTERS,
    *,
    learned_content: bool = False,
) -> dict[str, Source]:
    """Make the sources of a profile that a bundle has the parts for.

    Args:
        learned_content: Whether content ranks every item, as a learned blend weighs it.
    """
    sources: dict[str, Source] = {
        names.POPULARITY.name: PopularSource(bundle.popularity.item_scores),
        **{name: WeightsSource(model) for name, model in bundle.item_weights.items()},
        **{name: ScoredSource(one.model.score) for name, one in bundle.outside.items()},
    }
    if bundle.retriever is not None:
        sources[names.TWO_TOWER.name] = two_tower_source(
            bundle.retriever.model, bundle.retriever.index
        )
    full = options.profile == "full"
    for name, model, part in (
        (names.SEQUENCE, bundle.sequence, SEQUENCE),
        (names.ENSEMBLE, bundle.ensemble if full else None, ENSEMBLE),
    ):
        if model is not None:
            sources[name.name] = sequence_source(model, bundle.indexes.get(part))
    for base, adapted in adapters.retrievers.items():
        two_tower = bundle.retriever if base == names.TWO_TOWER.name else None
        index = None if two_tower is None else two_tower.index
        sources[base] = AdaptedSource(sources[base], adapted, index)
    if bundle.generative is not None and full:
        sources[names.GENERATIVE.name] = GeneratedSource(
            bundle.generative.model, bundle.generative.trie, BEAM_WIDTH, options.beam_timeout_ms
        )
    if (content := _content_source(bundle, learned_content)) is not None:
        sources[names.CONTENT.name] = content
    return sources if bundle.users.negative is None else positive_sources(sources)


def _content_source(bundle: Bundle, learned: bool) -> Source | None:
    neighbours = similar = None
    ids, content = bundle.semantic_ids, bundle.items.content
    if ids is not None and content.shape[1]:
        codes, sizes = ids.content_codes, ids.ids.level_sizes
        neighbours = ContentNeighbours(codes, sizes, content, bundle.num_released_rows)
    if learned and bundle.content_similarity is not None:
        index = bundle.indexes.get(CONTENT_SIMILARITY)
        similar = similarity_source(bundle.content_similarity, index)
    if neighbours is None and similar is None:
        return None
    return SimilarContentSource(neighbours, similar)
