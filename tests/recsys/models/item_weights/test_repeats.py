"""Items that were taken before, and what follows a basket, against their definitions."""

import numpy as np
import pytest
import torch

from recsys.data.batch import Jagged, JaggedBatch
from recsys.models.configs import NextBasketConfig, RepeatsConfig
from recsys.models.item_weights import next_basket
from recsys.models.item_weights.next_basket import Baskets, next_basket_model, repeats_model

pytestmark = pytest.mark.numerics
NUM_ROWS = 6
NOTHING = -torch.inf


def queries(*histories: list[int]) -> JaggedBatch:
    return JaggedBatch({"history": Jagged.from_lists(histories)})


def test_own_items_score_by_how_often_and_how_lately() -> None:
    model = repeats_model(NUM_ROWS, RepeatsConfig(history_power=(1.0,)))
    scores = model.score(queries([3, 1, 3], [2], []))
    assert scores[0].tolist() == [NOTHING, 0.5, NOTHING, pytest.approx(1 + 1 / 3), NOTHING, NOTHING]
    assert scores[1].tolist() == [NOTHING, NOTHING, 1.0, NOTHING, NOTHING, NOTHING]
    assert scores[2].tolist() == [NOTHING] * NUM_ROWS


def model_of(baskets: list[list[list[int]]], **settings: float) -> np.ndarray:
    """Weights from the baskets of each user, [N, N]."""
    rows = [item for user in baskets for basket in user for item in basket]
    times = [7 + at for user in baskets for at, basket in enumerate(user) for _ in basket]
    lengths = [sum(map(len, user)) for user in baskets]
    ends = np.cumsum(lengths)
    config = NextBasketConfig(**{"source_power": 0.0, "target_power": 0.0, **settings})  # type: ignore[arg-type]
    cut = Baskets.of(np.array(rows), np.array(times), ends - lengths, ends)
    table = next_basket_model(cut, NUM_ROWS, config).table
    found = np.zeros((NUM_ROWS, NUM_ROWS))
    source = np.repeat(np.arange(NUM_ROWS), table.offsets.diff().numpy())
    found[source, table.rows.numpy()] = table.weights.numpy()
    return found


def test_items_of_a_basket_lead_to_those_behind_it_and_to_themselves() -> None:
    found = model_of([[[1, 2], [3, 1], [4]], [[5], [4]]], window=2)
    wanted = np.zeros((NUM_ROWS, NUM_ROWS))
    wanted[1, 3] = wanted[1, 1] = wanted[2, 3] = wanted[2, 1] = 1
    wanted[1, 4] = 1 + 0.5
    wanted[3, 4] = 1
    wanted[2, 4] = 0.5
    wanted[5, 4] = 1
    np.testing.assert_allclose(found, wanted)


def test_baskets_of_two_users_are_apart_and_long_ones_are_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not model_of([[[1, 2, 3]], [[4, 5]]]).any()
    monkeypatch.setattr(next_basket, "MAX_BASKET", 2)
    found = model_of([[[1, 2, 3], [4]]])
    assert found[1, 4] == found[2, 4] == 1
    assert not found[3].any()
