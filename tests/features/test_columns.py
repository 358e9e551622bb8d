"""Features of the moment, in a batch and in a request; and what a column holds."""

from collections.abc import Callable
from datetime import date
from pathlib import Path

import numpy as np
import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from features.point_in_time import FEATURES, UserState
from features.tables import kind_of_column, write_user_features
from tests.recsys.testing.refusals import assert_refused

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


def test_the_kind_of_a_column() -> None:
    for kind, columns in {
        "number": ([1, None, 3], ["1.5", "", "-3e2", None]),
        "date": ([date(2026, 1, 1)], ["2026-01-01", "2026-01-02T10:00:00Z"]),
        "category": ([True, False], ["red", "red", "blue", "blue"]),
        "list": (["a|b", "c"], [["a"], ["b", "c"]], [[1, 2], [3]]),
        "vector": ([[0.5, 1.0], None], ["[0.5, 1]", None]),
    }.items():
        for values in columns:
            assert kind_of_column(pl.Series("x", values)) == kind
    fixed = pl.Series("x", [[0.5, 1.0]], dtype=pl.Array(pl.Float32, 2))
    assert kind_of_column(fixed) == "vector"


def test_buckets_of_a_user_column_stay_in_the_next_build(tmp_path: Path) -> None:
    def written(out: Path, ages: list[object], previous: Path | None = None) -> list[int]:
        rows = {"user_row": range(len(ages)), "user_id": map(str, ages), "age": ages}
        users = pl.DataFrame(rows | {"tags": [["a"]] * len(ages)})
        (out / "vocabularies").mkdir(parents=True)
        sizes, warnings = write_user_features(users, ["age", "tags"], out, previous)
        assert sizes == {"age": 11}
        assert "tags is no feature" in warnings[0]
        found: list[int] = np.load(out / "user_features/age.npy").tolist()
        return found

    first = written(tmp_path / "first", [str(age) for age in range(100)])
    later = written(tmp_path / "later", [0, 55, 1000, -7, None], tmp_path / "first")
    assert later == [0, first[1], first[56], first[100], first[1], 0]
    nobody = pl.DataFrame({"user_row": [1], "user_id": ["a"]})
    assert_refused({"no user column 'age'": lambda: write_user_features(nobody, ["age"], tmp_path)})


def test_what_is_no_kind_is_refused_nor_an_event_before_the_last() -> None:
    def kind(name: str, *values: object) -> Callable[[], object]:
        return lambda: kind_of_column(pl.Series(name, values))

    state = UserState()
    state.update(10)
    assert_refused(
        {
            r"content\.columns: sku has 3 different texts in 3": kind("sku", "a1", "b2", "c3"),
            r"content\.columns: meta is Struct": kind("meta", {"a": 1}),
            r"content\.columns: raw is Binary": kind("raw", b"1"),
            "oldest first": lambda: state.update(9),
        }
    )
