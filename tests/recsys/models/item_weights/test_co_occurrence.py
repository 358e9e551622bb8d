"""Users that items share, against the product of matrices."""

import numpy as np
import pytest

from recsys.models.item_weights import co_occurrence
from recsys.models.item_weights.co_occurrence import CoOccurrence, UserItems

pytestmark = pytest.mark.numerics
NUM_ROWS = 8


def items_of(histories: list[list[int]], max_events: int = 99, times: bool = False) -> UserItems:
    offsets = np.concatenate([[0], np.cumsum([len(one) for one in histories])])
    rows = np.array([row for one in histories for row in one], np.int64)
    clock = np.arange(len(rows)) * 10 if times else None
    return UserItems.of(rows, offsets[:-1], offsets[1:], clock, NUM_ROWS, max_events)


@pytest.mark.parametrize("cells", [1, 20, 1 << 22])
def test_rows_are_those_of_the_weighted_product(
    cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(co_occurrence, "MAX_CELLS", cells)
    rng = np.random.default_rng(3)
    histories = [rng.integers(0, NUM_ROWS, size).tolist() for size in (5, 0, 1, 9, 4)]
    items = items_of(histories)
    values = rng.random(len(items.rows)).astype(np.float32)
    weights = rng.random(len(histories)).astype(np.float32)
    taken = np.zeros((len(histories), NUM_ROWS))
    users = np.repeat(np.arange(len(histories)), items.lengths())
    taken[users, items.rows] = values
    wanted = (taken * weights[:, None]).T @ taken
    pairs = CoOccurrence(items, values, weights)
    found = np.zeros((NUM_ROWS, NUM_ROWS))
    for rows, block in pairs.blocks(np.arange(NUM_ROWS)):
        found[rows] = block
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    counted = np.zeros((NUM_ROWS, NUM_ROWS))
    for one in pairs.pair_blocks(np.arange(NUM_ROWS)):
        assert (counted[one.rows, one.others] == 0).all()
        assert (np.diff(one.rows * NUM_ROWS + one.others) > 0).all()
        counted[one.rows, one.others] = one.counts
    np.testing.assert_allclose(counted, wanted, rtol=1e-5)
    np.testing.assert_allclose(pairs.diagonal(), (taken**2).sum(0), rtol=1e-5)
