"""Sequences that hold at every look: false alarms, coverage, power, and small known answers."""

import math

import numpy as np
import pytest

from recsys.evaluation.sequential import (
    OutcomeMoments,
    SequentialConfig,
    differences,
    moments_at,
    sample_ratio,
)

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
