"""Diversity and caps by their definitions."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys.reranking.lists import Caps, capped, mmr, scale_relevance


def world(seed, number=8, width=4):
    random = np.random.default_rng(seed)
    vectors = random.normal(size=(number, width))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.sort(random.normal(size=number))[::-1], vectors


def greedily(number, k, value):
    """Choose the place of the greatest value(place, chosen) each time."""
    chosen = []
    while len(chosen) < min(k, number):
        values = [-np.inf if one in chosen else value(one, chosen) for one in range(number)]
        chosen.append(int(np.argmax(values)))
    return chosen


@pytest.mark.parametrize("strength", [0.1, 0.5, 0.9, 1.0])
def test_mmr_is_its_definition(strength):
    def marginal(place, chosen):
        nearest = max((vectors[place] @ vectors[other] for other in chosen), default=0)
        return (1 - strength) * relevance[place] - strength * nearest

    for seed in range(20):
        scores, vectors = world(seed)
        relevance = scale_relevance(scores)
        assert mmr(scores, vectors, 5, strength).tolist() == greedily(8, 5, marginal)


def test_strength_0_keeps_the_order_and_copies_come_last():
    vectors = np.array([[1.0, 0], [1, 0], [0, 1]])
    scores = np.array([3.0, 2.9, 1])
    assert mmr(scores, vectors, 3, 0.0).tolist() == [0, 1, 2]
    assert mmr(scores, vectors, 3, 0.7).tolist() == [0, 2, 1]


groups = st.lists(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3)), max_size=3), max_size=15
)


@given(groups, st.integers(1, 3), st.integers(1, 3), st.integers(0, 10))
def test_no_group_has_more_than_its_cap_and_no_item_is_left_out_in_vain(own, first, second, k):
    own = [list(dict.fromkeys(one)) for one in own]
    limits = [first, second]
    found = capped(np.arange(len(own)), Caps(own, limits), k).tolist()
    taken = Counter(group for place in found for group in own[place])
    assert all(taken[group] <= limits[group[0]] for group in taken)
    assert found == sorted(found)
    if len(found) < k:
        for place in set(range(len(own))) - set(found):
            earlier = Counter(g for other in found if other < place for g in own[other])
            assert any(earlier[group] >= limits[group[0]] for group in own[place])
