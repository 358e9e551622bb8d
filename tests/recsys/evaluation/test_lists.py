"""Metrics beyond accuracy, by hand and against slow counts."""

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recsys.data.batch import Jagged
from recsys.evaluation.beyond_accuracy import (
    catalogue_coverage,
    gini_of_exposure,
    intra_list_diversity,
    item_popularity,
    novelty,
)
from recsys.evaluation.calibration import (
    area_under_curve,
    expected_calibration_error,
    reliability_curve,
)
from recsys.evaluation.slices import (
    Slice,
    category_slices,
    item_popularity_slices,
    slice_metrics,
    user_activity_slices,
    user_slices,
)

pytestmark = pytest.mark.numerics

SHORT = torch.tensor([[1, 2, 3], [1, 2, -1], [-1, -1, -1]])


@given(st.lists(st.integers(0, 9), min_size=2, max_size=8).filter(any))
def test_gini_is_half_the_mean_absolute_difference_over_the_mean(counts: list[int]):
    lists = torch.tensor([[row] for row, times in enumerate(counts, 1) for _ in range(times)])
    n = len(counts)
    slow = sum(abs(a - b) for a in counts for b in counts) / (2 * n * sum(counts))
    assert gini_of_exposure(lists, 1, n + 1) == pytest.approx(slow)


def test_novelty_is_the_information_in_bits():
    popularity = torch.tensor([0, 8, 4, 0])  # of 8 users
    bits = novelty(SHORT, 3, popularity, num_users=8)
    assert bits[:2].tolist() == [pytest.approx((0 + 1 + 3) / 3), pytest.approx(0.5)]
    assert math.isnan(bits[2])


def test_diversity_agrees_with_all_pairs():
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(30, 5, generator=generator)
    vectors[7] = 0  # at distance 1 from all
    lists = torch.stack([torch.randperm(29, generator=generator)[:8] + 1 for _ in range(20)])
    lists[3, 4:] = -1
    lists[4, :] = torch.tensor([7, 1, 2, 3, 4, 5, 6, 8])
    for own, measured in zip(lists, intra_list_diversity(lists, 8, vectors), strict=True):
        pairs = torch.combinations(own[own > 0]).T
        cosines = torch.cosine_similarity(*vectors[pairs], eps=1e-30)
        assert float(measured) == pytest.approx(float((1 - cosines).mean()), abs=1e-6)


def test_calibration_error_of_four_predictions_by_hand():
    probabilities = torch.tensor([0.1, 0.2, 0.9, 0.8])
    labels = torch.tensor([0, 1, 1, 1])
    curve = reliability_curve(probabilities, labels, num_bins=2)
    assert curve.predicted.tolist() == pytest.approx([0.15, 0.85])
    assert curve.observed.tolist() == [0.5, 1]
    assert curve.counts.tolist() == [2, 2]
    assert expected_calibration_error(curve) == pytest.approx((0.35 + 0.15) / 2)


def test_equal_counts_keep_equal_predictions_together():
    probabilities = torch.tensor([0.01] * 7 + [0.02, 0.03, 0.5])
    curve = reliability_curve(probabilities, torch.ones(10), num_bins=5)
    assert curve.counts.tolist() == [7, 1, 2]


@pytest.mark.parametrize("distinct", [3, 1000])
def test_it_counts_the_pairs_in_order_and_halves_equals(distinct: int) -> None:
    generator = torch.Generator().manual_seed(1)
    scores = torch.randint(distinct, (200,), generator=generator).float()
    labels = torch.randint(2, (200,), generator=generator).float()
    positive, negative = scores[labels == 1, None], scores[labels == 0]
    pairs = (positive > negative).float() + (positive == negative).float() / 2
    assert area_under_curve(scores, labels) == pytest.approx(float(pairs.mean()), abs=1e-6)


def test_known_answers_and_edges() -> None:
    labels = torch.tensor([0.0, 0, 1, 1])
    for scores, area in (([1.0, 2, 3, 4], 1), ([4.0, 3, 2, 1], 0), ([0.0] * 4, 0.5)):
        assert area_under_curve(torch.tensor(scores), labels) == area
    assert math.isnan(area_under_curve(torch.zeros(3), torch.ones(3)))


def members(slices: list[Slice]) -> dict[str, list[bool]]:
    return {part.name: part.targets.tolist() for part in slices}


def test_head_holds_half_the_events_and_cold_items_have_none():
    popularity = torch.tensor([99, 50, 20, 20, 9, 1, 0])  # row 0 does not count
    targets = Jagged.from_lists([[1, 2, 3], [4, 5], [6, 77]])
    assert members(item_popularity_slices(targets, popularity)) == {
        "head": [True] + [False] * 6,
        "torso": [False, True, True, False, False, False, False],
        "tail": [False, False, False, True, True, False, False],
        "cold": [False] * 5 + [True, True],
    }


def test_users_are_new_medium_or_heavy_by_their_events():
    targets = Jagged.from_lists([[1]] * 7)
    events = torch.tensor([0, 4, 5, 6, 7, 8, 90])
    assert members(user_activity_slices(targets, events)) == {
        "new": [True, True, False, False, False, False, False],
        "medium": [False, False, True, True, True, True, False],
        "heavy": [False] * 6 + [True],
    }


def test_an_item_may_be_in_several_categories_or_none():
    categories = Jagged.from_lists([[1], [1, 2], [2], []])
    targets = Jagged.from_lists([[1, 2], [3, 9, 0]])
    assert members(category_slices(targets, "category", categories, ["", "drama", "comedy"])) == {
        "drama": [True, False, False, False, False],
        "comedy": [True, True, False, False, False],
    }


def test_metrics_of_a_slice_see_its_targets_alone():
    ranks = Jagged.from_lists([[1, 20], [3], []])
    cuts = [
        Slice("items", "first", torch.tensor([True, False, False])),
        Slice("items", "others", torch.tensor([False, True, True])),
    ]
    first, others = slice_metrics(ranks, cuts, ["recall@10", "ndcg@10"])
    assert (first.num_users, first.num_targets) == (1, 1)
    assert first.metrics["ndcg@10"].mean == 1
    assert (others.num_users, others.num_targets) == (2, 2)
    assert others.metrics["recall@10"].mean == 0.5
    assert others.metrics["ndcg@10"].mean == pytest.approx(0.25)
    assert others.metrics["ndcg@10"].num_users == 2


def test_popularity_counts_users_not_events():
    histories = Jagged.from_lists([[1, 1, 2], [1], [], [3, 0]])
    assert item_popularity(histories, 5).tolist() == [0, 2, 1, 1, 0]


def test_coverage_is_the_share_of_items():
    assert catalogue_coverage(SHORT, 3, 7) == pytest.approx(3 / 6)


def test_a_slice_as_json_has_intervals():
    ranks = Jagged.from_lists([[1], [50]])
    everyone = user_slices(ranks, "all", {"all": torch.ones(2, dtype=torch.bool)})
    (part,) = slice_metrics(ranks, everyone, ["ndcg@10"])
    interval = json.loads(json.dumps(part.as_json(), allow_nan=False))["metrics"]["ndcg@10"]
    assert interval["mean"] == 0.5
    assert interval["num_users"] == 2
    assert interval["low"] <= 0.5 <= interval["high"]
    assert not math.isnan(interval["low"])
