"""Diversity, caps and calibration by their definitions."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys.reranking.diversity import (
    SMOOTHING,
    Caps,
    calibrated,
    capped,
    dpp,
    mmr,
    scale_relevance,
)


def world(seed, number=8, width=4):
    random = np.random.default_rng(seed)
    vectors = random.normal(size=(number, width))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.sort(random.normal(size=number))[::-1], vectors


def slow_mmr(scores, vectors, k, strength):
    relevance, chosen = scale_relevance(scores), []
    while len(chosen) < min(k, len(scores)):
        values = [
            -np.inf
            if place in chosen
            else (1 - strength) * relevance[place]
            - strength * max((vectors[place] @ vectors[other] for other in chosen), default=0)
            for place in range(len(scores))
        ]
        chosen.append(int(np.argmax(values)))
    return chosen


def slow_dpp(scores, vectors, k, strength):
    """Each step by the determinant itself."""
    quality = np.exp((1 - strength) / strength * scale_relevance(scores))
    kernel = quality[:, None] * (vectors @ vectors.T) * quality
    chosen = []
    while len(chosen) < min(k, len(scores)):
        values = [
            -np.inf
            if place in chosen
            else np.linalg.slogdet(kernel[np.ix_([*chosen, place], [*chosen, place])])[1]
            for place in range(len(scores))
        ]
        chosen.append(int(np.argmax(values)))
    return chosen


@pytest.mark.parametrize("strength", [0.1, 0.5, 0.9, 1.0])
def test_mmr_is_its_definition_and_dpp_greedy_by_determinants(strength):
    for seed in range(20):
        scores, vectors = world(seed)
        assert mmr(scores, vectors, 5, strength).tolist() == slow_mmr(scores, vectors, 5, strength)
        # At most as many items as the vectors have directions: beyond that determinants are 0.
        if strength < 1:
            found = dpp(scores, vectors, 4, strength).tolist()
            assert found == slow_dpp(scores, vectors, 4, strength)


@pytest.mark.parametrize("choose", [mmr, dpp])
def test_strength_0_keeps_the_order_and_copies_come_last(choose):
    vectors = np.array([[1.0, 0], [1, 0], [0, 1]])
    scores = np.array([3.0, 2.9, 1])
    assert choose(scores, vectors, 3, 0.0).tolist() == [0, 1, 2]
    assert choose(scores, vectors, 3, 0.7).tolist() == [0, 2, 1]


@pytest.mark.parametrize("choose", [mmr, dpp])
def test_what_is_out_of_range_is_refused(choose):
    with pytest.raises(ValueError, match=r"strength must be in \[0, 1\], got 1.5"):
        choose(np.ones(2), np.ones((2, 2)), 1, 1.5)
    with pytest.raises(ValueError, match="2 candidates need as many vectors"):
        choose(np.ones(2), np.ones((3, 2)), 1, 0.5)


@pytest.mark.parametrize("strength", [0.05, 0.1, 0.5, 1.0])
def test_dpp_knows_copies_among_float32_vectors(strength):
    # Rounded to float32 a vector's length is 1 to 1e-7 only, and so is its likeness to its copy.
    _, vectors = world(0, 5, 384)
    vectors = vectors.astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    scores = np.array([6.0, 5.9, 5.8, 0.4, 0.3, 0.2, 0.1])
    found = dpp(scores, vectors[[0, 0, 1, 1, 2, 3, 4]], 7, strength).tolist()
    assert {place // 2 for place in found[:2] if place < 4} <= {0, 1}
    assert sorted(found[-2:]) == found[-2:]
    assert found[-2] in (0, 1)
    assert found[-1] in (2, 3)


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
