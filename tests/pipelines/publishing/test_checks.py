import math

import numpy as np
import polars as pl
import pytest

from pipelines.config.run import ReleaseConfig
from pipelines.publishing.comparison import release_verdicts
from pipelines.publishing.same_queries import standard_error


def metrics(blend: float, popularity: float = 0.1) -> dict[str, dict[str, float]]:
    return {"blend": {"ndcg@10": blend}, "popularity": {"ndcg@10": popularity}}


def passed(verdicts: list) -> dict[str, bool]:
    return {verdict.name: verdict.passed for verdict in verdicts}


@pytest.mark.parametrize(
    ("blend", "recall", "champion", "failed"),
    [
        (0.2, 1.0, 0.19, None),
        # On other data only a large drop counts.
        (0.181, 1.0, 0.2, None),
        (0.09, 1.0, None, "ndcg@10 above popularity"),
        (math.nan, 1.0, None, "ndcg@10 above popularity"),
        (0.2, 0.98, None, "index recall"),
        (0.2, math.nan, None, "index recall"),
        (0.2, 1.0, 0.23, "ndcg@10 against the champion's on its own data"),
    ],
)
def test_each_fault_fails_its_check_alone(blend, recall, champion, failed):
    before = None if champion is None else metrics(champion)
    verdicts = release_verdicts(metrics(blend), recall, before, ReleaseConfig())
    assert [verdict.name for verdict in verdicts if not verdict.passed] == [failed][
        : failed is not None
    ]


@pytest.mark.parametrize(
    ("gain", "enough", "too_little"), [(0.1, 0.111, 0.109), (-0.1, 0.091, 0.089)]
)
def test_the_gain_over_popularity_that_was_set_is_asked_for(gain, enough, too_little):
    config = ReleaseConfig(min_gain_over_popularity=gain)
    for value, passes in ((enough, True), (too_little, False)):
        verdicts = release_verdicts(metrics(value, popularity=0.1), 1.0, None, config)
        assert passed(verdicts)["ndcg@10 above popularity"] is passes


def test_a_served_ranker_is_what_is_checked():
    ranked = {**metrics(0.2), "blend_fast": {"ndcg@10": 0.2}, "ranked": {"ndcg@10": 0.09}}
    verdicts = release_verdicts(ranked, 1.0, metrics(0.19), ReleaseConfig())
    assert not passed(verdicts)["ndcg@10 above popularity"]
    assert not passed(verdicts)["ndcg@10 against the champion's on its own data"]


def test_what_no_held_out_event_could_judge_passes_unless_it_replaces_what_was_measured():
    no_index = release_verdicts(metrics(0.2), None, None, ReleaseConfig())
    assert [one.name for one in no_index] == ["ndcg@10 above popularity"]
    alone = release_verdicts({}, 1.0, None, ReleaseConfig())
    assert passed(alone) == {"held-out events": True, "index recall": True}
    assert passed(release_verdicts({}, 1.0, {}, ReleaseConfig()))["held-out events"]
    after = release_verdicts({}, 1.0, metrics(0.2), ReleaseConfig())
    assert passed(after) == {"held-out events": False, "index recall": True}
    assert "goes on serving" in after[0].reason
    assert release_verdicts(metrics(0.2), 1.0, {}, ReleaseConfig())[0].passed


def test_a_drop_that_few_users_leave_to_chance_is_none():
    name = "ndcg@10 against the champion's on its own data"
    few, many = (
        release_verdicts(metrics(0.16), 1.0, metrics(0.2), ReleaseConfig(), error=error)
        for error in (0.02, 0.002)
    )
    assert passed(few)[name]
    assert not passed(many)[name]


def test_the_error_of_users_gains_is_that_of_their_mean():
    ranks = pl.DataFrame({"user_id": ["a", "b", "b", "c"], "rank": [1, 3, None, 11]})
    gains = [1.0, 0.25, 0.0]
    expected = np.std(gains, ddof=1) / np.sqrt(3)
    assert standard_error(ranks, 10) == pytest.approx(expected)
    assert standard_error(ranks.head(1), 10) == standard_error(None, 10) == 0.0
