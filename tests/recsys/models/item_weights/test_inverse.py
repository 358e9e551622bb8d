"""The inverse in place, against LAPACK's."""

import pytest
import torch

from recsys.models.item_weights.ease import invert_in_place

pytestmark = pytest.mark.numerics


@pytest.mark.parametrize("block", [1, 3, 7, 64])
def test_inverse_is_that_of_the_lower_triangle(block: int) -> None:
    torch.manual_seed(0)
    points = torch.randn(20, 7, dtype=torch.float64)
    matrix = points.T @ points + torch.eye(7)
    wanted = torch.linalg.inv(matrix)
    given = matrix.tril()
    assert invert_in_place(given, block) is given
    torch.testing.assert_close(given, wanted)


@pytest.mark.parametrize("value", [-1.0, float("nan")])
def test_what_is_not_positive_definite_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="not positive definite"):
        invert_in_place(torch.diag(torch.tensor([1.0, 1.0, value])), 2)
