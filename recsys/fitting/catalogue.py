"""The catalogue: every retrieval model, one row each, in the order of `recsys.models.names`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from recsys.data.batch import JaggedBatch
from recsys.fitting.counted import CONTENT, EASE, ITEM_TO_ITEM, NEXT_BASKET, POPULARITY, REPEATS
from recsys.fitting.generative import GENERATIVE
from recsys.fitting.queries import ModelInputs
from recsys.fitting.sequence import ENSEMBLE, SEQUENCE
from recsys.fitting.spec import ModelSpec, VectorModel
from recsys.fitting.two_tower import TWO_TOWER
from recsys.models.names import spec_at
from recsys.retrieval.faiss_library import FaissIndexConfig
from recsys.retrieval.index import index_of, tuned_index
from recsys.retrieval.sources import VectorIndex

NUM_TUNING_QUERIES = 300
MAX_HISTORY = 200


@torch.no_grad()
def index_of_model(model: VectorModel, inputs: ModelInputs) -> VectorIndex:
    """Index a model's item vectors on their device, an approximate index tuned as a bundle's is."""
    vectors = model.all_item_vectors().detach().clone()
    vectors[0] = 0
    kind = FaissIndexConfig().kind_for(len(vectors))
    if vectors.is_cuda or kind == "flat":
        return index_of(vectors)
    return tuned_index(vectors, model.query_vectors(tuning_queries(inputs)))[0]


def tuning_queries(inputs: ModelInputs) -> JaggedBatch:
    """Query evenly chosen users' last train events."""
    sequences = inputs.sequences
    last = np.asarray(sequences.train_end) - 1
    last = last[last > np.asarray(sequences.offsets[:-1])]
    chosen = np.unique(np.linspace(0, len(last) - 1, NUM_TUNING_QUERIES).astype(int))
    return inputs.queries(last[chosen], max_history=MAX_HISTORY)


CATALOGUE = (
    POPULARITY,
    ITEM_TO_ITEM,
    EASE,
    REPEATS,
    NEXT_BASKET,
    CONTENT,
    TWO_TOWER,
    SEQUENCE,
    ENSEMBLE,
    GENERATIVE,
)
SPECS = {spec.name: spec for spec in CATALOGUE}


def catalogue_with(outside: Mapping[str, str]) -> tuple[ModelSpec, ...]:
    """List the rows with those of other packages, by name and address."""
    return (*CATALOGUE, *(spec_at(name, address) for name, address in outside.items()))
