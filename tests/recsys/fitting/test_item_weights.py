"""Settings of models of weights are chosen by validation and kept for refits."""

from dataclasses import replace

import numpy as np
import torch

from recsys.data.batch import Jagged, JaggedBatch
from recsys.data.dataset import Sequences
from recsys.fitting.counted import fit_ease, fit_item_knn, fit_next_basket, fit_repeats
from recsys.fitting.queries import EvaluationQueries, ModelInputs, RetrievalSettings, measure
from recsys.models.configs import EaseWeightsConfig, ItemKnnConfig, NextBasketConfig, RepeatsConfig
from recsys.models.item_tower import FeatureSizes, ItemCatalogue
from recsys.models.item_weights.model import ItemWeights
from recsys.retrieval.sources import ScoredSource

NUM_ROWS = 41


def inputs_where_the_latest_item_decides(*, times: bool = True) -> ModelInputs:
    """Each event is followed by its item's successor, with a jump elsewhere now and then."""
    rng = np.random.default_rng(0)
    num_users, length = 200, 8
    rows = np.zeros((num_users, length), np.int64)
    rows[:, 0] = rng.integers(1, NUM_ROWS, num_users)
    for place in range(1, length):
        jumps = rng.random(num_users) < 0.4
        after = rows[:, place - 1] % (NUM_ROWS - 1) + 1
        rows[:, place] = np.where(jumps, rng.integers(1, NUM_ROWS, num_users), after)
    offsets = np.arange(num_users + 1) * length
    sequences = Sequences(
        item_rows=rows.reshape(-1),
        offsets=offsets,
        train_end=offsets[1:] - 1,
        validation_end=offsets[1:],
        times=np.arange(num_users * length) * 3600 if times else None,
    )
    nothing = Jagged(torch.empty(0, dtype=torch.int64), torch.zeros(NUM_ROWS + 1).long())
    return ModelInputs(
        sequences=sequences,
        catalogue=ItemCatalogue(torch.empty(NUM_ROWS, 0), nothing),
        sizes=FeatureSizes(num_item_rows=NUM_ROWS, content_dim=0, num_categories=0),
    )


def judge_of(inputs: ModelInputs) -> EvaluationQueries:
    settings = RetrievalSettings(exclude_history=False)
    return EvaluationQueries.of(inputs, "validation", settings)


def test_validation_finds_that_the_latest_item_counts_most() -> None:
    inputs = inputs_where_the_latest_item_decides()
    powers = (0.0, 2.0)
    model = fit_ease(inputs, EaseWeightsConfig(history_power=powers), "train", judge_of(inputs))
    assert model.settings["history_power"] == (2.0,)
    assert model.history.power == 2.0
    assert len(model.settings["l2"]) == 1
    knn = fit_item_knn(inputs, ItemKnnConfig(history_power=powers), "train", judge_of(inputs))
    assert knn.settings["history_power"] == (2.0,)


def test_a_refit_by_what_was_chosen_is_the_same_without_validation() -> None:
    inputs = inputs_where_the_latest_item_decides()
    first = fit_ease(inputs, EaseWeightsConfig(), "train", judge_of(inputs))
    chosen = EaseWeightsConfig(**first.settings)
    again = fit_ease(inputs, chosen, "train", None)
    assert all(torch.equal(a, b) for a, b in zip(first.table, again.table, strict=True))
    assert again.history == first.history


def inputs_of_weekly_baskets() -> ModelInputs:
    """Each user buys most of three own items every week, now and then another; bread, then jam."""
    rng = np.random.default_rng(1)
    num_users, num_weeks = 80, 6
    bread, jam = 39, 40
    rows, times, lengths = [], [], []
    for _ in range(num_users):
        own, events = rng.choice(np.arange(1, 30), 3, replace=False), 0
        first = int(rng.integers(0, num_weeks - 1))
        for week in range(num_weeks):
            basket = [*own[rng.random(3) < 0.7], *rng.integers(30, 39, 1)]
            basket += [bread] * (week == first) + [jam] * (week == first + 1)
            rows += basket
            times += [week * 7 * 86_400] * len(basket)
            events += len(basket)
        lengths.append((events, len(basket)))
    ends = np.cumsum([one for one, _ in lengths])
    train_end = ends - np.array([last for _, last in lengths])
    sequences = Sequences(
        item_rows=np.array(rows),
        offsets=np.concatenate([[0], ends]),
        train_end=train_end,
        validation_end=ends,
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
