import numpy as np

from pipelines.auto.shape import is_repeat, repeat_share
from recsys.data.dataset import Sequences


def sequences(*users: list[int]) -> Sequences:
    """Lay users' items out, the last event of each held out for test, the one before it too."""
    ends = np.cumsum([0, 0, *map(len, users)])
    return Sequences(
        item_rows=np.array([item for user in users for item in user]),
        offsets=ends,
        train_end=np.maximum(ends[:-1], ends[1:] - 2),
        validation_end=np.maximum(ends[:-1], ends[1:] - 1),
    )


def test_an_item_repeats_within_a_user_only() -> None:
    found = is_repeat(sequences([1, 2, 1, 1], [1, 2, 3]))
    assert found.tolist() == [False, False, True, True, False, False, False]


def test_the_share_of_repeats_is_of_held_out_events() -> None:
    assert repeat_share(sequences([1, 2, 1, 2], [3, 3, 4, 5])) == 0.5
    assert repeat_share(sequences()) == 0.0
