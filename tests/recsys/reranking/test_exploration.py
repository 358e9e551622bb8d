"""Logged probabilities are those of what is drawn."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys.reranking.lists import (
    Caps,
    draw_slate,
    epsilon_policy,
    plackett_luce_policy,
    scale_relevance,
)


def epsilon_greedy(scores, k, epsilon, random, caps=None):
    return draw_slate(len(scores), k, epsilon_policy(epsilon), random, caps)


def plackett_luce(k, random, caps=None, temperature=0.5):
    return draw_slate(4, k, plackett_luce_policy(SCORES, temperature), random, caps)


SCORES = np.array([2.0, 1.6, 0.9, 0.2])
POLICIES = {
    "epsilon": lambda random, caps=None: epsilon_greedy(SCORES, 2, 0.4, random, caps),
    "plackett_luce": lambda random, caps=None: plackett_luce(2, random, caps),
}


def drawn_by_epsilon(random, number):
    coins, picks = random.random((2, number)), random.random((2, number))
    first = np.where(coins[0] < 0.4, (4 * picks[0]).astype(int), 0)
    second = np.where(coins[1] < 0.4, (3 * picks[1]).astype(int), 0)
    # The second is a place among what is left, which skips the first.
    return np.stack([first, second + (second >= first)], 1)


def drawn_by_gumbel(random, number):
    keys = scale_relevance(SCORES) / 0.5 + random.gumbel(size=(number, 4))
    return np.argsort(-keys, axis=1)[:, :2]


DRAWN = {"epsilon": drawn_by_epsilon, "plackett_luce": drawn_by_gumbel}


@pytest.mark.parametrize("name", POLICIES)
def test_propensities_are_the_shares_of_a_million_draws_made_without_them(name):
    number, chances = 1_000_000, {}
    shown = DRAWN[name](np.random.default_rng(2), number) @ [4, 1]
    counts = np.bincount(shown, minlength=16) / number
    for seed in range(600):
        slate = POLICIES[name](np.random.default_rng(seed))
        chances[int(slate.places @ [4, 1])] = slate.propensities.prod()
    assert sum(chances.values()) > 0.98
    for slate, chance in chances.items():
        # One in a hundred, and for rare slates what a million draws can tell.
        spread = math.sqrt(chance * (1 - chance) / number)
        assert abs(counts[slate] - chance) < max(0.01 * chance, 5 * spread)


owned = st.lists(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2)), max_size=3, unique=True), max_size=12
)


@given(
    own=owned,
    limits=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    k=st.integers(0, 14),
    seed=st.integers(0, 1_000),
)
def test_with_caps_each_slot_is_drawn_from_what_breaks_none(own, limits, k, seed):
    scores, epsilon = np.arange(len(own), 0, -1.0), 0.3
    slate = epsilon_greedy(scores, k, epsilon, np.random.default_rng(seed), Caps(own, limits))
    taken, shown = Counter(), []

    def allowed():
        return [
            place
            for place in range(len(own))
            if place not in shown and all(taken[group] < limits[group[0]] for group in own[place])
        ]

    for place, propensity in zip(slate.places.tolist(), slate.propensities, strict=True):
        there = allowed()
        assert place in there
        expected = epsilon / len(there) + (1 - epsilon) * (place == there[0])
        assert propensity == pytest.approx(expected, rel=1e-12)
        shown.append(place)
        taken.update(own[place])
    assert len(shown) == k or not allowed()


def test_known_probabilities():
    slate = epsilon_greedy(SCORES, 4, 0.0, np.random.default_rng(0))
    assert slate.places.tolist() == [0, 1, 2, 3]
    assert slate.propensities.tolist() == [1, 1, 1, 1]
    weights = np.exp((np.array([1, 7 / 9, 7 / 18, 0]) - 1) / 0.5)
    for seed in range(60):
        slate = plackett_luce(1, np.random.default_rng(seed))
        share = weights[slate.places[0]] / weights.sum()
        assert slate.propensities[0] == pytest.approx(share, rel=1e-12)


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
