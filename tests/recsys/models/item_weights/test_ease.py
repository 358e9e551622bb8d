"""EASE's weights against the regression that they solve."""

import numpy as np
import pytest

from recsys.models.configs import EaseWeightsConfig
from recsys.models.item_weights import ease
from recsys.models.item_weights.co_occurrence import CoOccurrence, UserItems
from recsys.models.item_weights.ease import check_memory, ease_model, most_frequent, shared_users
from recsys.models.item_weights.model import ItemWeights

pytestmark = pytest.mark.numerics
NUM_ROWS = 9


def pairs_of(num_users: int = 300) -> tuple[CoOccurrence, np.ndarray]:
    """Items 1 to 8 of users with a few each, the lower ones more often."""
    rng = np.random.default_rng(0)
    rows = np.minimum(rng.integers(0, 9, 4 * num_users), rng.integers(1, 10, 4 * num_users))
    starts = np.arange(num_users) * 4
    items = UserItems.of(rows, starts, starts + 4, None, NUM_ROWS, 99)
    taken = np.zeros((num_users, NUM_ROWS))
    taken[np.repeat(np.arange(num_users), 4), rows] = 1
    return CoOccurrence(items), taken


def dense(model: ItemWeights) -> np.ndarray:
    found = np.zeros((NUM_ROWS, NUM_ROWS))
    offsets, rows, weights = (part.numpy() for part in model.table)
    found[np.repeat(np.arange(NUM_ROWS), np.diff(offsets)), rows] = weights
    return found


def fitted(pairs: CoOccurrence, config: EaseWeightsConfig) -> ItemWeights:
    exact = most_frequent(pairs, config.exact_items)
    return ease_model(pairs, exact, shared_users(pairs, exact), config)


def test_weights_are_the_ridge_regression_of_each_item_on_the_others() -> None:
    pairs, taken = pairs_of()
    found = dense(fitted(pairs, EaseWeightsConfig(l2=(3.0,))))
    assert not found[0].any()
    assert not found[:, 0].any()
    for item in range(1, NUM_ROWS):
        others = np.setdiff1d(np.arange(1, NUM_ROWS), [item])
        x, y = taken[:, others], taken[:, item]
        wanted = np.linalg.solve(x.T @ x + 3.0 * np.eye(len(others)), x.T @ y)
        np.testing.assert_allclose(found[others, item], wanted, atol=1e-5)
        assert found[item, item] == 0


def ridge(taken: np.ndarray, items: list[int], l2: float) -> np.ndarray:
    """EASE among a few items, as rows of all."""
    x = taken[:, items]
    inverse = np.linalg.inv(x.T @ x + l2 * np.eye(len(items)))
    found = np.zeros((NUM_ROWS, NUM_ROWS))
    found[np.ix_(items, items)] = -inverse / np.diag(inverse)
    return found


@pytest.mark.parametrize("cells", [1, 1 << 22])
def test_rarer_items_extend_the_exact_regression_one_at_a_time(
    cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ease, "MAX_CELLS", cells)
    pairs, taken = pairs_of()
    exact = most_frequent(pairs, 3).tolist()
    found = dense(fitted(pairs, EaseWeightsConfig(l2=(5.0,), exact_items=3)))
    for source in range(1, NUM_ROWS):
        for target in range(1, NUM_ROWS):
            if source != target:
                among = sorted({*exact, source, target})
                wanted = ridge(taken, among, 5.0)[source, target]
                assert found[source, target] == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize(
    "wrong", [{"l2": ()}, {"l2": (0.0,)}, {"history_power": (-1.0,)}, {"exact_items": 0}]
)
def test_wrong_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        EaseWeightsConfig(**wrong)  # type: ignore[arg-type]


def test_a_catalogue_beyond_the_memory_is_refused_with_a_size_that_fits() -> None:
    check_memory(1_000)
    with pytest.raises(ValueError, match=r"set ease.exact_items to at most \d+"):
        check_memory(10_000_000)
