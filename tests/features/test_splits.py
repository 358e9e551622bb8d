"""Where histories are cut: known answers at the very edge of each cut."""

import numpy as np
import pytest

from features.schema import SplitConfig
from features.splits import SECONDS_PER_DAY, Cuts, global_time, leave_one_out, midnights


def test_an_event_at_the_moment_of_a_cut_is_after_it():
    times, offsets = np.array([9, 10, 10, 11, 20, 21, 10, 20]), np.array([0, 6, 8])
    ends = global_time(times, offsets, Cuts(validation=10, test=20))
    assert ends.train.tolist() == [1, 0]
    assert ends.validation.tolist() == [4, 1]


@pytest.mark.parametrize(
    ("validation", "test", "days"), [(0.1, 0.3, (6, 7)), (0.3, 0.1, (6, 9)), (0.2, 0.2, (6, 8))]
)
def test_unequal_shares_of_events_are_those_that_were_set(validation, test, days):
    shares = SplitConfig(kind="global_time", validation_share=validation, test_share=test)
    cuts = midnights(np.full(10, 100), 5, shares)
    assert cuts == Cuts(*((5 + day) * SECONDS_PER_DAY for day in days))


def test_the_last_event_is_test_and_the_one_before_validation():
    ends = leave_one_out(np.array([1, 2, 3, 7]))
    assert ends.train.tolist() == [1, 2, 1, 5]
    assert ends.validation.tolist() == [1, 2, 2, 6]
