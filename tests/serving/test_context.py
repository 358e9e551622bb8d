import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from features.point_in_time import FEATURES
from serving.bundle.load import load_bundle
from serving.query import STALE_SECONDS, context_rows, hydrate, settle_moment
from serving.recommend import Recommender
from serving.schemas import Degraded, Request
from serving.surfaces import HOME
from tests.serving.synthetic_bundle import SyntheticSize, write_synthetic_bundle

ALL = {name: feature.cardinality for name, feature in FEATURES.items()}
ascending = st.lists(st.integers(0, 10**6), max_size=30).map(sorted)


@pytest.fixture(scope="module")
def timed(tmp_path_factory):
    """A bundle whose model reads every context feature."""
    size = SyntheticSize(context_features=tuple(FEATURES))
    return load_bundle(write_synthetic_bundle(tmp_path_factory.mktemp("timed"), "v1", size))


@given(times=ascending, session=st.integers(0, 5), later=st.integers(1, 10**7))
def test_every_row_is_a_category_of_its_feature(times, session, later):
    moment = (times[-1] if times else 0) + later
    rows = context_rows(ALL, np.array(times, np.int64), len(times), session, moment)
    assert all(0 <= rows[name] < cardinality for name, cardinality in ALL.items())


def test_history_is_what_lies_strictly_before_the_moment(timed):
    times = timed.users.events(2).times
    request = Request.model_validate({"user_id": "user-2", "context": {"unix_time": int(times[3])}})
    query = hydrate(request, timed, HOME)
    np.testing.assert_array_equal(query.history, timed.users.history(2)[:3])
    assert query.features["context.user_num_events"].values.tolist() == [4]
    assert query.degraded == ()


def test_data_long_past_is_served_as_of_its_end_and_says_so(timed):
    newest = timed.users.newest_time
    reply = Recommender(timed).answer(Request(user_id="user-2"))
    assert reply.degraded == [Degraded("stale_data", "2023-11-18")]

    for clock, expected, says in (
        (newest + 5, newest + 5, False),
        (newest + STALE_SECONDS + 1, newest + 1, True),
        (newest - 5, newest + 1, True),
    ):
        degraded = []
        assert settle_moment(None, clock, ALL, timed.users, degraded) == expected
        assert bool(degraded) == says
    # A model that reads nothing of the clock has nothing to say about it.
    degraded = []
    settle_moment(None, newest - 5, {"user_num_events": 11}, timed.users, degraded)
    assert degraded == []


def test_feature_unknown_here_is_refused_by_name(bundles_dir, reseal):
    for features in ({"moon_phase": 9}, {"user_num_events": 12}):
        reseal(bundles_dir / "bundle-v1", context_features=features)
        with pytest.raises(ValueError, match=f"needs context feature '{next(iter(features))}'"):
            load_bundle(bundles_dir / "current")


def test_model_trained_with_other_context_is_refused(bundles_dir, reseal):
    reseal(bundles_dir / "bundle-v1", context_features={})
    with pytest.raises(ValueError, match=r"trained with context_features .*the bundle has \{\}"):
        load_bundle(bundles_dir / "current")


def test_falling_times_are_refused(bundles_dir, reseal):
    path = bundles_dir / "bundle-v1" / "histories" / "times.npy"
    times = np.load(path)
    times[1] = times[0] - 1
    np.save(path, times)
    reseal(bundles_dir / "bundle-v1")
    with pytest.raises(ValueError, match="times that fall within a user's events"):
        load_bundle(bundles_dir / "current")
    assert json.loads((bundles_dir / "bundle-v1" / "manifest.json").read_text())["kind"] == "bundle"
