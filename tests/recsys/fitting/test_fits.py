"""Fits by the catalogue: refits, sources, settings chosen on validation."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from pipelines.config.run import RunConfig
from recsys.data.batch import Jagged, JaggedBatch
from recsys.data.dataset import Sequences
from recsys.fitting.catalogue import CATALOGUE, index_of_model, tuning_queries
from recsys.fitting.counted import (
    fit_content,
    fit_ease,
    fit_item_to_item,
    fit_next_basket,
    fit_popularity,
    fit_repeats,
    popularity_source,
)
from recsys.fitting.queries import EvaluationQueries, ModelInputs, RetrievalSettings, measure
from recsys.fitting.sequence import member_training, near_items
from recsys.fitting.spec import Data, Refit, TrainingRun, load_trained, vector_source
from recsys.fitting.two_tower import fit_two_tower, untrained_two_tower
from recsys.models.configs import (
    ContentSimilarityConfig,
    EaseWeightsConfig,
    ItemToItemConfig,
    NextBasketConfig,
    PopularityConfig,
    RepeatsConfig,
    TwoTowerConfig,
)
from recsys.models.item_tower import FeatureSizes, ItemCatalogue
from recsys.models.item_weights.model import ItemWeights
from recsys.models.names import MODELS
from recsys.models.popularity import Popularity
from recsys.retrieval.blend.demand import demand_before
from recsys.retrieval.faiss_index import FaissIndex
from recsys.retrieval.faiss_library import FaissIndexConfig
from recsys.retrieval.sources import IndexedSource, PopularSource, ScoredSource
from recsys.training.passes import ScheduleConfig, TrainingConfig
from tests.recsys.retrieval.recall import measure_recall
from tests.recsys.testing.synthetic import markov_world, sequences


def test_each_model_has_one_row_and_its_settings_a_section() -> None:
    assert [spec.names for spec in CATALOGUE] == list(MODELS)
    sections = RunConfig(workspace="unused")
    for spec in CATALOGUE:
        assert isinstance(getattr(sections, spec.names.section), spec.config)
        assert (spec.num_examples is not None) == bool(spec.names.training)
    assert len({one.name for one in MODELS}) == len(MODELS)


CONFIG = TwoTowerConfig(embedding_dim=8, hidden_dim=8, max_history=4, backend="torch")
TRAINING = TrainingConfig(
    batch_size=32, refit_epochs=1.0, schedule=ScheduleConfig(learning_rate=1e-2)
)


@pytest.fixture(scope="module")
def inputs() -> ModelInputs:
    world = markov_world(num_users=20, num_items=12, events_per_user=8)
    num_rows = len(world.catalogue.item_ids) + 1
    return ModelInputs(
        sequences=sequences(world),
        catalogue=ItemCatalogue.empty(num_rows),
        sizes=FeatureSizes(num_item_rows=num_rows),
    )


def test_a_continued_refit_starts_at_the_trained_weights_and_counts_all_events(
    inputs: ModelInputs,
) -> None:
    trained = untrained_two_tower(inputs, CONFIG, TrainingRun(seed=3)).state_dict()
    # So small a rate moves nothing that could be told from rounding.
    still = replace(TRAINING, refit_rate=1e-12)
    refit = Refit(best_step=10, num_examples=100, weights=trained)
    model, result, num_examples = fit_two_tower(
        inputs, CONFIG, still, TrainingRun(seed=0), refit, split="all"
    )
    assert result.num_steps == num_examples // 32
    for name, value in model.state_dict().items():
        if name.endswith("item_counts"):
            assert value.sum() > trained[name].sum()
        else:
            torch.testing.assert_close(value, trained[name], rtol=0, atol=1e-9)


def test_a_refit_takes_its_share_of_the_chosen_passes(inputs: ModelInputs) -> None:
    refit = Refit(best_step=40, num_examples=100)
    whole, half = (
        fit_two_tower(inputs, CONFIG, TRAINING, TrainingRun(seed=0), one, split="all").result
        for one in (refit, replace(refit, share=0.5))
    )
    assert whole.num_steps == pytest.approx(2 * half.num_steps, abs=1)


def test_weights_of_another_model_are_refused(inputs: ModelInputs) -> None:
    model = untrained_two_tower(inputs, CONFIG, TrainingRun(seed=0))
    with pytest.raises(ValueError, match=r"the trained weights lack .*output_norm"):
        load_trained(model, {"other": torch.zeros(1)})


NUM_ROWS, DIM, NUM_USERS, LENGTH = 2_001, 16, 60, 12


class LatestItem:
    """The latest item's vector is the query's; vectors lie around 40 centres."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        centres = normalize(torch.randn(40, DIM, generator=generator))
        noise = torch.randn(NUM_ROWS, DIM, generator=generator) / DIM**0.5
        self.vectors = normalize(centres[torch.arange(NUM_ROWS) % 40] + 0.5 * noise)

    def all_item_vectors(self) -> Tensor:
        return self.vectors

    def query_vectors(self, queries: JaggedBatch) -> Tensor:
        history = queries["history"]
        return self.vectors[history.values[history.offsets[1:] - 1]]

    def score(self, queries: JaggedBatch) -> Tensor:
        scores = self.query_vectors(queries) @ self.vectors.T
        scores[:, 0] = -torch.inf
        return scores


