from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from recsys.data.top_k import ItemMask

ROWS = st.sets(st.integers(0, 19))


@given(ROWS, ROWS)
def test_masks_combine_like_sets_and_never_hold_row_zero(left: set[int], right: set[int]) -> None:
    a, b = (ItemMask(np.isin(np.arange(20), sorted(rows))) for rows in (left, right))
    assert (a & b).rows().tolist() == sorted((left & right) - {0})
    assert a.rows().tolist() == sorted(left - {0})
    assert a.count() == len(left - {0})
