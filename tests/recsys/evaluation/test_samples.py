"""Intervals of means, p-values by flipped signs, sequences that hold at every look."""

import math
from itertools import product

import numpy as np
import pytest
import torch

from recsys.data.batch import Jagged
from recsys.evaluation.intervals import mean_intervals
from recsys.evaluation.paired import compare_models
from recsys.evaluation.ranking import per_user_metric
from recsys.evaluation.sequential import (
    OutcomeMoments,
    SequentialConfig,
    differences,
    moments_at,
    sample_ratio,
)
from recsys.evaluation.significance import p_value
from tests.recsys.testing.refusals import assert_refused

pytestmark = pytest.mark.numerics

GAINS = np.r_[0, 1 / np.log2(np.arange(2, 12))]
HITS_AT = np.r_[0.9, np.full(10, 0.01)]
"""Share of users whose target is outside the first ten, and at each of ranks 1 to 10."""


def of_users(gains: np.ndarray, num_users: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).choice(gains, num_users, p=HITS_AT)


@pytest.mark.parametrize("gains", [GAINS, np.r_[0, 1 / np.arange(1, 11)]], ids=["ndcg", "mrr"])
def test_intervals_cover_the_truth_in_19_of_20_worlds(gains):
    truth = float(gains @ HITS_AT)
    found = [mean_intervals({"x": of_users(gains, 500, seed)})["x"] for seed in range(600)]
    # Three standard errors about 95%; the decision record has many more worlds.
    assert 0.923 <= np.mean([one.low <= truth <= one.high for one in found]) <= 0.977


def test_the_order_of_users_changes_nothing_and_no_end_is_outside_the_values():
    values = of_users(GAINS, 1000, 4)
    whole = mean_intervals({"x": values})["x"]
    assert mean_intervals({"x": values[::-1].copy()})["x"] == pytest.approx(whole)
    few = mean_intervals({"x": np.r_[1.0, np.zeros(9)], "y": np.full(10, 0.3)})
    assert 0 <= few["x"].low < few["x"].mean < few["x"].high <= 1
    assert few["y"][:3] == pytest.approx((0.3, 0.3, 0.3))


def test_what_has_no_interval_is_refused():
    def bounded(**values):
        return lambda: mean_intervals({name: np.array(own) for name, own in values.items()})

    assert_refused(
        {
            "no metric": bounded(),
            "no user has a value of 'x'": bounded(x=[np.nan, np.nan]),
            "infinite for user 1": bounded(x=[1.0, np.inf]),
            "one value per user": bounded(x=[0.0] * 2, y=[0.0] * 3),
        }
    )


@pytest.mark.parametrize("num_users", [3, 8, 14])
@pytest.mark.parametrize(("values", "tolerance"), [((-1, 0, 1), 0.03), ((0.2, -0.5, 1.4), 0.02)])
def test_p_values_agree_with_all_sign_flips(values, tolerance, num_users):
    tolerance = tolerance if num_users == 14 else 1e-12
    differences = np.random.default_rng(0).choice(values, num_users).astype(float)
    sums = np.abs(np.array(list(product([-1, 1], repeat=num_users))) @ differences)
    equal = np.isclose(sums, observed := abs(differences.sum()))
    exact = ((sums > observed) & ~equal).mean() + equal.mean() / 2
    assert p_value(differences) == pytest.approx(exact, abs=tolerance)
    assert p_value(np.zeros(12)) == 1


def test_p_values_are_corrected_over_all_candidates_and_metrics():
    def found(ranks):
        queries = Jagged.one_each(torch.tensor(ranks))
        return {metric: per_user_metric(queries, metric) for metric in ("ndcg@10", "recall@10")}

    two = {"old": found([8] * 40), "new": found([3] * 26 + [9] * 14)}
    alone = compare_models(two, "old")
    copies = {f"copy{place}": found([8] * 40) for place in range(9)}
    many = compare_models({**two, **copies}, "old")
    assert many[0].p_value == alone[0].p_value
    assert many[0].adjusted_p_value == pytest.approx(20 * many[0].p_value)
    assert alone[0].adjusted_p_value == pytest.approx(2 * alone[0].p_value)
    assert compare_models(two, "old") == alone


DAYS = 60
LOOKS = 50 * np.arange(1, DAYS + 1)
"""Users of one arm at the end of each day."""


def clicks(random, experiments):
    """Poisson clicks of users of whom a few click much, [experiments, U]."""
    taste = random.gamma(0.5, 2.0, (experiments, LOOKS[-1]))
    return random.poisson(0.3 * taste).astype(np.float64)


def purchases(random, experiments):
    return (random.random((experiments, LOOKS[-1])) < 0.03).astype(np.float64)


def daily(draw, experiments, seed):
    random = np.random.default_rng(seed)
    return differences(*(moments_at(draw(random, experiments), LOOKS) for _ in range(2)))


@pytest.mark.parametrize("draw", [clicks, purchases])
def test_equal_arms_are_called_different_in_at_most_5_of_100_whoever_looks_daily(draw):
    found = daily(draw, 2_000, seed=1)
    alarms = ((found.low > 0) | (found.high < 0)).any(1)
    assert alarms.mean() <= 0.05


def test_two_arms_have_the_known_interval():
    config = SequentialConfig(error=0.05, narrow_at=400)
    first, second = (
        OutcomeMoments(np.array([200.0]), np.array([mean]), np.array([2.0])) for mean in (0.5, 0.8)
    )
    found = differences(first, second, config)
    # rho^2 = (5.9915 + ln 6.9915) / 400; 400 rho^2 = 7.9362; V = .02.
    radius = math.sqrt(0.02 * 2 * 8.9362 / 7.9362 * math.log(math.sqrt(8.9362) / 0.05))
    assert found.difference.tolist() == pytest.approx([0.3])
    assert found.low.tolist() == pytest.approx([0.3 - radius], abs=1e-4)
    assert found.high.tolist() == pytest.approx([0.3 + radius], abs=1e-4)
    # Three arms share the error.
    assert differences(first, second, config, comparisons=2).low[0] < found.low[0]


def test_shares_that_hold_are_doubted_in_at_most_5_of_100_whoever_looks_always():
    random = np.random.default_rng(6)
    shares = [0.5, 0.3, 0.2]
    doubted = [
        sample_ratio(random.choice(3, 3_000, p=shares), shares)[0][-1] <= 0.05 for _ in range(500)
    ]
    assert np.mean(doubted) <= 0.05


def test_shares_that_do_not_hold_are_found():
    random = np.random.default_rng(7)
    p_values, counts = sample_ratio((random.random(20_000) < 0.53).astype(np.int64), [1, 1])
    assert p_values[-1] < 0.001
    assert (np.diff(p_values) <= 0).all()
    assert counts[-1].sum() == 20_000


def test_one_user_has_the_known_odds():
    p_values, counts = sample_ratio(np.array([0, 0]), [1, 1], strength=2.0)
    # Beta(1, 1): chances 1/2 and 1/3 against 1/2 and 1/4.
    assert p_values.tolist() == pytest.approx([1.0, 0.75])
    assert counts.tolist() == [[1, 0], [2, 0]]
    assert sample_ratio(np.empty(0, np.int64), [1, 1])[0].shape == (0,)