def inputs_of(rows: np.ndarray, num_rows: int, num_held_out: int, *, times: bool) -> ModelInputs:
    """Lay out events of users with as many each, [U, T], of items without content."""
    offsets = np.arange(len(rows) + 1) * rows.shape[1]
    sequences = Sequences(
        item_rows=rows.reshape(-1),
        offsets=offsets,
        train_end=offsets[1:] - num_held_out,
        validation_end=offsets[1:] - num_held_out // 2,
        times=np.arange(rows.size) * 3600 if times else None,
    )
    catalogue, sizes = ItemCatalogue.empty(num_rows), FeatureSizes(num_item_rows=num_rows)
    return ModelInputs(sequences=sequences, catalogue=catalogue, sizes=sizes)


def sources_inputs() -> ModelInputs:
    """Users stay in a cluster."""
    rng = np.random.default_rng(0)
    steps = rng.integers(0, NUM_ROWS // 40, (NUM_USERS, LENGTH)) * 40
    rows = np.clip(steps + rng.integers(0, 40, (NUM_USERS, 1)), 1, NUM_ROWS - 1)
    return inputs_of(rows, NUM_ROWS, 2, times=False)


def test_metrics_of_lists_are_those_of_every_items_score() -> None:
    data, model = sources_inputs(), LatestItem()
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
    data, model = sources_inputs(), LatestItem()
    index = index_of_model(model, data)
    assert isinstance(index, FaissIndex)
    asked = model.query_vectors(tuning_queries(data))
    assert measure_recall(index, asked, model.vectors) >= 0.99


WEIGHTS_NUM_ROWS = 41


def inputs_where_the_latest_item_decides() -> ModelInputs:
    """Each event is followed by its item's successor, with a jump elsewhere now and then."""
    rng = np.random.default_rng(0)
    num_users, length = 200, 8
    rows = np.zeros((num_users, length), np.int64)
    rows[:, 0] = rng.integers(1, WEIGHTS_NUM_ROWS, num_users)
    for place in range(1, length):
        jumps = rng.random(num_users) < 0.4
        after = rows[:, place - 1] % (WEIGHTS_NUM_ROWS - 1) + 1
        rows[:, place] = np.where(jumps, rng.integers(1, WEIGHTS_NUM_ROWS, num_users), after)
    return inputs_of(rows, WEIGHTS_NUM_ROWS, 1, times=True)


def judge_of(inputs: ModelInputs) -> EvaluationQueries:
    return EvaluationQueries.of(inputs, "validation", RetrievalSettings(exclude_history=False))


def test_validation_finds_that_the_latest_item_counts_most() -> None:
    inputs = inputs_where_the_latest_item_decides()
    powers = (0.0, 2.0)
    model = fit_ease(inputs, EaseWeightsConfig(history_power=powers), "train", judge_of(inputs))
    assert model.settings["history_power"] == (2.0,)
    assert model.history.power == 2.0
    assert len(model.settings["l2"]) == 1
    near = ItemToItemConfig(distance_power=(0.0, 2.0), history_power=powers)
    counted = fit_item_to_item(inputs, near, "train", judge_of(inputs))
    chosen = fit_item_to_item(inputs, replace(near, **counted.settings), "train", None)
    for found in (counted, chosen):
        assert found.settings["distance_power"] == found.settings["history_power"] == (2.0,)
        assert found.history.power == 2.0
    assert torch.equal(counted.table.weights, chosen.table.weights)


def test_validation_chooses_the_columns_by_which_items_are_compared() -> None:
    """Either part places an item next to its successor, the other one says nothing."""
    inputs = inputs_where_the_latest_item_decides()
    angle = torch.arange(WEIGHTS_NUM_ROWS) * (2 * torch.pi / (WEIGHTS_NUM_ROWS - 1))
    ring = torch.stack([angle.cos(), angle.sin()], dim=1)
    noise = torch.randn(WEIGHTS_NUM_ROWS, 2, generator=torch.Generator().manual_seed(0))
    both = ContentSimilarityConfig(columns=(2, 4))
    for parts, chosen in (([ring, noise], 2), ([0.01 * noise, 10 * ring], 4)):
        content = torch.cat(parts, dim=1)
        content[0] = 0
        found = replace(inputs, catalogue=ItemCatalogue(content, inputs.catalogue.categories))
        model = fit_content(found, both, judge_of(found))
        assert model is not None
        assert model.settings == {"columns": chosen}
        nothing_known = fit_content(found, both, None)
        assert nothing_known is not None
        assert nothing_known.settings == {"columns": 2}


def inputs_of_weekly_baskets() -> ModelInputs:
    """Each user buys most of three own items every week, now and then another; bread, then jam."""
    rng = np.random.default_rng(1)
    num_users, num_weeks = 80, 6
    bread, jam = 39, 40
    rows, times, ends, last = [], [], [], []
    for _ in range(num_users):
        own = rng.choice(np.arange(1, 30), 3, replace=False)
        first = int(rng.integers(0, num_weeks - 1))
        for week in range(num_weeks):
            basket = [*own[rng.random(3) < 0.7], *rng.integers(30, 39, 1)]
            basket += [bread] * (week == first) + [jam] * (week == first + 1)
            rows += basket
            times += [week * 7 * 86_400] * len(basket)
        ends.append(len(rows))
        last.append(len(basket))
    sequences = Sequences(
        item_rows=np.array(rows),
        offsets=np.array([0, *ends]),
        train_end=np.array(ends) - np.array(last),
        validation_end=np.array(ends),
        times=np.array(times),
    )
    return replace(inputs_where_the_latest_item_decides(), sequences=sequences)


def recall_of(model: ItemWeights, judge: EvaluationQueries) -> float:
    return measure(ScoredSource(model.score), judge, ks=(5,))["recall@5"]


def test_where_users_take_again_what_they_took_repeats_find_it() -> None:
    inputs = inputs_of_weekly_baskets()
    judge = judge_of(inputs)
    again = fit_repeats(inputs, RepeatsConfig(), judge)
    ease = fit_ease(inputs, EaseWeightsConfig(), "train", judge)
    assert recall_of(again, judge) > 0.5 > recall_of(ease, judge) + 0.1
    follow = fit_next_basket(inputs, NextBasketConfig(), "train", judge)
    assert recall_of(follow, judge) > 0.5
    scores = follow.score(JaggedBatch({"history": Jagged.from_lists([[39]])}))
    assert int(scores.argmax()) == 40


def test_events_that_say_no_are_counted_by_no_model() -> None:
    inputs = inputs_of(np.random.default_rng(0).integers(1, 20, (30, 12)), 20, 2, times=True)
    negative = np.arange(360) % 5 == 3
    read = replace(inputs, sequences=replace(inputs.sequences, negative=negative))
    without = replace(inputs, sequences=read.sequences.positive)
    assert without.sequences.num_events == 288

    def counted(given: ModelInputs) -> list[np.ndarray]:
        fits = (
            fit_item_to_item(given, ItemToItemConfig(), "train", None),
            fit_ease(given, EaseWeightsConfig(), "train", None),
            fit_next_basket(given, NextBasketConfig(), "train", None),
        )
        history = JaggedBatch({"history": Jagged.from_lists([[4, 7, 11]])})
        demand = demand_before(given.sequences, given.sequences.train_end, 20)
        near = near_items(given, "train", 3)
        assert demand is not None
        assert near is not None
        return [
            fit_popularity(given, PopularityConfig(), "train").item_scores.numpy(),
            given.item_counts("train").numpy(),
            demand.numpy(),
            near.rows.numpy(),
            *(fit.score(history).numpy() for fit in fits),
        ]

    found, expected, other = map(counted, (read, without, inputs))
    for one, same, plain in zip(found, expected, other, strict=True):
        assert np.array_equal(one, same)
        assert not np.array_equal(one, plain)


def test_members_that_are_trained_apart_share_the_time() -> None:
    limited = replace(TRAINING, max_seconds=90.0)
    assert member_training(limited, 3) == replace(TRAINING, max_seconds=30.0)
    assert member_training(TRAINING, 3) == TRAINING
