"""Sources that make lists alone give the lists of those that score every item."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import normalize

from recsys.data.batch import Jagged, JaggedBatch
from recsys.data.top_k import NO_ROW, ItemMask, OneList, TopK, best_of_one, no_items
from recsys.models.configs import PopularityConfig
from recsys.models.item_weights.model import HistoryWeights, ItemWeights, WeightTable
from recsys.models.popularity import Popularity
from recsys.retrieval import sources
from recsys.retrieval.index import ExactIndex
from recsys.retrieval.sources import (
    DeviceSource,
    IndexedSource,
    PopularSource,
    ScoredSource,
    Source,
    SourceQuery,
    WeightsSource,
    allowed_items,
    behaviour_vectors,
)
from tests.recsys.testing.tensors import as_lists, assert_same_lists, rounding

NUM_ROWS, DIM = 400, 8


def vectors() -> torch.Tensor:
    found = normalize(torch.randn(NUM_ROWS, DIM, generator=torch.Generator().manual_seed(0)))
    found[[0, 17]] = 0
    return found


ITEMS = vectors()


def histories(num_queries: int = 30) -> JaggedBatch:
    """Histories of 0 to 39 items."""
    rng = np.random.default_rng(1)
    lists = [rng.integers(1, NUM_ROWS, n % 40).tolist() for n in range(num_queries)]
    return JaggedBatch({"history": Jagged.from_lists(lists)})


def mean_vectors(queries: JaggedBatch) -> torch.Tensor:
    history = queries["history"]
    total = torch.zeros(history.batch_size, DIM)
    total.index_add_(0, history.segments(), ITEMS[history.values])
    return total


def score(queries: JaggedBatch) -> torch.Tensor:
    scores = mean_vectors(queries) @ ITEMS.T
    return scores.masked_fill_(~ITEMS.any(1), -torch.inf)


def weights() -> ItemWeights:
    rng = np.random.default_rng(3)
    offsets = np.cumsum([0, 0, *rng.integers(0, 30, NUM_ROWS - 1)])
    rows = torch.from_numpy(rng.integers(1, NUM_ROWS, offsets[-1]).astype(np.int32))
    amounts = torch.from_numpy(rng.integers(1, 5, offsets[-1]).astype(np.float32))
    table = WeightTable(torch.from_numpy(offsets), rows, amounts)
    return ItemWeights(table, HistoryWeights(max_events=20))


def pairs() -> dict[str, tuple[Source, Source]]:
    """Each source that scores every item beside the one that makes lists."""
    counts = torch.from_numpy(np.random.default_rng(5).integers(0, 9, NUM_ROWS)).float()
    table, popular = weights(), Popularity(PopularityConfig(), counts)
    return {
        "index": (ScoredSource(score), IndexedSource(mean_vectors, lambda: ExactIndex(ITEMS))),
        "weights": (ScoredSource(table.score), WeightsSource(table)),
        "popular": (
            ScoredSource(popular.score, needs_history=False),
            PopularSource(popular.item_scores),
        ),
    }


def check_alike(found: TopK, truth: TopK) -> None:
    largest = 1 + float(truth.scores.masked_fill(truth.item_rows == NO_ROW, 0).abs().max())
    assert_same_lists(found, truth, rounding(40, size=largest))


def best_allowed(scores: torch.Tensor, mask: ItemMask, k: int) -> OneList:
    mask.blank(scores.numpy())
    return best_of_one(scores, k)


def sources_of_one() -> dict[str, Source]:
    """Every source, and each of those with a form of its own for one query once more with it."""
    forms: dict[str, Source] = {
        "index by its own form": IndexedSource(
            mean_vectors,
            lambda: ExactIndex(ITEMS),
            encode_one=lambda query: ITEMS[query.history_tensor].sum(0),
        ),
        "scores by their own form": ScoredSource(
            score, list_one=lambda query, mask, k: best_allowed(score(query.features)[0], mask, k)
        ),
        "on a device": DeviceSource(ScoredSource(score), torch.device("cpu")),
    }
    for name, (scored, listed) in pairs().items():
        forms |= {name: listed, f"scored {name}": scored}
    return forms


SOURCES = sources_of_one()


@pytest.mark.parametrize("name", ["index", "weights", "popular"])
@pytest.mark.parametrize("max_hidden", [0, 2_048])
def test_lists_are_those_of_every_items_score(
    name: str, max_hidden: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "MAX_HIDDEN", max_hidden)
    scored, listed = pairs()[name]
    queries = histories()
    allowed = allowed_items(queries["history"], 30, NUM_ROWS)
    own = allowed & (torch.rand(30, NUM_ROWS, generator=torch.Generator().manual_seed(2)) < 0.3)
    nothing = torch.zeros_like(allowed)
    for chosen in (allowed, own, nothing):
        truth, found = scored(queries, chosen, 25), listed(queries, chosen, 25)
        assert found.scores is None
        check_alike(found.lists, truth.lists)
        if name == "popular":
            # Counts are exact, so equal ones are in the order of rows.
            assert torch.equal(found.lists.item_rows, truth.lists.item_rows)


@settings(max_examples=30, deadline=None)
@given(
    name=st.sampled_from(sorted(SOURCES)),
    lists=st.lists(st.lists(st.integers(1, NUM_ROWS - 1), max_size=25), min_size=1, max_size=6),
    share=st.sampled_from([0.01, 0.5, 1.0]),
    k=st.integers(1, 60),
)
def test_one_query_has_the_list_that_it_has_in_a_batch(
    name: str, lists: list[list[int]], share: float, k: int
) -> None:
    queries = JaggedBatch({"history": Jagged.from_lists(lists)})
    allowed = allowed_items(queries["history"], len(lists), NUM_ROWS)
    allowed &= torch.rand(NUM_ROWS, generator=torch.Generator().manual_seed(k)) < share
    batch = SOURCES[name](queries, allowed, k).lists
    for place, history in enumerate(lists):
        query = SourceQuery(history=np.array(history, np.int64))
        found = SOURCES[name].one(query, ItemMask(allowed[place].numpy()), k)
        own = no_items(1, k) if found is None else as_lists(found, k)
        check_alike(own, TopK(*(part[place : place + 1] for part in batch)))


def test_a_catalogue_that_grew_is_searched_by_what_the_index_knows() -> None:
    scored, listed = pairs()["index"]
    queries = histories()
    grown = allowed_items(queries["history"], 30, NUM_ROWS + 5)
    check_alike(listed(queries, grown, 25).lists, scored(queries, grown, 25).lists)
    with pytest.raises(ValueError, match="mask covers 390 item rows, the index has 400"):
        listed(queries, grown[:, :390], 25)


def test_an_index_is_built_once_when_it_is_needed() -> None:
    built: list[ExactIndex] = []

    def build() -> ExactIndex:
        built.append(ExactIndex(ITEMS))
        return built[-1]

    source = IndexedSource(mean_vectors, build, item_vectors=lambda: ITEMS)
    assert torch.equal(source.item_vectors(), ITEMS)
    assert built == []
    queries = histories()
    allowed = allowed_items(queries["history"], 30, NUM_ROWS)
    for _ in range(2):
        source(queries, allowed, 5)
    assert len(built) == 1


def test_a_source_on_a_device_ranks_and_names_its_vectors_for_the_host() -> None:
    scored = ScoredSource(score, item_vectors=lambda: ITEMS)
    there = DeviceSource(scored, torch.device("cpu"))
    queries, allowed = histories(), allowed_items(None, 30, NUM_ROWS)
    expected, found = scored(queries, allowed, 12), there(queries, allowed, 12)
    assert torch.equal(found.lists.item_rows, expected.lists.item_rows)
    assert torch.equal(found.scores, expected.scores)
    vectors = behaviour_vectors({"sequence": there})
    assert torch.equal(vectors, ITEMS)
    popular = DeviceSource(PopularSource(torch.arange(NUM_ROWS).float()), torch.device("cpu"))
    assert popular(queries, allowed, 3).scores is None
    assert behaviour_vectors({"sequence": popular}) is None
