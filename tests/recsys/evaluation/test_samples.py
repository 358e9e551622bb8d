"""Intervals by resampling, p-values by flipped signs, sequences that hold at every look."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import false_discovery_control

from recsys.data.batch import Jagged
from recsys.evaluation import bootstrap
from recsys.evaluation.bootstrap import bootstrap_intervals
from recsys.evaluation.config import BootstrapConfig
from recsys.evaluation.sequential import (
    OutcomeMoments,
    SequentialConfig,
    differences,
    moments_at,
    sample_ratio,
)
from recsys.evaluation.significance import (
    EvaluatedRun,
    benjamini_hochberg,
    compare_runs,
    holm,
    sign_flip_p_values,
)

pytestmark = pytest.mark.numerics

GAINS = np.r_[0, 1 / np.log2(np.arange(2, 12))]
HITS_AT = np.r_[0.9, np.full(10, 0.01)]
"""Share of users whose target is outside the first ten, and at each of ranks 1 to 10."""


def ndcg_of_users(num_users: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).choice(GAINS, num_users, p=HITS_AT)


def test_intervals_cover_the_truth_in_19_of_20_worlds():
    truth = float(GAINS @ HITS_AT)
    config = BootstrapConfig(num_resamples=500)
    held = 0
    for seed in range(600):
        interval = bootstrap_intervals({"ndcg@10": ndcg_of_users(500, seed)}, config)["ndcg@10"]
        held += interval.low <= truth <= interval.high
    # Three standard errors about 95%; the benchmark holds 94-96% over many more worlds.
    assert 0.923 <= held / 600 <= 0.977


def test_the_order_of_users_and_chunks_of_resamples_change_nothing(monkeypatch):
    values = ndcg_of_users(1000, 4)
    whole = bootstrap_intervals({"x": values})["x"]
    backwards = bootstrap_intervals({"x": values[::-1].copy()})["x"]
    assert backwards == pytest.approx(whole)
    monkeypatch.setattr(bootstrap, "_MAX_CELLS", 100)
    assert bootstrap_intervals({"x": values})["x"] == whole


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "no metric"),
        ({"x": np.array([np.nan, np.nan])}, "no user has a value of 'x'"),
        ({"x": np.array([1.0, np.inf])}, "infinite for user 1"),
        ({"x": np.zeros(2), "y": np.zeros(3)}, "one value per user"),
    ],
)
def test_what_cannot_be_resampled_is_refused(values, message):
    with pytest.raises(ValueError, match=message):
        bootstrap_intervals(values)


METRICS = ["ndcg@10", "recall@10"]


def evaluated(
    users: list[int],
    targets: list[list[int]],
    ranks: list[list[int]],
    *,
    metrics: list[str] = METRICS,
    name: str = "x",
    data_digest: str = "d" * 8,
) -> EvaluatedRun:
    return EvaluatedRun.from_ranks(
        torch.tensor(users),
        Jagged.from_lists(targets),
        Jagged.from_lists(ranks),
        metrics,
        name=name,
        data_digest=data_digest,
    )


def run(name: str, ranks: list[int], *, data_digest: str = "d" * 8) -> EvaluatedRun:
    num_users = len(ranks)
    return evaluated(
        list(range(1, num_users + 1)),
        [[5]] * num_users,
        [[rank] for rank in ranks],
        name=name,
        data_digest=data_digest,
    )


def test_p_values_agree_with_all_sign_flips():
    generator = np.random.default_rng(0)
    differences = np.stack(
        [generator.integers(-1, 2, 12), generator.normal(0.4, 1, 12), np.zeros(12)], axis=1
    ).astype(float)
    signs = np.array(list(product([-1, 1], repeat=12)))
    sums, observed = np.abs(signs @ differences), np.abs(differences.sum(0))
    equal = np.isclose(sums, observed)
    exact = ((sums > observed) & ~equal).mean(0) + equal.mean(0) / 2
    found = sign_flip_p_values(differences, num_flips=200_000)
    assert found[:2] == pytest.approx(exact[:2], abs=0.005)
    assert found[2] == 1


def test_p_values_are_corrected_over_all_candidates_and_metrics():
    baseline = run("old", [8] * 40)
    candidate = run("new", [3] * 26 + [9] * 14)
    alone = compare_runs(baseline, [candidate])
    many = compare_runs(baseline, [candidate] + [run(f"copy{i}", [8] * 40) for i in range(9)])
    assert many[0].p_value == alone[0].p_value
    assert many[0].adjusted_p_value == pytest.approx(20 * many[0].p_value)
    assert alone[0].adjusted_p_value == pytest.approx(2 * alone[0].p_value)
    assert compare_runs(baseline, [candidate]) == alone


def test_runs_on_other_data_users_or_targets_are_refused_with_both_digests():
    baseline = run("old", [1, 2, 3])
    with pytest.raises(ValueError, match=r"different data: digest d{8} against e{8}"):
        compare_runs(baseline, [run("new", [1, 2, 3], data_digest="e" * 8)])

    fewer = run("new", [1, 2])
    with pytest.raises(ValueError, match="different users") as refused:
        compare_runs(baseline, [fewer])
    assert baseline.users_digest in str(refused.value)
    assert fewer.users_digest in str(refused.value)

    other = evaluated([1, 2, 3], [[5], [5], [6]], [[1], [2], [3]])
    with pytest.raises(ValueError, match="different targets") as refused:
        compare_runs(baseline, [other])
    assert baseline.targets_digest in str(refused.value)
    assert other.targets_digest in str(refused.value)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_benjamini_hochberg_agrees_with_scipy_and_is_milder_than_holm(p_values: list[float]):
    values = np.array(p_values)
    assert benjamini_hochberg(values) == pytest.approx(false_discovery_control(values))
    assert (benjamini_hochberg(values) <= holm(values) + 1e-12).all()


DAYS = 60
LOOKS = 50 * np.arange(1, DAYS + 1)
"""Users of one arm at the end of each day."""


def clicks(random, experiments, rate=0.3, lift=1.0):
    """Poisson clicks of users of whom a few click much, [experiments, U]."""
    taste = random.gamma(0.5, 2.0, (experiments, LOOKS[-1]))
    return random.poisson(rate * lift * taste).astype(np.float64)


def purchases(random, experiments, rate=0.03, lift=1.0):
    return (random.random((experiments, LOOKS[-1])) < rate * lift).astype(np.float64)


def daily(draw, experiments, seed, lift=1.0, config=None):
    random = np.random.default_rng(seed)
    first = moments_at(draw(random, experiments), LOOKS)
    second = moments_at(draw(random, experiments, lift=lift), LOOKS)
    return differences(first, second, config)


@pytest.mark.parametrize("draw", [clicks, purchases])
def test_equal_arms_are_called_different_in_at_most_5_of_100_whoever_looks_daily(draw):
    found = daily(draw, 2_000, seed=1)
    alarms = ((found.low > 0) | (found.high < 0)).any(1)
    assert alarms.mean() <= 0.05


def test_two_arms_have_the_known_interval():
    config = SequentialConfig(error=0.05, narrow_at=400)
    first = OutcomeMoments(np.array([200.0]), np.array([0.5]), np.array([2.0]))
    second = OutcomeMoments(np.array([200.0]), np.array([0.8]), np.array([2.0]))
    found = differences(first, second, config)
    # rho^2 = (5.9915 + ln 6.9915) / 400; 400 rho^2 = 7.9362; V = .02.
    radius = math.sqrt(0.02 * 2 * 8.9362 / 7.9362 * math.log(math.sqrt(8.9362) / 0.05))
    assert found.difference.tolist() == pytest.approx([0.3])
    assert found.low.tolist() == pytest.approx([0.3 - radius], abs=1e-4)
    assert found.high.tolist() == pytest.approx([0.3 + radius], abs=1e-4)
    # Three arms share the error.
    wider = differences(first, second, config, comparisons=2)
    half = differences(first, second, SequentialConfig(error=0.05, narrow_at=400))
    assert wider.low[0] < half.low[0]


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
