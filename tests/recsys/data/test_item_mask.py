from __future__ import annotations

import numpy as np
import pytest
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


def test_masks_of_different_catalogues_do_not_combine() -> None:
    with pytest.raises(ValueError, match="4 and 5 item rows"):
        ItemMask.all(4) & ItemMask.all(5)


def test_all_but_some_rows_is_the_mask_of_the_others() -> None:
    mask = ItemMask.all_but(6, np.array([4, 2, 4]))
    assert mask == ItemMask(np.isin(np.arange(6), [1, 3, 5]))
    for one in (mask, ItemMask(np.isin(np.arange(6), [1, 3, 5]))):
        scores = np.arange(6, dtype=np.float32)
        one.blank(scores)
        assert scores.tolist() == [-np.inf, 1, -np.inf, 3, -np.inf, 5]
    with pytest.raises(ValueError, match="covers 6 item rows, the catalogue has 5"):
        mask.blank(np.zeros(5, np.float32))
