"""What stands at a distance, laid out for pairs of places."""

from __future__ import annotations

import pytest
import torch

from recsys.layers.attention.softmax import by_pair


@pytest.mark.parametrize("length", [1, 2, 3, 40])
def test_pairs_and_gradients_are_those_of_an_indexed_lookup(length: int) -> None:
    torch.manual_seed(length)
    by_distance = torch.randn(2, length, dtype=torch.float64, requires_grad=True)
    place = torch.arange(length)
    distance = place[:, None] - place  # [T, T]
    expected = by_distance[:, distance.clamp_min(0)] * (distance >= 0)
    found = by_pair(by_distance)
    assert torch.equal(found, expected)
    weights = torch.randn(2, length, length, dtype=torch.float64)
    gradients = [
        torch.autograd.grad((one * weights).sum(), by_distance)[0] for one in (found, expected)
    ]
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)
