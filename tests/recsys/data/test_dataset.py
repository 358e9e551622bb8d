from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from recsys.data.dataset import Sequences


def three_users() -> Sequences:
    """User 1: items 1 2 3 4 (last two held out), user 2: nothing, user 3: items 5 6 in train."""
    return Sequences(
        item_rows=np.array([1, 2, 3, 4, 5, 6]),
        offsets=np.array([0, 0, 4, 4, 6]),
        train_end=np.array([0, 2, 4, 6]),
        validation_end=np.array([0, 3, 4, 6]),
        times=np.array([10, 20, 30, 40, 50, 60]),
        context={"hour": np.array([0, 1, 2, 3, 4, 5])},
    )


def test_labels_of_each_split() -> None:
    sequences = three_users()
    expected = {"train": [1, 5], "validation": [2], "test": [3], "all": [1, 2, 3, 5]}
    for split, positions in expected.items():
        assert sequences.label_positions(split).tolist() == positions  # type: ignore[arg-type]
    assert sequences.labels(np.array([2, 3])).tolist() == [3, 4]


def test_a_query_holds_only_what_came_before_its_label() -> None:
    queries = three_users().queries(
        np.array([3, 0, 5]), max_history=2, user_features={"age": np.array([0, 7, 8, 9])}
    )
    assert queries["history"].values.tolist() == [2, 3, 5]
    assert queries["history"].lengths().tolist() == [2, 0, 1]
    assert queries["user"].values.tolist() == [1, 1, 3]
    assert queries["user.age"].values.tolist() == [7, 7, 9]
    assert queries["context.hour"].values.tolist() == [3, 0, 5]


def test_sequences_come_back_from_disk(tmp_path: Path) -> None:
    sequences = three_users()
    for name in ("item_rows", "offsets", "train_end", "validation_end"):
        np.save(tmp_path / f"{name}.npy", getattr(sequences, name))
    loaded = Sequences.load(tmp_path)
    assert loaded.times is None
    assert loaded.context == {}
    assert loaded.label_positions("all").tolist() == [1, 2, 3, 5]


def test_split_ends_outside_a_users_events_are_refused() -> None:
    with pytest.raises(ValueError, match="user row 1 has split ends outside"):
        Sequences(
            item_rows=np.array([1, 2]),
            offsets=np.array([0, 0, 2]),
            train_end=np.array([0, 3]),
            validation_end=np.array([0, 3]),
        )
