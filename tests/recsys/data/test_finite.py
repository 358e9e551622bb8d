from __future__ import annotations

import pytest
import torch

from recsys.data.batch import all_finite


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_one_bad_value_anywhere_is_found(bad: float) -> None:
    values = torch.randn(3, 101)
    assert all_finite(values)
    for place in (0, 150, 302):
        spoilt = values.clone()
        spoilt.view(-1)[place] = bad
        assert not all_finite(spoilt)
    assert all_finite(torch.empty(0, 4))
    assert not all_finite(torch.full((1,), bad))
