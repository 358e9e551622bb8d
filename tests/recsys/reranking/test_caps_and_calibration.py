from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys.reranking.diversity import SMOOTHING, Caps, calibrated, capped, scale_relevance

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


def test_known_list():
    own = [[(0, 7)], [(0, 7)], [(0, 7), (0, 8)], [], [(0, 8)]]
    assert capped(np.array([0, 1, 2, 3, 4]), Caps(own, [1]), 5).tolist() == [0, 3, 4]


def slow(scores, classes, target, k, strength):
    relevance, chosen = scale_relevance(scores), []
    there = [c for c, share in enumerate(target) if share > 0]
    while len(chosen) < min(k, len(scores)):
        values = []
        for place in range(len(scores)):
            mix = np.mean([classes[one] for one in [*chosen, place]], axis=0)
            divergence = sum(
                target[c] * np.log(target[c] / ((1 - SMOOTHING) * mix[c] + SMOOTHING * target[c]))
                for c in there
            )
            value = (1 - strength) * relevance[place] - strength * divergence
            values.append(-np.inf if place in chosen else value)
        chosen.append(int(np.argmax(values)))
    return chosen


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("strength", [0.2, 0.6, 1.0])
def test_calibration_is_its_definition(seed, strength):
    random = np.random.default_rng(seed)
    classes = random.dirichlet(np.ones(3), 9)
    target = np.array([*random.dirichlet(np.ones(2)), 0.0])
    scores = np.sort(random.normal(size=9))[::-1]
    found = calibrated(scores, classes, target, 6, strength).tolist()
    assert found == slow(scores, classes, target, 6, strength)


def test_a_list_follows_the_mix_of_the_history():
    classes = np.repeat(np.eye(2), 10, axis=0)
    scores = np.arange(20, 0, -1.0)
    found = calibrated(scores, classes, np.array([0.7, 0.3]), 10, 0.99)
    assert sum(found < 10) == 7
    assert calibrated(scores, classes, np.array([0.7, 0.3]), 10, 0.0).tolist() == list(range(10))
