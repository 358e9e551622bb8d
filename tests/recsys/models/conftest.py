"""A world with a known answer: even users take even items, odd users odd ones."""

import numpy as np
import pytest

from recsys.data.dataset import Sequences


def two_tastes(num_users: int = 60, num_items: int = 40, length: int = 12) -> Sequences:
    """User rows 1..U walk in a random order through items of their own parity; row 0 owns none."""
    rng = np.random.default_rng(7)
    own = [
        np.arange(1, num_items + 1)[np.arange(1, num_items + 1) % 2 == taste] for taste in (0, 1)
    ]
    walks = [rng.permutation(own[user % 2])[:length] for user in range(1, num_users + 1)]
    offsets = np.concatenate([[0, 0], np.cumsum([len(walk) for walk in walks])])
    return Sequences(
        item_rows=np.concatenate(walks),
        offsets=offsets,
        train_end=np.maximum(offsets[1:] - 2, offsets[:-1]),
        validation_end=np.maximum(offsets[1:] - 1, offsets[:-1]),
        times=np.arange(len(np.concatenate(walks))) * 3600,
    )


@pytest.fixture
def tastes() -> Sequences:
    return two_tastes()
