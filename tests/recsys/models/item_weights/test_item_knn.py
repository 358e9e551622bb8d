"""Item-kNN's weights against their definition."""

from itertools import pairwise

import numpy as np
import pytest

from recsys.models.configs import ItemKnnConfig
from recsys.models.item_weights import item_knn
from recsys.models.item_weights.co_occurrence import UserItems
from recsys.models.item_weights.item_knn import item_knn_model

pytestmark = pytest.mark.numerics
NUM_ROWS = 7
DAY = 86_400


def test_a_weight_is_bm25_times_the_cosine_with_decayed_events() -> None:
    rng = np.random.default_rng(1)
    histories = [rng.choice(np.arange(1, NUM_ROWS), size, replace=False) for size in (2, 5, 3, 4)]
    rows, offsets = np.concatenate(histories), np.cumsum([0, 2, 5, 3, 4])
    days = rng.integers(0, 30, len(rows))
    items = UserItems.of(rows, offsets[:-1], offsets[1:], days * DAY, NUM_ROWS, 99)
    config = ItemKnnConfig(length_weight=(0.7,), half_life_days=(10.0,))
    model = item_knn_model(items, config)

    taken = np.zeros((4, NUM_ROWS))
    for user, (begin, end) in enumerate(pairwise(offsets)):
        taken[user, rows[begin:end]] = 2.0 ** (-(days.max() - days[begin:end]) / 10 / 2)
    lengths = (taken > 0).sum(1)
    count = (taken > 0).sum(0)
    idf = np.log((4 - count + 0.5) / (count + 0.5) + 1)
    per_user = 1 / (1 + 0.7 * lengths / lengths.mean())
    root = np.sqrt((taken**2).sum(0))
    found, offsets_ = model.table, model.table.offsets
    for source in range(1, NUM_ROWS):
        own = slice(int(offsets_[source]), int(offsets_[source + 1]))
        for target, weight in zip(found.rows[own].tolist(), found.weights[own], strict=True):
            shared = (taken[:, source] * taken[:, target] * per_user).sum()
            wanted = idf[source] * shared / root[source] / root[target]
            assert float(weight) == pytest.approx(wanted, rel=1e-5)
            assert source != target != 0


def test_a_large_catalogue_has_the_weights_of_a_small_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    num_rows, num_users = 300, 400
    rows = rng.integers(0, num_rows, (num_users, 9)).reshape(-1)
    offsets = np.arange(num_users + 1) * 9
    times = rng.integers(0, 90, len(rows)) * DAY
    items = UserItems.of(rows, offsets[:-1], offsets[1:], times, num_rows, 99)
    config = ItemKnnConfig(num_neighbours=20)
    by_rows = item_knn_model(items, config).table
    monkeypatch.setattr(item_knn, "PAIRS_FROM", 10)
    by_pairs = item_knn_model(items, config).table
    assert by_pairs.offsets.tolist() == by_rows.offsets.tolist()
    np.testing.assert_allclose(by_pairs.weights, by_rows.weights, rtol=1e-5)
