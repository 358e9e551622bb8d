"""Known answers by hand, for every estimator."""

import numpy as np
import pytest

from recsys.evaluation.off_policy.estimators import (
    cascade_doubly_robust,
    direct_method,
    doubly_robust,
    ips,
    snips,
)
from recsys.evaluation.off_policy.logs import (
    LoggedLists,
    cascade,
    independent,
    whole_list,
)
from tests.recsys.evaluation.off_policy.worlds import logged_actions

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


def test_lists_by_each_assumption():
    earned = LISTS.earned
    assert earned.tolist() == [[1, 0], [0, 1], [1, 0]]
    assert ips(earned, whole_list(LISTS)).value == pytest.approx((1 + 2 + 1) / 3)
    assert ips(earned, cascade(LISTS)).value == pytest.approx((2 + 2 + 1) / 3)
    assert ips(earned, independent(LISTS)).value == pytest.approx((2 + 4 + 1) / 3)
    # By slot: (2 + 1) / (2 + 0.5 + 1), and 4 / (0.5 + 4) for two lists of three.
    found = snips(earned, independent(LISTS), LISTS.present).value
    assert found == pytest.approx(3 / 3.5 + 2 / 3 * 4 / 4.5, rel=1e-12)


def test_estimators_with_a_reward_model():
    earned, weights = ACTIONS.earned, independent(ACTIONS)
    assert direct_method(EXPECTED[:, 0]).value == pytest.approx(0.5)
    # Weighted errors: 2 * 0.5, 0.5 * -0.25, 0 and 0.25.
    assert doubly_robust(earned, weights, PREDICTED, EXPECTED).value == pytest.approx(
        0.5 + (1 - 0.125 + 0.25) / 4
    )
    switched = doubly_robust(earned, weights, PREDICTED, EXPECTED, switch_at=1.0)
    assert switched.value == pytest.approx(0.5 + (-0.125 + 0.25) / 4)
    normalized = doubly_robust(earned, weights, PREDICTED, EXPECTED, self_normalized=True)
    assert normalized.value == pytest.approx(0.5 + (1 - 0.125 + 0.25) / 3.5)


@pytest.mark.parametrize("name", ["ips", "snips", "dr", "sndr", "switch", "cascade"])
def test_the_influence_of_a_list_is_what_one_more_of_it_would_change(name):
    random = np.random.default_rng(1)
    number = 4_000
    rewards, weights = random.random((number, 2)), random.exponential(size=(number, 2))
    predicted, expected = random.random((2, number, 2))
    values = {
        "ips": lambda *all_: ips(*all_[:2]),
        "snips": lambda *all_: snips(*all_[:2]),
        "dr": doubly_robust,
        "sndr": lambda *all_: doubly_robust(*all_, self_normalized=True),
        "switch": lambda *all_: doubly_robust(*all_, switch_at=1.5),
        "cascade": cascade_doubly_robust,
    }
    parts = (rewards, weights, predicted, expected)
    found = values[name](*parts)
    assert found.influence.mean() == pytest.approx(0, abs=1e-12)
    for at in (0, 17):
        more = values[name](*(np.vstack([part, part[at]]) for part in parts))
        change = (number + 1) * (more.value - found.value)
        assert change == pytest.approx(found.influence[at], rel=2e-2, abs=2e-3)


ONE = np.ones((2, 2))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rewards": np.array([[1, np.nan], [0, 0]])}, "rewards of list 0, slot 1 is nan"),
        ({"propensities": np.array([[1, 1], [0, 1.0]])}, r"propensities of list 1, slot 0 is 0.0"),
        ({"propensities": 1.5 * ONE}, r"is 1.5 \(4 such\); they must be in \(0, 1\]"),
        ({"propensities": np.nan * ONE}, "slot 0 is nan"),
        ({"evaluated": -ONE}, r"evaluated of list 0, slot 0 is -1.0 .* in \[0, 1\]"),
        ({"evaluated": np.ones((2, 3))}, r"shape of rewards, \(2, 2\), got \(2, 3\)"),
        ({"rewards": np.ones(2)}, "single actions are lists of one slot"),
        ({"rewards": np.ones((0, 2))}, "at least one of each"),
        ({"lengths": np.array([2, 3])}, "list 1 has length 3; lengths must be 1 to 2"),
        ({"lengths": np.array([2])}, r"lengths must have shape \(2,\)"),
    ],
)
def test_bad_logs_are_refused_with_what_is_allowed(changes, says):
    fields = {"rewards": ONE, "propensities": ONE, "evaluated": ONE, "lengths": np.array([2, 2])}
    with pytest.raises(ValueError, match=says):
        LoggedLists(**{**fields, **changes})
