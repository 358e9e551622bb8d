from __future__ import annotations

import numpy as np

from recsys.data.windows import BatchOrder


def test_an_epoch_sees_each_example_once_and_the_next_one_in_another_order() -> None:
    order = BatchOrder(num_samples=12, batch_size=4, seed=1)
    epochs = [np.concatenate([order.indices(3 * e + s) for s in range(3)]) for e in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(12))
    assert epochs[0].tolist() != epochs[1].tolist()


def test_another_seed_is_another_order() -> None:
    orders = [BatchOrder(num_samples=50, batch_size=50, seed=seed) for seed in (1, 2, 1)]
    first, second, again = (order.indices(0).tolist() for order in orders)
    assert first == again
    assert first != second
