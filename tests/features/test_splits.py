"""Where histories are cut: known answers at the very edge of each cut."""

import numpy as np
import pytest

from features.schema import NewestSplit, SplitConfig
from features.splits import (
    SECONDS_PER_DAY,
    Cuts,
    global_time,
    leave_one_out,
    midnights,
    newest_of_some,
)


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
    # The last two targets, if an event precedes both.
    targets = np.array([1, 1, 1, 0, 1, 1, 0, 1, 0, 0, 1, 0, 1], bool)
    ends = leave_one_out(np.array([0, 2, 4, 7]), targets)
    assert ends.train.tolist() == [0, 2, 2, 4]
    assert ends.validation.tolist() == [0, 2, 3, 6]


def test_the_newest_events_of_a_share_of_the_users_are_held_out():
    users, offsets = 400, np.arange(401) * 3
    # All have an event before the moment, half of them two since then.
    times = np.where(np.arange(users)[:, None] % 2, [1, 11, 12], [1, 2, 3]).reshape(-1)
    for share, min_users, low, high in ((0.25, 0, 30, 70), (0.0, 100, 75, 125), (0.9, 0, 80, 120)):
        split = NewestSplit(since=10, share=share, min_users=min_users)
        ends = newest_of_some(times, offsets, split)
        counts = ends.train.tolist()
        assert ends.validation.tolist() == counts
        assert set(counts[::2]) == {3}
        assert set(counts[1::2]) == {1, 3}
        assert low <= counts.count(1) <= high
