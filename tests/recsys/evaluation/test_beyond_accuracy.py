import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from recsys.data.batch import Jagged
from recsys.data.top_k import ItemMask
from recsys.evaluation.beyond_accuracy import (
    category_diversity,
    exposure,
    gini_of_exposure,
    intra_list_diversity,
    novelty,
)

pytestmark = pytest.mark.numerics

SHORT = torch.tensor([[1, 2, 3], [1, 2, -1], [-1, -1, -1]])


@given(st.lists(st.integers(0, 9), min_size=2, max_size=8).filter(any))
def test_gini_is_half_the_mean_absolute_difference_over_the_mean(counts: list[int]):
    lists = torch.tensor([[row] for row, times in enumerate(counts, 1) for _ in range(times)])
    n = len(counts)
    slow = sum(abs(a - b) for a in counts for b in counts) / (2 * n * sum(counts))
    assert gini_of_exposure(lists, 1, ItemMask.all(n + 1)) == pytest.approx(slow)


def test_novelty_is_the_information_in_bits():
    popularity = torch.tensor([0, 8, 4, 0])  # of 8 users
    bits = novelty(SHORT, 3, popularity, num_users=8)
    assert bits[:2].tolist() == [pytest.approx((0 + 1 + 3) / 3), pytest.approx(0.5)]
    assert math.isnan(bits[2])


def slow_diversity(rows: list[int], vectors: Tensor) -> float:
    distances = [
        1 - float(torch.cosine_similarity(vectors[a], vectors[b], dim=0, eps=1e-30))
        for place, a in enumerate(rows)
        for b in rows[:place]
    ]
    return sum(distances) / len(distances)


def test_diversity_agrees_with_all_pairs():
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(30, 5, generator=generator)
    vectors[7] = 0  # at distance 1 from all
    lists = torch.stack([torch.randperm(29, generator=generator)[:8] + 1 for _ in range(20)])
    lists[3, 4:] = -1
    lists[4, :] = torch.tensor([7, 1, 2, 3, 4, 5, 6, 8])
    measured = intra_list_diversity(lists, 8, vectors)
    slow = [slow_diversity([row for row in one if row > 0], vectors) for one in lists.tolist()]
    assert measured.tolist() == pytest.approx(slow, abs=1e-6)


@settings(max_examples=30)
@given(st.lists(st.sets(st.integers(0, 4)), min_size=3, max_size=6))
def test_category_diversity_is_that_of_the_sets_as_vectors(sets: list[set[int]]):
    categories = Jagged.from_lists([[], *map(sorted, sets)])
    vectors = torch.zeros(len(sets) + 1, 5)
    for row, members in enumerate(sets, 1):
        vectors[row, list(members)] = 1
    lists = torch.arange(1, len(sets) + 1)[None, :]
    measured = category_diversity(lists, len(sets), categories, 5)
    assert measured.tolist() == pytest.approx(
        intra_list_diversity(lists, len(sets), vectors).tolist(), abs=1e-6
    )


@pytest.mark.parametrize("k", [0, 4])
def test_k_beyond_the_lists_is_refused(k: int):
    with pytest.raises(ValueError, match="rank with a longer k"):
        exposure(SHORT, k, 5)
