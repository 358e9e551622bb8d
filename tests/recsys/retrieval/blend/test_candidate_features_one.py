"""One query's candidates and numbers are those of the batched form."""

import pytest
import torch
from torch.nn import functional

from recsys.data.batch import Jagged
from recsys.data.top_k import OneList, TopK
from recsys.models.item_tower import ItemCatalogue
from recsys.models.item_weights.ease import Ease
from recsys.retrieval.blend.candidate_features import CandidateBuilder, feature_names
from recsys.retrieval.blend.candidate_features_one import OneQueryFeatures
from recsys.retrieval.blend.config import LearnedBlendConfig
from recsys.retrieval.blend.history_features import HistoryFeatures
from recsys.retrieval.blend.learned import LearnedBlend
from recsys.retrieval.blend.source_features import FEATURES

NUM_ITEM_ROWS = 120
SOURCES = ("one", "two", "three")


def made(seed: int, num_counts: int):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    config = LearnedBlendConfig(item_bounds=(2.0, 5.0), history_bounds=(3.0,), new_item_odds=2.0)
    weights = normal(3, 4, len(SOURCES), len(FEATURES)).abs()
    blend = LearnedBlend(config, SOURCES, weights, torch.tensor([1.0, 0.5, 2.0]))
    content = normal(NUM_ITEM_ROWS, 8)
    content[0] = 0
    categories = Jagged.from_lists([[], *([row % 5] for row in range(1, NUM_ITEM_ROWS))])
    kept = torch.arange(3, 90)
    linear = Ease(kept, normal(len(kept), len(kept)), NUM_ITEM_ROWS - 10)
    counts = torch.randint(0, 9, (num_counts,), generator=generator)
    lists = {}
    for name in SOURCES:
        rows = torch.randperm(NUM_ITEM_ROWS - 1, generator=generator)[:40][None] + 1
        lists[name] = TopK(normal(1, 40).sort(descending=True).values, rows)
    lists["two"].item_rows[0, 30:] = -1
    # One item was appended behind the vectors.
    vectors = functional.normalize(torch.randn(len(content) - 1, 5), dim=1)
    return (
        blend,
        lists,
        counts,
        HistoryFeatures(ItemCatalogue(content, categories), linear, vectors),
    )


@pytest.mark.parametrize("num_counts", [NUM_ITEM_ROWS, NUM_ITEM_ROWS - 20])
@pytest.mark.parametrize("events", [0, 1, 4, 15, 70])
@pytest.mark.parametrize("given", [SOURCES, ("three", "one")])
def test_one_query_has_the_candidates_and_numbers_of_a_batch(events, given, num_counts):
    blend, lists, counts, history_features = made(events, num_counts)
    lists = {name: lists[name] for name in given}
    history = torch.randint(0, NUM_ITEM_ROWS + 5, (events,))
    builder = CandidateBuilder(blend=blend, history_features=history_features, num_candidates=60)
    batched = builder.candidates(lists, Jagged(history, torch.tensor([0, events])), counts)
    found = OneQueryFeatures(blend, counts, history_features).candidates(
        {name: OneList.of(top) for name, top in lists.items()}, history, 60
    )
    there = batched.item_rows[0] > 0
    assert found.merged.item_rows.tolist() == batched.item_rows[0, there].tolist()
    assert found.features.shape == (int(there.sum()), len(feature_names(SOURCES)))
    torch.testing.assert_close(found.features, batched.features[0, there], rtol=1e-5, atol=1e-5)
