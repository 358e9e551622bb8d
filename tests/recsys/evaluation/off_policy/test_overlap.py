import numpy as np
import pytest

from recsys.evaluation.off_policy.logs import LoggedLists, effective_size, overlap, typical_slot


def test_effective_size_counts_equal_weights():
    assert effective_size(np.full(7, 3.0)) == pytest.approx(7)
    assert effective_size(np.array([0, 0, 5.0])) == pytest.approx(1)
    assert effective_size(np.array([1.0, 1, 2])) == pytest.approx(16 / 6)
    assert effective_size(np.zeros(4)) == 0
    assert effective_size(np.array([1e300, 1e300])) == pytest.approx(2)


def test_weights_are_described():
    found = overlap(np.array([0.0, 0.0, 1.0, 3.0]))
    assert (found.num_lists, found.zero_share, found.mean) == (4, 0.5, 1.0)
    assert (found.largest, found.largest_share) == (3.0, 0.75)
    assert found.effective == pytest.approx(16 / 10)
    assert found.effective_share == pytest.approx(0.4)
    assert found.quantiles[0.5] == 0.5
    assert found.grade == "none"


@pytest.mark.parametrize(
    ("weights", "grade"),
    [
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
    ],
)
def test_estimates_are_graded_by_what_they_stand_on(weights, grade):
    assert overlap(weights).grade == grade


def test_the_typical_slot_is_where_half_of_the_rewards_are():
    def of(rewards):
        ones = np.ones(rewards.shape)
        return LoggedLists(
            rewards=rewards, propensities=ones, evaluated=ones, lengths=np.full(len(rewards), 3)
        )

    assert typical_slot(of(np.array([[1.0, 0, 0], [1, 0, 1]]))) == 0
    assert typical_slot(of(np.array([[0.0, 0, 1]]))) == 2
    assert typical_slot(of(np.zeros((2, 3)))) == 1


@pytest.mark.parametrize("weights", [np.ones((2, 2)), np.zeros(0), np.array([np.nan])])
def test_what_are_no_weights_is_refused(weights):
    with pytest.raises(ValueError, match="must be finite numbers"):
        overlap(weights)


def test_weights_below_zero_are_refused():
    with pytest.raises(ValueError, match="at least 0, got -1"):
        overlap(np.array([1.0, -1.0]))
