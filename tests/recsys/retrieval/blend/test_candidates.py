"""Numbers of candidates, of a batch and of one query."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from recsys.data.batch import Jagged
from recsys.data.top_k import OneList, TopK
from recsys.models.item_tower import ItemCatalogue
from recsys.models.item_weights.model import Ease
from recsys.retrieval.blend.candidate_features import (
    CandidateBuilder,
    OneQueryFeatures,
    feature_names,
)
from recsys.retrieval.blend.config import BlendConfig
from recsys.retrieval.blend.history_features import HISTORY_FEATURES, HistoryFeatures
from recsys.retrieval.blend.learned import LearnedBlend
from recsys.retrieval.blend.source_features import FEATURES
from tests.recsys.retrieval.blend.test_learned import weighing

pytestmark = pytest.mark.numerics


def catalogue() -> ItemCatalogue:
    """Items 1 and 2 are alike by content, 2 and 3 by category."""
    content = torch.tensor([[0.0, 0], [1, 0], [2, 0], [0, 1], [0, 1], [1, 1], [0, 3]])
    categories = Jagged.from_lists([[], [1], [2], [2], [1, 2], [], [1]])
    return ItemCatalogue(content, categories)


def linear() -> Ease:
    weights = torch.tensor([[0.0, 0.5, 0], [0.25, 0, 0], [0, -1, 0]])
    return Ease(torch.tensor([1, 2, 3]), weights, 7)


def named(numbers: torch.Tensor) -> dict[str, list[float]]:
    return dict(zip(HISTORY_FEATURES, numbers.T.tolist(), strict=True))


def test_a_candidate_is_held_against_the_history() -> None:
    counts = torch.tensor([0, 9, 4, 1, 1, 1])
    history = Jagged.from_lists([[3, 1]])
    found = named(
        HistoryFeatures(catalogue(), linear()).features(
            history, torch.tensor([[2, 3, 6, -1]]), counts
        )[0]
    )
    # 2 has 0.5 from 1 and -1 from 3, 3 has nothing from 1; 6 has no weights.
    assert found["linear.history"] == pytest.approx([-0.5, 0, 0, 0])
    assert found["linear.latest"] == found["linear.history"]
    assert found["linear.z_score"][:3] == pytest.approx([-(2**0.5), 0.5**0.5, 0.5**0.5])
    assert found["content.last"] == pytest.approx([1, 0, 0, 0])
    assert found["content.few"] == pytest.approx([0.5, 0.5, 0.5, 0])
    assert found["content.best"] == pytest.approx([1, 1, 1, 0])
    assert found["category.last"] == pytest.approx([0, 0, 1, 0])
    assert found["category.best"] == pytest.approx([1, 1, 1, 0])
    mean = (np.log(10) + np.log(2)) / 2
    assert found["events.above_history"][:2] == pytest.approx([np.log(5) - mean, np.log(2) - mean])
    # Behind the counts an item has no events.
    assert found["events.above_few"][2] == pytest.approx(-mean)
    assert found["history.events"] == pytest.approx([np.log(3)] * 3 + [0])


def test_numbers_are_the_same_when_read_again(tmp_path: Path) -> None:
    vectors = functional.normalize(torch.tensor([[0.0, 0], [1, 0], [0, 1], [1, 1]]), dim=1)
    asked = (Jagged.from_lists([[2, 1]]), torch.tensor([[3, 1, 6]]), torch.ones(7))
    for number, given in enumerate((vectors, None)):
        made = HistoryFeatures(catalogue(), linear(), given)
        made.save(tmp_path / str(number))
        loaded = HistoryFeatures.load(tmp_path / str(number), catalogue())
        assert torch.equal(loaded.features(*asked), made.features(*asked))


def test_a_candidates_numbers_are_what_each_source_says_of_it() -> None:
    blend = weighing(("a", "b"), reciprocal_rank=[1.0, 0.5])
    lists = {
        "a": TopK(torch.tensor([[3.0, 1.0]]), torch.tensor([[4, 2]])),
        "b": TopK(torch.tensor([[9.0, 7.0]]), torch.tensor([[2, 6]])),
    }
    counts = torch.tensor([0, 0, 7, 0, 1, 0])
    history = Jagged.from_lists([[1, 3, 5]])
    builder = CandidateBuilder(
        blend=blend, history_features=HistoryFeatures(catalogue(), linear()), num_candidates=5
    )
    found = builder.candidates(lists, history, counts)
    assert found.item_rows.tolist() == [[2, 4, 6, -1, -1]]
    numbers = dict(zip(feature_names(blend.sources), found.features[0].T.tolist(), strict=True))
    assert numbers["item.events"][:3] == pytest.approx([np.log(8), np.log(2), 0])
    assert numbers["blend.lead"][0] == 0
    assert numbers["blend.lead"][1] == pytest.approx(1 - 61 / 62 - 0.5)
    assert numbers["a.lead"] == [0, 2, 0, 0, 0]
    assert numbers["b.lead"] == [2, 0, 0, 0, 0]
    assert numbers["a.reciprocal_rank"] == pytest.approx([61 / 62, 1, 0, 0, 0])
    assert numbers["b.contribution"] == pytest.approx([0.5, 0, 0.5 * 61 / 62, 0, 0])
    # A source without a list has nothing to say.
    alone = replace(builder, num_candidates=2).candidates({"a": lists["a"]}, history, counts)
    of_b = [name.startswith("b.") for name in feature_names(blend.sources)]
    assert alone.features.shape[2] == len(feature_names(blend.sources))
    assert alone.features[0, :, of_b].eq(0).all()


NUM_ITEM_ROWS = 120
SOURCES = ("one", "two", "three")


def made(seed: int, num_counts: int):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    config = BlendConfig(item_bounds=(2.0, 5.0), new_item_odds=2.0)
    weights = normal(4, len(SOURCES), len(FEATURES)).abs()
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
