"""Estimators, intervals and overlap of logs."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from recsys.evaluation.off_policy.estimators import (
    RateModel,
    cascade_doubly_robust,
    fitted_folds,
    fold_of,
    interval_of,
    ips,
    mean_of,
    snips,
)
from recsys.evaluation.off_policy.logs import LoggedLists, cascade, overlap, typical_slot
from tests.recsys.evaluation.off_policy.worlds import (
    draw_log,
    logged_actions,
    make_world,
    synthetic_actions,
    synthetic_slates,
    true_value,
    values_of_actions,
    values_of_slates,
    wrong_model,
)
from tests.recsys.testing.refusals import assert_refused

# Weights 2, 0.5, 0 and 1.
ACTIONS = logged_actions(
    np.array([1.0, 0.0, 1.0, 1.0]), np.array([0.25, 0.8, 0.5, 0.5]), np.array([0.5, 0.4, 0.0, 0.5])
)
PREDICTED = np.array([[0.5], [0.25], [0.5], [0.75]])
EXPECTED = np.array([[0.4], [0.2], [0.6], [0.8]])
# Slot weights (2, 0.5), (0.5, 4) and (1), which has one slot.
LISTS = LoggedLists(
    rewards=np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 7.0]]),
    propensities=np.array([[0.25, 0.5], [0.5, 0.25], [0.5, 0.0]]),
    evaluated=np.array([[0.5, 0.25], [0.25, 1.0], [0.5, 9.0]]),
    lengths=np.array([2, 2, 1]),
)


def test_lists_are_weighed_by_the_items_down_to_a_slot():
    earned = LISTS.earned
    assert earned.tolist() == [[1, 0], [0, 1], [1, 0]]
    assert cascade(LISTS).tolist() == [[2, 1], [0.5, 2], [1, 1]]
    assert ips(earned, cascade(LISTS)).value == pytest.approx((2 + 2 + 1) / 3)
    # By slot: (2 + 1) / (2 + 0.5 + 1), and 4 / (0.5 + 4) for two lists of three.
    found = snips(earned, LISTS.slot_weights, LISTS.present).value
    assert found == pytest.approx(3 / 3.5 + 2 / 3 * 4 / 4.5, rel=1e-12)


def test_doubly_robust_corrects_slot_by_slot():
    weights = ACTIONS.slot_weights
    # (2 + 0 + 0 + 1) / 4, and / (2 + 0.5 + 0 + 1).
    assert ips(ACTIONS.earned, weights).value == 0.75
    assert snips(ACTIONS.earned, weights).value == pytest.approx(3 / 3.5, rel=1e-15)
    # Weighted errors of single actions: 2 * 0.5, 0.5 * -0.25, 0 and 0.25.
    found = cascade_doubly_robust(ACTIONS.earned, weights, PREDICTED, EXPECTED)
    assert found.value == pytest.approx(0.5 + (1 - 0.125 + 0.25) / 4)
    predicted = np.array([[0.5, 0.25], [0.5, 0.5], [0.5, 0.0]])
    expected = np.array([[0.75, 0.25], [0.75, 0.5], [0.5, 0.0]])
    # First list: 2 * (1 - 0.5) + 0.75, then 1 * (0 - 0.25) + 2 * 0.25; and so on.
    lists = [1.75 + 0.25, (0.5 * -0.5 + 0.75) + (2 * 0.5 + 0.5 * 0.5), 0.5 + 0.5]
    found = cascade_doubly_robust(LISTS.earned, LISTS.slot_weights, predicted, expected)
    assert found.value == pytest.approx(sum(lists) / 3, rel=1e-12)


def test_what_is_no_log_weight_or_sample_is_refused_with_what_is_allowed():
    one = np.ones((2, 2))

    def logged(**changes):
        fields = {
            "rewards": one, "propensities": one, "evaluated": one, "lengths": np.array([2, 2])
        }  # fmt: skip
        return lambda: LoggedLists(**{**fields, **changes})

    def weighed(weights):
        return lambda: overlap(np.array(weights))

    unlikely, three = np.array([[1, 1], [0, 1.0]]), mean_of(np.ones(3))
    assert_refused(
        {
            "rewards of list 0, slot 1 is nan": logged(rewards=np.array([[1, np.nan], [0, 0]])),
            r"propensities of list 1, slot 0 is 0.0": logged(propensities=unlikely),
            r"is 1.5 \(4 such\); they must be in \(0, 1\]": logged(propensities=1.5 * one),
            "slot 0 is nan": logged(propensities=np.nan * one),
            r"evaluated of list 0, slot 0 is -1.0 .* in \[0, 1\]": logged(evaluated=-one),
            r"shape of rewards, \(2, 2\), got \(2, 3\)": logged(evaluated=np.ones((2, 3))),
            "single actions are lists of one slot": logged(rewards=np.ones(2)),
            "at least one of each": logged(rewards=np.ones((0, 2))),
            "list 1 has length 3; lengths must be 1 to 2": logged(lengths=np.array([2, 3])),
            r"lengths must have shape \(2,\)": logged(lengths=np.array([2])),
            "at least 2 independent lists or users, got 1": lambda: interval_of(
                three, users=np.zeros(3, np.int64)
            ),
            "must lie between 0 and 1, got 95": lambda: interval_of(three, confidence=95),
            "must be finite numbers": weighed(np.ones((2, 2))),
            "be finite numbers": weighed([]),
            "finite numbers": weighed([np.nan]),
            r"must be \[lists, slots\]": lambda: ips(np.ones(2), one),
            r"weights must have shape \(2, 2\)": lambda: ips(one, np.ones((2, 3))),
            r"weights must be finite, got nan at \[0, 0\]": lambda: ips(one, one * np.nan),
        }
    )


def test_without_skew_the_interval_is_students():
    found = interval_of(mean_of(np.array([0.0, 1.0] * 50)))
    error = math.sqrt(0.25 * 100 / 99) / 10
    assert found.standard_error == pytest.approx(error)
    # Student's 0.975 quantile with 99 degrees of freedom.
    assert found.high - 0.5 == pytest.approx(1.98422 * error, rel=1e-4)
    assert 0.5 - found.low == pytest.approx(found.high - 0.5)


def test_lists_of_one_user_count_as_one():
    terms = np.random.default_rng(0).normal(size=50)
    repeated, users = np.repeat(terms, 20), np.repeat(np.arange(50), 20)
    alone = interval_of(mean_of(terms))
    together = interval_of(mean_of(repeated), users=users)
    assert together.standard_error == pytest.approx(alone.standard_error, rel=1e-12)
    assert interval_of(mean_of(repeated)).standard_error < 0.3 * alone.standard_error


@pytest.mark.slow
@pytest.mark.parametrize("slots", [1, 3])
def test_intervals_cover_the_true_value(slots):
    number, repetitions = 2_000, 100
    world = make_world(3, slots)
    value = true_value(world)
    inside = dict.fromkeys(("ips", "snips", "cascade dr"), 0)
    for seed in range(repetitions):
        drawn = draw_log(world, number, seed)
        log, weights = drawn.log, cascade(drawn.log)
        predicted, expected = wrong_model(world, drawn)
        found = {
            "ips": ips(log.earned, weights),
            "snips": snips(log.earned, weights),
            "cascade dr": cascade_doubly_robust(log.earned, log.slot_weights, predicted, expected),
        }
        for name, estimate in found.items():
            low, high, _ = interval_of(estimate)
            inside[name] += low <= value <= high
    # 95% less four standard deviations of as many repetitions.
    least = repetitions * (0.95 - 4 * math.sqrt(0.95 * 0.05 / repetitions))
    assert all(count >= least for count in inside.values()), inside


def test_estimates_are_graded_by_what_they_stand_on():
    for weights, grade in (
        (np.ones(1_000), "good"),
        (np.ones(100), "doubtful"),
        (np.ones(40), "none"),
        # Half of what the policy shows is not in the log.
        (np.where(np.arange(4_000) % 2, 1.0, 0.0), "none"),
        (np.full(1_000, 0.9), "doubtful"),
        # One list in ten has all of the weight: 500 effective ones, and the mean is right.
        (np.where(np.arange(5_000) % 10, 0.0, 10.0), "good"),
        (np.r_[np.full(999, 0.7), 300.0], "none"),
        (np.r_[np.full(9_999, 0.94), 600.0], "doubtful"),
        (np.zeros(1_000), "none"),
    ):
        assert overlap(weights).grade == grade


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


def test_lists_are_predicted_by_models_that_did_not_see_their_users():
    users = np.array([5, 9, 5, 7])
    folds = fold_of(users)
    assert folds[0] == folds[2]
    models = fitted_folds(ITEMS, REWARDS, PRESENT, 4, folds)
    for fold, model in enumerate(models):
        others = folds != fold
        alone = RateModel.fit(ITEMS[others], REWARDS[others], PRESENT[others], 4)
        assert model.items.tolist() == alone.items.tolist()


NUMBERS = json.loads(Path(__file__).with_name("obp_numbers.json").read_text())


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("synthetic actions", values_of_actions(synthetic_actions())),
        ("synthetic slates", values_of_slates(synthetic_slates())),
    ],
)
def test_estimates_agree_with_those_of_another_library(name, found):
    for estimator, value in found.items():
        known = pytest.approx(NUMBERS[name][estimator], abs=1e-9, rel=0)
        assert value == known, estimator


def test_weights_are_described():
    found = overlap(np.array([0.0, 0.0, 1.0, 3.0]))
    assert (found.num_lists, found.zero_share, found.mean) == (4, 0.5, 1.0)
    assert (found.largest, found.largest_share) == (3.0, 0.75)
    assert found.effective == pytest.approx(16 / 10)
    assert found.effective_share == pytest.approx(0.4)
    assert found.quantiles[0.5] == 0.5
    assert found.grade == "none"


def test_the_typical_slot_is_where_half_of_the_rewards_are():
    for rewards, slot in (([[1, 0, 0], [1, 0, 1]], 0), ([[0, 0, 1]], 2), ([[0, 0, 0]] * 2, 1)):
        rewards = np.array(rewards, np.float64)
        lengths, ones = np.full(len(rewards), 3), np.ones(rewards.shape)
        logged = LoggedLists(rewards=rewards, propensities=ones, evaluated=ones, lengths=lengths)
        assert typical_slot(logged) == slot
