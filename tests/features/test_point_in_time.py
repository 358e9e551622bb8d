"""Features of the moment: the batch expression and the request's function must agree."""

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from features.point_in_time import FEATURES, UserState

EVENTS = st.lists(
    st.tuples(st.integers(1, 4), st.integers(0, 3 * 86_400).map(lambda s: s // 7_200 * 7_200)),
    min_size=1,
    max_size=40,
).map(sorted)


def in_batch(events: list[tuple[int, int]]) -> pl.DataFrame:
    frame = pl.DataFrame(events, schema=["user_row", "event_time"], orient="row")
    return frame.select(feature.expression.alias(name) for name, feature in FEATURES.items())


@settings(deadline=None)
@given(EVENTS)
def test_batch_and_request_agree(events: list[tuple[int, int]]) -> None:
    frame = in_batch(events)
    states: dict[int, UserState] = {}
    for place, (user, time) in enumerate(events):
        state = states.setdefault(user, UserState())
        for name, feature in FEATURES.items():
            value = feature.value(state, time)
            assert value == frame[name][place], name
            assert 0 <= value < feature.cardinality
        state.update(time)


def test_known_answers() -> None:
    monday_noon = 1_704_110_400  # 2024-01-01 12:00 UTC
    state = UserState()
    values = {name: feature.value(state, monday_noon) for name, feature in FEATURES.items()}
    assert values == {
        "hour_of_day": 13,
        "day_of_week": 1,
        "hours_since_last_event": 0,
        "user_num_events": 1,
    }
    state.update(monday_noon - 5 * 3_600)
    state.update(monday_noon)
    assert FEATURES["hours_since_last_event"].value(state, monday_noon) == 2
    assert FEATURES["user_num_events"].value(state, monday_noon) == 2
    assert FEATURES["user_num_events"].value(state, monday_noon + 1) == 3


def test_events_must_come_oldest_first() -> None:
    state = UserState()
    state.update(10)
    with pytest.raises(ValueError, match="oldest first"):
        state.update(9)
