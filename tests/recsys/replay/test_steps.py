"""Where a timeline is cut, and logs that have no past."""

import re

import numpy as np
import pytest

from recsys.replay.steps import SECONDS_PER_DAY, ReplayConfig, cut_steps

DAY = SECONDS_PER_DAY


def test_shares_of_the_events_follow_each_other_behind_a_warm_up():
    steps = cut_steps(np.arange(100), ReplayConfig(num_steps=5, first_share=0.5))
    assert [(step.begin, step.end) for step in steps] == [
        (40, 50),
        (50, 60),
        (60, 70),
        (70, 80),
        (80, 90),
        (90, 100),
    ]
    assert [step.number for step in steps] == [0, 1, 2, 3, 4, 5]


def test_days_begin_at_midnight_and_days_without_events_are_no_steps():
    days = np.array([0, 0, 1, 2, 9, 10]) * DAY + 3_600
    steps = cut_steps(days, ReplayConfig(num_steps=3, step_days=1))
    assert [step.begin // DAY for step in steps] == [1, 2, 9, 10]
    assert all(step.end - step.begin == DAY and step.begin % DAY == 0 for step in steps)


@pytest.mark.parametrize(
    ("times", "reason"),
    [
        (None, "no event_time"),
        (np.empty(0, np.int64), "there is no event"),
        (np.full(9, 77), "all 9 events are of one time"),
        (np.array([0, 0, 5]), "which leaves no step to judge"),
    ],
)
def test_a_log_without_a_past_is_refused_and_leave_one_out_offered(times, reason):
    with pytest.raises(ValueError, match=f"{reason}.*leave_one_out"):
        cut_steps(times, ReplayConfig(num_steps=2))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"num_steps": 0}, "backtest.num_steps must be >= 1, got 0"),
        ({"step_days": 0.0}, "backtest.step_days must be > 0 or left out, got 0.0"),
        ({"first_share": 1.0}, "backtest.first_share must be in (0, 1), got 1.0"),
        ({"policies": ("daily",)}, "full, incremental, never, got ['daily']"),
        ({"policies": ()}, "full, incremental, never, got []"),
        ({"max_queries": 0}, "backtest.max_queries and jobs must be >= 1, got 0 and 1"),
        ({"new_passes": 0.0}, "backtest.new_passes and new_rate must be > 0, got 0.0"),
        ({"replay_share": 1.5}, "backtest.replay_share must be in [0, 1], got 1.5"),
    ],
)
def test_impossible_settings_are_refused(wrong, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        ReplayConfig(**wrong)


@pytest.mark.parametrize(
    ("config", "steps"),
    [
        (ReplayConfig(), [None, 1, 2, 3, 4, 5, 6, 7]),
        (ReplayConfig(full_every=3), [None, 1, 2, None, 4, 5, None, 7]),
        (ReplayConfig(full_every=3, continue_from="full"), [None, 1, 1, None, 4, 4, None, 7]),
        (ReplayConfig(continue_from="full"), [None, 1, 1, 1, 1, 1, 1, 1]),
        (ReplayConfig(full_every=1), [None] * 8),
    ],
)
def test_an_increment_goes_on_from_the_last_step_or_the_last_full_training(config, steps):
    assert [config.continued_step(number) for number in range(1, 9)] == steps
