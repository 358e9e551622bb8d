import numpy as np
import pytest

from recsys.data.batch import Jagged
from recsys.data.dataset import Sequences
from recsys.data.windows import next_events, training_windows, window_batch


def walks(lengths: list[int]) -> Sequences:
    """Users whose events are numbered through, all of them in train."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    rows = np.arange(1, offsets[-1] + 1)
    return Sequences(rows, offsets, offsets[1:], offsets[1:], times=rows * 60)


@pytest.mark.parametrize("max_length", [1, 2, 3, 50])
def test_every_event_but_the_first_is_a_label_once(max_length: int) -> None:
    sequences = walks([0, 1, 2, 7, 4])
    windows = training_windows(sequences, "train", max_length)
    labels, has_label = next_events(window_batch(sequences, *windows)["history"])
    assert sorted(labels[has_label].tolist()) == [3, 5, 6, 7, 8, 9, 10, 12, 13, 14]
    assert (windows.ends - windows.starts).max() <= max_length + 1
    assert (windows.ends - windows.starts).min() >= 2


def test_the_last_event_and_empty_sequences_have_no_label() -> None:
    labels, has_label = next_events(Jagged.from_lists([[], [1, 2, 3], [], [4], []]))
    assert labels.tolist() == [2, 3, 0, 0]
    assert has_label.tolist() == [True, True, False, False]
    labels, has_label = next_events(Jagged.from_lists([[], []]))
    assert len(labels) == len(has_label) == 0
