import numpy as np
import pytest

from recsys.evaluation.off_policy.estimators import RateModel, fitted_folds, fold_of

ITEMS = np.array([[1, 2], [2, 1], [1, 2], [1, 0]])
REWARDS = np.array([[1.0, 0], [0, 1], [1, 0], [1, 9]])
PRESENT = np.array([[True, True], [True, True], [True, True], [True, False]])


def test_rates_are_of_the_slot_times_the_items_own():
    found = RateModel.fit(ITEMS, REWARDS, PRESENT, 4, strength=1.0)
    assert found.slots.tolist() == [3 / 4, 1 / 3]
    # Item 1: four rewards where three first slots and one second expect 2.25 + 1 / 3.
    assert found.items[1] == pytest.approx(5 / (2.25 + 1 / 3 + 1))
    assert found.items[3] == 1
    assert found.rates(np.array([1, 3])).tolist() == [found.items[1] * 0.75, 1 / 3]
    assert found.below.tolist() == pytest.approx([1 / 3, 0])


def test_lists_are_predicted_by_models_that_did_not_see_their_users():
    users = np.array([5, 9, 5, 7])
    folds = fold_of(users, 2)
    assert folds[0] == folds[2]
    models = fitted_folds(ITEMS, REWARDS, PRESENT, 4, folds)
    for fold, model in enumerate(models):
        others = folds != fold
        alone = RateModel.fit(ITEMS[others], REWARDS[others], PRESENT[others], 4)
        assert model.items.tolist() == alone.items.tolist()
