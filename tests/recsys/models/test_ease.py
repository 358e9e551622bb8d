"""Linear item-to-item weights: the closed form against the regression it solves."""

from pathlib import Path

import numpy as np
import pytest
import torch

from recsys.data.batch import Jagged
from recsys.models.item_weights.ease import Ease

pytestmark = pytest.mark.numerics

NUM_ITEMS = 9


def events(num_users: int = 1500) -> tuple[np.ndarray, np.ndarray]:
    """More users than a block, each with a few items of 1 to 8, some twice."""
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(num_users), 4)
    return users, rng.integers(1, NUM_ITEMS, len(users)) * (rng.random(len(users)) < 0.9)


def test_weights_are_the_ridge_regression_of_each_item_on_the_others() -> None:
    users, items = events()
    model = Ease.fit(users, items, NUM_ITEMS, l2=3.0)
    taken = np.zeros((users.max() + 1, NUM_ITEMS))
    taken[users, items] = 1
    taken = taken[:, 1:]
    for item in range(NUM_ITEMS - 1):
        others = np.delete(np.arange(NUM_ITEMS - 1), item)
        x, y = taken[:, others], taken[:, item]
        wanted = np.linalg.solve(x.T @ x + 3.0 * np.eye(len(others)), x.T @ y)
        np.testing.assert_allclose(model.weights[others, item].numpy(), wanted, atol=1e-5)
        assert float(model.weights[item, item]) == 0


def test_a_score_is_the_sum_over_the_history() -> None:
    weights = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    model = Ease(torch.tensor([2, 5]), weights, 7)
    history = Jagged.from_lists([[2, 5, 2, 6, 99], []])
    found = model.score(history, torch.tensor([[5, 2, 1, -1, 50], [2, 5, 0, 0, 0]]))
    assert found.tolist() == [[4, 3, 0, 0, 0], [0, 0, 0, 0, 0]]


def test_only_the_items_with_the_most_events_have_weights(tmp_path: Path) -> None:
    users, items = events()
    model = Ease.fit(users, items, NUM_ITEMS, max_items=3)
    counts = np.bincount(items, minlength=NUM_ITEMS)[1:]
    assert set(model.item_rows.tolist()) == set(
        (np.argsort(-counts, kind="stable")[:3] + 1).tolist()
    )
    model.save(tmp_path)
    loaded = Ease.load(tmp_path)
    assert torch.equal(loaded.weights, model.weights)
    assert torch.equal(loaded.places, model.places)
