"""Clocks that go wrong leak nothing (FAULTS 14)."""

from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from features.build import FilterConfig, SplitConfig
from tests.features.test_build import NOW, build, events_of

DAY = 86_400
START = int(datetime(2024, 5, 1, tzinfo=UTC).timestamp())
# Right, hours late or early, a day early (a wrong time zone), years late (1970), far ahead.
SKEWS = st.sampled_from([0, 0, 0, -3_600, 7_200, -DAY, -START, 400 * DAY])
EVENT = st.tuples(
    st.sampled_from(["u1", "u2", "u3", "u4"]),
    st.sampled_from(["i1", "i2", "i3", "i4", "i5"]),
    st.integers(START, START + 20 * DAY),
    SKEWS,
)
# A right clock's events on each day, so many that whatever else comes can be split by time.
STEADY = [
    (f"u{1 + event % 4}", f"i{1 + event % 5}", START + event * DAY // 8, 0) for event in range(160)
]
KINDS = st.sampled_from([SplitConfig(), SplitConfig(kind="global_time")])


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rows=st.lists(EVENT, min_size=1, max_size=20), splits=KINDS)
def test_no_user_is_trained_on_what_came_after_a_held_out_event(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[str, str, int, int]],
    splits: SplitConfig,
) -> None:
    tmp_path = tmp_path_factory.mktemp("skew")
    stamped = [(user, item, time + skew) for user, item, time, skew in STEADY + rows]
    lenient = FilterConfig(max_bad_share=1.0)
    out, report = build(tmp_path, events_of(stamped), filters=lenient, splits=splits)
    future = sum(time > NOW.timestamp() for _, _, time in stamped)
    ancient = sum(time < DAY * 365 for _, _, time in stamped)
    assert sum(report.quarantined.values()) == future + ancient
    folder = out / "sequences/given"
    times, offsets, train, validation = (
        np.load(folder / f"{name}.npy")
        for name in ("times", "offsets", "train_end", "validation_end")
    )
    assert times.max() <= NOW.timestamp()
    for user in range(len(offsets) - 1):
        begin, end = offsets[user], offsets[user + 1]
        assert begin <= train[user] <= validation[user] <= end
        assert (np.diff(times[begin:end]) >= 0).all()
        for cut in (train[user], validation[user]):
            if begin < cut < end:
                assert times[begin:cut].max() <= times[cut:end].min()
    if splits.kind == "global_time":
        first_test = datetime.fromisoformat(str(report.test_from)).timestamp()
        trained = [times[b:e] for b, e in zip(offsets[:-1], validation, strict=True)]
        assert all((own < first_test).all() for own in trained), "for all users at once"
