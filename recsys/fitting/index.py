"""The index of a fitted model's item vectors, as a bundle's is."""

from __future__ import annotations

import numpy as np
import torch

from recsys.data.batch import JaggedBatch
from recsys.fitting.inputs import ModelInputs
from recsys.fitting.spec import VectorModel
from recsys.retrieval.faiss_library import FaissIndexConfig
from recsys.retrieval.index import index_of
from recsys.retrieval.index_recall import tuned_index
from recsys.retrieval.vector_index import VectorIndex

NUM_TUNING_QUERIES = 300
MAX_HISTORY = 200


@torch.no_grad()
def index_of_model(model: VectorModel, inputs: ModelInputs) -> VectorIndex:
    """Index a model's item vectors where they lie, an approximate index tuned as a bundle's is."""
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
