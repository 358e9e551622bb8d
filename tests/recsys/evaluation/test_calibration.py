import math

import pytest
import torch

from recsys.data.batch import Jagged
from recsys.evaluation.calibration import (
    category_shares,
    expected_calibration_error,
    list_miscalibration,
    reliability_curve,
)

pytestmark = pytest.mark.numerics

# Items 1 drama, 2 comedy, 3 both, 4 without a category.
CATEGORIES = Jagged.from_lists([[], [1], [2], [1, 2], []])


def test_calibration_error_of_four_predictions_by_hand():
    probabilities = torch.tensor([0.1, 0.2, 0.9, 0.8])
    labels = torch.tensor([0, 1, 1, 1])
    curve = reliability_curve(probabilities, labels, num_bins=2)
    assert curve.predicted.tolist() == pytest.approx([0.15, 0.85])
    assert curve.observed.tolist() == [0.5, 1]
    assert curve.counts.tolist() == [2, 2]
    assert expected_calibration_error(curve) == pytest.approx((0.35 + 0.15) / 2)


def test_true_probabilities_are_calibrated_and_squeezed_ones_are_not():
    generator = torch.Generator().manual_seed(0)
    truth = torch.rand(200_000, generator=generator)
    labels = torch.bernoulli(truth, generator=generator)
    fair = reliability_curve(truth, labels)
    assert expected_calibration_error(fair) < 0.005
    squeezed = reliability_curve(0.5 + (truth - 0.5) / 2, labels)
    # |x - 1/2| / 2 on average over [0, 1]
    assert expected_calibration_error(squeezed) == pytest.approx(0.125, abs=0.005)


def test_equal_counts_keep_equal_predictions_together():
    probabilities = torch.tensor([0.01] * 7 + [0.02, 0.03, 0.5])
    curve = reliability_curve(probabilities, torch.ones(10), num_bins=5)
    assert curve.counts.tolist() == [7, 1, 2]


@pytest.mark.parametrize(
    ("probabilities", "labels", "message"),
    [
        ([0.5, 1.2], [0, 1], "sigmoid"),
        ([0.5, math.nan], [0, 1], "sigmoid"),
        ([0.5], [2], "must be 0 or 1"),
        ([], [], "P >= 1"),
    ],
)
def test_what_is_no_probability_or_label_is_refused(probabilities, labels, message):
    with pytest.raises(ValueError, match=message):
        reliability_curve(torch.tensor(probabilities), torch.tensor(labels))


def test_an_item_splits_its_weight_over_its_categories():
    items = Jagged.from_lists([[1, 1, 3], [4], []])
    shares = category_shares(items, CATEGORIES, 3)
    assert shares.tolist() == [
        [0, pytest.approx(2.5 / 3), pytest.approx(0.5 / 3)],
        [0, 0, 0],
        [0, 0, 0],
    ]


def test_miscalibration_follows_the_definition():
    lists, histories = torch.tensor([[1, 1, 2]]), Jagged.from_lists([[1, 2]])
    p, q = (0.5, 0.5), (2 / 3, 1 / 3)
    expected = sum(a * math.log(a / (0.99 * b + 0.01 * a)) for a, b in zip(p, q, strict=True))
    found = list_miscalibration(lists, 3, histories, CATEGORIES, 3)
    assert found.tolist() == pytest.approx([expected])
