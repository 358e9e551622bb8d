"""Settings of models of weights are chosen by validation and kept for refits."""

from dataclasses import replace

import numpy as np
import torch

from recsys.data.batch import Jagged
from recsys.data.dataset import Sequences
from recsys.fitting.inputs import ModelInputs
from recsys.fitting.item_weights import fit_ease, fit_item_knn
from recsys.fitting.queries import EvaluationQueries, RetrievalSettings
from recsys.models.item_tower import FeatureSizes, ItemCatalogue
from recsys.models.item_weights.ease import EaseWeightsConfig
from recsys.models.item_weights.item_knn import ItemKnnConfig

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


def test_without_validation_or_times_the_first_settings_are_taken() -> None:
    inputs = inputs_where_the_latest_item_decides(times=False)
    knn = fit_item_knn(
        inputs, ItemKnnConfig(length_weight=(0.3, 0.7), half_life_days=(5.0,)), "train", None
    )
    assert knn.settings["length_weight"] == (0.3,)
    assert knn.settings["half_life_days"] == (0.0,)
    nobody = replace(
        inputs, sequences=replace(inputs.sequences, train_end=inputs.sequences.offsets[1:])
    )
    model = fit_ease(nobody, EaseWeightsConfig(l2=(7.0, 8.0)), "train", judge_of(nobody))
    assert model.settings["l2"] == (7.0,)
