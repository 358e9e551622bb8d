import numpy as np
import pytest

from recsys.evaluation.off_policy.logs import effective_size, overlap


def test_effective_size_counts_equal_weights():
    assert effective_size(np.full(7, 3.0)) == pytest.approx(7)
    assert effective_size(np.array([0, 0, 5.0])) == pytest.approx(1)
    assert effective_size(np.array([1.0, 1, 2])) == pytest.approx(16 / 6)
    assert effective_size(np.zeros(4)) == 0
    assert effective_size(np.array([1e300, 1e300])) == pytest.approx(2)


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


@pytest.mark.parametrize("weights", [np.ones((2, 2)), np.zeros(0), np.array([np.nan])])
def test_what_are_no_weights_is_refused(weights):
    with pytest.raises(ValueError, match="must be finite numbers"):
        overlap(weights)
