import numpy as np

from recsys.retrieval.ranked import RankedItems, with_new_items


def listed(rows: list[int]) -> RankedItems:
    number = len(rows)
    return RankedItems(
        np.array(rows),
        -np.arange(number, dtype=np.float32),
        ("ease",),
        np.arange(1, number + 1)[:, None],
        np.ones((number, 1), np.float32),
    )


def test_half_of_a_list_is_new_and_the_order_stays() -> None:
    seen = np.array([1, 2, 3, 4])
    found = with_new_items(listed([1, 2, 5, 3, 4, 6, 7]), seen, 4, 0.5)
    assert found.item_rows.tolist() == [1, 2, 5, 6]
    assert found.scores.tolist() == [0.0, -1.0, -2.0, -5.0]


def test_items_of_the_history_follow_where_there_are_no_others() -> None:
    found = with_new_items(listed([1, 2, 3, 9]), np.array([1, 2, 3]), 4, 0.5)
    assert found.item_rows.tolist() == [1, 2, 3, 9]
