"""Steps and queries of a replay."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys.data.dataset import Sequences
from recsys.data.windows import training_windows
from recsys.evaluation.config import ReplayConfig
from recsys.fitting.queries import NewEvents
from recsys.replay.steps import SECONDS_PER_DAY, Step, StepQueries, Timeline, cut_steps
from tests.recsys.testing.refusals import assert_refused

DAY = SECONDS_PER_DAY


def test_shares_of_the_events_follow_each_other_behind_a_warm_up():
    steps = cut_steps(np.arange(100), ReplayConfig(num_steps=5, first_share=0.5))
    assert [(step.begin, step.end) for step in steps] == list(pairwise(range(40, 101, 10)))
    assert [step.number for step in steps] == [0, 1, 2, 3, 4, 5]


def test_days_begin_at_midnight_and_days_without_events_are_no_steps():
    days = np.array([0, 0, 1, 2, 9, 10]) * DAY + 3_600
    steps = cut_steps(days, ReplayConfig(num_steps=3, step_days=1))
    assert [step.begin // DAY for step in steps] == [1, 2, 9, 10]
    assert all(step.end - step.begin == DAY and step.begin % DAY == 0 for step in steps)


def test_a_log_without_a_past_is_refused_and_leave_one_out_offered():
    def cutting(times):
        return lambda: cut_steps(times, ReplayConfig(num_steps=2))

    assert_refused(
        {
            "no event_time.*leave_one_out": cutting(None),
            "there is no event.*leave_one_out": cutting(np.empty(0, np.int64)),
            "all 9 events are of one time.*leave_one_out": cutting(np.full(9, 77)),
            "which leaves no step to judge.*leave_one_out": cutting(np.array([0, 0, 5])),
        }
    )


def test_an_increment_goes_on_from_the_last_step_or_the_last_full_training():
    for config, steps in (
        (ReplayConfig(), [None, 1, 2, 3, 4, 5, 6, 7]),
        (ReplayConfig(full_every=3), [None, 1, 2, None, 4, 5, None, 7]),
        (ReplayConfig(full_every=3, continue_from="full"), [None, 1, 1, None, 4, 4, None, 7]),
        (ReplayConfig(continue_from="full"), [None, 1, 1, 1, 1, 1, 1, 1]),
        (ReplayConfig(full_every=1), [None] * 8),
    ):
        assert [config.continued_step(number) for number in range(1, 9)] == steps


NUM_ITEM_ROWS = 6
USER = st.lists(st.tuples(st.integers(0, 8), st.integers(1, NUM_ITEM_ROWS - 1)), max_size=8)


def sequences_of(users: list[list[tuple[int, int]]]) -> Sequences:
    """Write each user's (time, item) pairs, sorted by time alone."""
    ordered = [sorted(user, key=lambda event: event[0]) for user in users]
    flat = [event for user in ordered for event in user]
    offsets = np.cumsum([0, 0, *(len(user) for user in ordered)])
    ends = offsets[1:]
    items = np.array([item for _, item in flat], np.int64)
    times = np.array([time for time, _ in flat], np.int64)
    return Sequences(items, offsets, ends, ends, times=times)


def slow_queries(events: Sequences, step: Step, *, exclude_history: bool):
    """List (user, moment, history, targets) in order of users and moments."""
    found = []
    for user in range(events.num_user_rows):
        own = range(events.offsets[user], events.offsets[user + 1])
        moments = sorted({int(events.times[place]) for place in own})
        for moment in moments:
            if not step.begin <= moment < step.end:
                continue
            history = [int(events.item_rows[p]) for p in own if events.times[p] < moment]
            targets = {
                int(events.item_rows[p])
                for p in own
                if events.times[p] == moment and (events.targets is None or events.targets[p])
            }
            if exclude_history:
                targets -= set(history)
            if targets:
                found.append((user, moment, history, targets))
    return found


@settings(max_examples=200, deadline=None)
@given(
    st.lists(USER, min_size=1, max_size=5),
    st.integers(0, 6),
    st.integers(1, 4),
    st.booleans(),
    st.none() | st.integers(0, 99),
)
def test_each_moment_of_a_user_is_one_query_that_knows_nothing_of_it(
    users, begin, length, exclude_history, seed
):
    events = sequences_of(users)
    if not events.num_events:
        return
    if seed is not None:
        # Lists are for some kinds of events alone.
        targets = np.random.default_rng(seed).random(events.num_events) < 0.5
        events = replace(events, targets=targets)
    step = Step(number=3, begin=begin, end=begin + length)
    timeline = Timeline(events, NUM_ITEM_ROWS)
    queries = StepQueries.of(
        timeline, step, exclude_history=exclude_history, max_queries=100, seed=0
    )
    held_out = queries.held_out(events)
    found = []
    for place in range(len(queries)):
        low, high = (int(one) for one in queries.targets.offsets[place : place + 2])
        targets = queries.targets.values[low:high].tolist()
        assert len(set(targets)) == len(targets)
        low, high = (int(one) for one in held_out.seen.offsets[place : place + 2])
        history = held_out.seen.values[low:high].tolist()
        found.append(
            (int(queries.user_rows[place]), int(queries.moments[place]), history, set(targets))
        )
    assert found == slow_queries(events, step, exclude_history=exclude_history)
    known = {int(i) for i, t in zip(events.item_rows, events.times, strict=True) if t < begin}
    assert set(np.flatnonzero(queries.candidates).tolist()) == known


def test_an_incremental_training_sees_all_new_examples_and_a_share_of_the_old():
    events = sequences_of([[(time, 1 + time % 5) for time in range(40)] for _ in range(50)])
    windows = training_windows(events, "all", 5)
    starts = Timeline(events, NUM_ITEM_ROWS).before(37)
    new = NewEvents(starts=starts, replay_share=0.0, seed=0)
    only_new = new.windows(windows, events)
    assert len(only_new) == 50
    assert (only_new.ends == events.offsets[2:]).all()
    labels = new.labels(events.label_positions("all"), events)
    assert labels.tolist() == [end - back for end in events.offsets[2:] for back in (3, 2, 1)]
    with_old = replace(new, replay_share=0.25).windows(windows, events)
    share = (len(with_old) - 50) / (len(windows) - 50)
    assert 0.15 < share < 0.35
    assert len(replace(new, replay_share=1.0).windows(windows, events)) == len(windows)


def test_more_queries_than_wished_for_are_drawn_by_the_seed():
    events = sequences_of([[(time, 1 + time % 5) for time in range(60)]])
    timeline, step = Timeline(events, NUM_ITEM_ROWS), Step(number=1, begin=10, end=60)

    def drawn(seed: int) -> list[int]:
        found = StepQueries.of(timeline, step, exclude_history=False, max_queries=7, seed=seed)
        assert len(found) == 7
        return found.history_ends.tolist()

    assert drawn(0) == drawn(0) == sorted(drawn(0)) != drawn(1)
