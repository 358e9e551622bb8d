"""Large catalogues are ranked by lists; what is measured at their length stays the same."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from recsys.data.batch import Jagged, JaggedBatch
from recsys.data.dataset import Sequences
from recsys.fitting.catalogue import index_of_model, tuning_queries
from recsys.fitting.counted import popularity_source
from recsys.fitting.queries import EvaluationQueries, ModelInputs, RetrievalSettings, measure
from recsys.fitting.spec import Data, vector_source
from recsys.models.configs import PopularityConfig
from recsys.models.item_tower import FeatureSizes, ItemCatalogue
from recsys.models.popularity import Popularity
from recsys.retrieval.faiss_index import FaissIndex
from recsys.retrieval.faiss_library import FaissIndexConfig
from recsys.retrieval.sources import IndexedSource, PopularSource, ScoredSource
from tests.recsys.retrieval.recall import measure_recall

NUM_ROWS, DIM, NUM_USERS, LENGTH = 2_001, 16, 60, 12


def clustered() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    centres = normalize(torch.randn(40, DIM, generator=generator))
    noise = torch.randn(NUM_ROWS, DIM, generator=generator) / DIM**0.5
    return normalize(centres[torch.arange(NUM_ROWS) % 40] + 0.5 * noise)


class LatestItem:
    """The latest item's vector is the query's."""

    def __init__(self) -> None:
        self.vectors = clustered()

    def all_item_vectors(self) -> Tensor:
        return self.vectors

    def query_vectors(self, queries: JaggedBatch) -> Tensor:
        history = queries["history"]
        return self.vectors[history.values[history.offsets[1:] - 1]]

    def score(self, queries: JaggedBatch) -> Tensor:
        scores = self.query_vectors(queries) @ self.vectors.T
        scores[:, 0] = -torch.inf
        return scores


def inputs() -> ModelInputs:
    """Users stay in a cluster."""
    rng = np.random.default_rng(0)
    steps = rng.integers(0, NUM_ROWS // 40, (NUM_USERS, LENGTH)) * 40
    rows = np.clip(steps + rng.integers(0, 40, (NUM_USERS, 1)), 1, NUM_ROWS - 1)
    offsets = np.arange(NUM_USERS + 1) * LENGTH
    sequences = Sequences(
        item_rows=rows.reshape(-1),
        offsets=offsets,
        train_end=offsets[1:] - 2,
        validation_end=offsets[1:] - 1,
        times=None,
        context={},
    )
    catalogue = ItemCatalogue(
        content=torch.zeros(NUM_ROWS, 0), categories=Jagged.from_lists([[]] * NUM_ROWS)
    )
    sizes = FeatureSizes(num_item_rows=NUM_ROWS, num_categories=1, content_dim=0)
    return ModelInputs(sequences=sequences, catalogue=catalogue, sizes=sizes)


def test_metrics_of_lists_are_those_of_every_items_score() -> None:
    data, model = inputs(), LatestItem()
    queries = EvaluationQueries.of(data, "validation", RetrievalSettings(num_candidates=50))
    counts = torch.from_numpy(np.random.default_rng(1).integers(0, 9, NUM_ROWS)).float()
    ks = (10, 50)
    whole = Data(inputs=data, index=index_of_model)
    popularity = Popularity(PopularityConfig(), counts)
    for rank in (partial(vector_source, model), partial(popularity_source, popularity)):
        scored, listed = (rank(whole, up_to) for up_to in (NUM_ROWS, NUM_ROWS - 1))
        assert isinstance(scored, ScoredSource)
        assert isinstance(listed, IndexedSource | PopularSource)
        assert measure(listed, queries, ks=ks) == measure(scored, queries, ks=ks)
    assert measure(vector_source(model, whole, 0), queries, ks=ks)["recall@50"] > 0.5


def test_a_large_catalogue_has_an_index_tuned_on_train_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "recsys.fitting.catalogue.FaissIndexConfig", lambda: FaissIndexConfig(flat_max_rows=1_000)
    )
    data, model = inputs(), LatestItem()
    index = index_of_model(model, data)
    assert isinstance(index, FaissIndex)
    asked = model.query_vectors(tuning_queries(data))
    assert measure_recall(index, asked, model.vectors) >= 0.99
