from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recsys.data.batch import Jagged, JaggedBatch


def test_segments_name_the_owner_of_each_value_and_skip_empty_examples() -> None:
    feature = Jagged.from_lists([[7, 3, 9], [], [4, 4]])
    assert feature.segments().tolist() == [0, 0, 0, 2, 2]
    assert feature.lengths().tolist() == [3, 0, 2]


@given(
    st.lists(st.lists(st.integers(1, 99), max_size=7), min_size=1, max_size=6), st.integers(1, 5)
)
def test_padding_keeps_the_latest_values_on_the_right(lists: list[list[int]], length: int) -> None:
    padded = Jagged.from_lists(lists).padded(length)
    expected = [[0] * max(0, length - len(row)) + row[-length:] for row in lists]
    assert padded.tolist() == expected


def test_a_missing_feature_is_named_beside_those_there_are() -> None:
    batch = JaggedBatch({"history": Jagged.one_each(torch.tensor([3, 4]))})
    with pytest.raises(KeyError, match=r"no feature 'user'.*history"):
        batch["user"]


def test_take_picks_examples_in_any_order_and_repeatedly() -> None:
    jagged = Jagged.from_lists([[1, 2], [], [3]])._replace(weights=torch.tensor([0.1, 0.2, 0.3]))
    taken = jagged.take(torch.tensor([2, 1, 0, 2]))
    assert taken.values.tolist() == [3, 1, 2, 3]
    assert taken.offsets.tolist() == [0, 1, 1, 3, 4]
    torch.testing.assert_close(taken.weights, torch.tensor([0.3, 0.1, 0.2, 0.3]))
    assert jagged.take(torch.empty(0, dtype=torch.int64)).batch_size == 0
