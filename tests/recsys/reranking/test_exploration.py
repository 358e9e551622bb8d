"""Logged probabilities are those of what is drawn."""

from collections import Counter
from itertools import permutations

import numpy as np
import pytest

from recsys.reranking.caps import Caps
from recsys.reranking.exploration import best_chances, epsilon_greedy, plackett_luce, thompson

SCORES = np.array([2.0, 1.6, 0.9, 0.2])
DEVIATIONS = np.array([0.1, 0.5, 0.3, 0.9])
POLICIES = {
    "epsilon": lambda random, caps=None: epsilon_greedy(SCORES, 2, 0.4, random, caps),
    "plackett_luce": lambda random, caps=None: plackett_luce(SCORES, 2, 0.5, random, caps),
    "thompson": lambda random, caps=None: thompson(SCORES, DEVIATIONS, 2, random, caps),
}


@pytest.mark.parametrize("name", POLICIES)
def test_slates_are_as_frequent_as_their_propensities_say(name):
    random, number = np.random.default_rng(1), 40_000
    counts, chances = Counter(), {}
    for _ in range(number):
        slate = POLICIES[name](random)
        shown = tuple(slate.places.tolist())
        counts[shown] += 1
        chances[shown] = slate.propensities.prod()
    for shown, chance in chances.items():
        spread = np.sqrt(chance * (1 - chance) / number)
        # Twelve slates: five standard deviations are passed by chance once in 150,000 runs.
        assert abs(counts[shown] / number - chance) < 5 * spread + 1e-9
    if len(chances) == len(list(permutations(range(4), 2))):
        assert sum(chances.values()) == pytest.approx(1, abs=1e-9)


def test_known_probabilities():
    slate = epsilon_greedy(SCORES, 4, 0.0, np.random.default_rng(0))
    assert slate.places.tolist() == [0, 1, 2, 3]
    assert slate.propensities.tolist() == [1, 1, 1, 1]
    chances = best_chances(np.array([0.0, 0.0]), np.array([1.0, 1.0]))
    np.testing.assert_allclose(chances, [0.5, 0.5], rtol=1e-12)
    # Of two normals the difference is normal: P(a > b) = Phi(1 / sqrt(.25 + 1)).
    chances = best_chances(np.array([1.0, 0.0]), np.array([0.5, 1.0]))
    np.testing.assert_allclose(chances[0], 0.8144533152386513, atol=1e-9)
    weights = np.exp((np.array([1, 7 / 9, 7 / 18, 0]) - 1) / 0.5)
    shares = {
        int(slate.places[0]): slate.propensities[0]
        for slate in (plackett_luce(SCORES, 1, 0.5, np.random.default_rng(s)) for s in range(60))
    }
    for place, share in shares.items():
        assert share == pytest.approx(weights[place] / weights.sum(), rel=1e-12)


@pytest.mark.parametrize("name", POLICIES)
def test_a_seed_gives_its_slate_again_and_caps_hold(name):
    one, other = (POLICIES[name](np.random.default_rng(7)) for _ in range(2))
    assert one.places.tolist() == other.places.tolist()
    assert one.propensities.tolist() == other.propensities.tolist()
    for seed in range(20):
        caps = Caps([[(0, 1)], [(0, 1)], [(0, 1)], []], [1])
        slate = POLICIES[name](np.random.default_rng(seed), caps)
        assert len(slate.places) == 2
        assert 3 in slate.places


def test_what_is_out_of_range_is_refused():
    random = np.random.default_rng(0)
    with pytest.raises(ValueError, match=r"epsilon must be in \[0, 1\], got 2"):
        epsilon_greedy(SCORES, 2, 2, random)
    with pytest.raises(ValueError, match="temperature must be > 0, got 0"):
        plackett_luce(SCORES, 2, 0, random)
    with pytest.raises(ValueError, match="standard deviation above 0"):
        thompson(SCORES, np.zeros(4), 2, random)
