"""Area under the curve against a count of all pairs."""

import math

import pytest
import torch

from recsys.evaluation.calibration import area_under_curve

pytestmark = pytest.mark.numerics


def by_pairs(scores: torch.Tensor, labels: torch.Tensor) -> float:
    positive, negative = scores[labels == 1], scores[labels == 0]
    above = (positive[:, None] > negative).float() + (positive[:, None] == negative).float() / 2
    return float(above.mean())


@pytest.mark.parametrize("distinct", [3, 1000])
def test_it_counts_the_pairs_in_order_and_halves_equals(distinct: int) -> None:
    generator = torch.Generator().manual_seed(1)
    scores = torch.randint(distinct, (200,), generator=generator).float()
    labels = torch.randint(2, (200,), generator=generator).float()
    assert area_under_curve(scores, labels) == pytest.approx(by_pairs(scores, labels), abs=1e-6)


def test_known_answers_and_edges() -> None:
    labels = torch.tensor([0.0, 0, 1, 1])
    assert area_under_curve(torch.tensor([1.0, 2, 3, 4]), labels) == 1
    assert area_under_curve(torch.tensor([4.0, 3, 2, 1]), labels) == 0
    assert area_under_curve(torch.zeros(4), labels) == 0.5
    assert math.isnan(area_under_curve(torch.zeros(3), torch.ones(3)))
    with pytest.raises(ValueError, match="NaN"):
        area_under_curve(torch.tensor([torch.nan, 1.0]), torch.tensor([0.0, 1.0]))
