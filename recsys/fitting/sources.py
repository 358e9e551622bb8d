"""How fitted models rank a catalogue: by a score for every item, or by lists where there are many.

A score for every item of a catalogue of a million takes 16 ms of a core for a query and source; a
search of an index, or the weights of a history, 1 ms. Lists are those that serving would make, so
that is what is measured there; how far behind its list a target ranks is not known then.

Axes: B queries, N item rows, D width.
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

from torch import Tensor

from recsys.data.batch import JaggedBatch
from recsys.fitting.spec import Data
from recsys.models.item_weights.model import ItemWeights
from recsys.models.popularity import Popularity
from recsys.retrieval.sources import (
    IndexedSource,
    PopularSource,
    ScoredSource,
    Source,
    WeightsSource,
)


class VectorModel(Protocol):
    """A model that compares a query's vector with the items'."""

    def score(self, queries: JaggedBatch) -> Tensor: ...

    def query_vectors(self, queries: JaggedBatch) -> Tensor: ...

    def all_item_vectors(self) -> Tensor: ...


def popularity_source(model: Popularity, data: Data, scored_up_to: int) -> Source:
    """Rank by popularity.

    Args:
        model: In evaluation mode, as of all these functions.
        data: Some of their train events are the queries that an index is tuned on.
        scored_up_to: Item rows up to which every item is scored; a larger catalogue is ranked by
            lists alone.
    """
    if data.inputs.sizes.num_item_rows <= scored_up_to:
        return ScoredSource(model.score, needs_history=False)
    return PopularSource(model.item_scores)


def weights_source(model: ItemWeights, data: Data, scored_up_to: int) -> Source:
    """Rank by weights between items; the arguments are those of ``popularity_source``."""
    if data.inputs.sizes.num_item_rows <= scored_up_to:
        return ScoredSource(model.score)
    return WeightsSource(model)


def vector_source(model: VectorModel, data: Data, scored_up_to: int) -> Source:
    """Rank by vectors; the arguments are those of ``popularity_source``."""
    if data.inputs.sizes.num_item_rows <= scored_up_to:
        return ScoredSource(model.score, item_vectors=model.all_item_vectors)
    assert data.index is not None, "a catalogue that is ranked by lists needs an index"
    index = partial(data.index, model, data.inputs)
    return IndexedSource(model.query_vectors, index, item_vectors=model.all_item_vectors)
