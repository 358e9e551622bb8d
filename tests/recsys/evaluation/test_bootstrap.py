import numpy as np
import pytest

from recsys.evaluation import bootstrap
from recsys.evaluation.bootstrap import bootstrap_intervals, resampled_means
from recsys.evaluation.config import BootstrapConfig

GAINS = np.r_[0, 1 / np.log2(np.arange(2, 12))]
HITS_AT = np.r_[0.9, np.full(10, 0.01)]
"""Share of users whose target is outside the first ten, and at each of ranks 1 to 10."""


def ndcg_of_users(num_users: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).choice(GAINS, num_users, p=HITS_AT)


@pytest.mark.parametrize("shared", [True, False])
def test_resampled_means_are_those_of_drawing_users_one_by_one(shared: bool):
    values = ndcg_of_users(400, 0)
    other = values**2 if shared else np.random.default_rng(1).random(400)
    quick = resampled_means(np.stack([values, other], 1), 4000, seed=0)
    users = np.random.default_rng(2).integers(0, 400, (4000, 400))
    slow = np.stack([values[users].mean(1), other[users].mean(1)], 1)
    for level in (0.025, 0.25, 0.5, 0.75, 0.975):
        spread = slow.std(0)
        assert np.abs(np.quantile(quick, level, 0) - np.quantile(slow, level, 0)).max() < (
            0.15 * spread.max()
        )
    # Metrics of the same users move together.
    assert np.cov(quick.T) == pytest.approx(np.cov(slow.T), rel=0.2, abs=2e-5)


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
