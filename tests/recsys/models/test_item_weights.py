"""Item-to-item weights: each model against its definition."""

from collections.abc import Callable
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from recsys.models.configs import EaseWeightsConfig, NextBasketConfig, RepeatsConfig
from recsys.models.item_weights import co_occurrence, ease
from recsys.models.item_weights.co_occurrence import CoOccurrence, UserItems
from recsys.models.item_weights.ease import (
    check_memory,
    ease_model,
    invert_in_place,
    most_frequent,
    shared_users,
)
from recsys.models.item_weights.model import HistoryWeights, ItemWeights, WeightTable
from recsys.models.item_weights.next_basket import Baskets, next_basket_model, repeats_model
from tests.recsys.testing.refusals import assert_refused
from tests.recsys.testing.tensors import history_queries

pytestmark = pytest.mark.numerics

NUM_ROWS = 6
NOTHING = -torch.inf


def table_of(weights: dict[tuple[int, int], float]) -> WeightTable:
    pairs = sorted(weights, key=lambda pair: (pair[0], -abs(weights[pair])))
    lengths = np.bincount([source for source, _ in pairs], minlength=NUM_ROWS)
    return WeightTable(
        torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)])),
        torch.tensor([target for _, target in pairs], dtype=torch.int32),
        torch.tensor([weights[pair] for pair in pairs]),
    )


WEIGHTS = {(1, 2): 1.0, (1, 3): -0.5, (2, 3): 4.0, (4, 5): 2.0}


@settings(deadline=None, max_examples=60)
@given(
    histories=st.lists(st.lists(st.integers(0, 7), max_size=8), min_size=2, max_size=4),
    power=st.sampled_from([0.0, 0.6]),
    max_events=st.integers(1, 9),
    distinct=st.booleans(),
)
@example(histories=[[1, 2], [2, 1], [5], [99, 1]], power=1.0, max_events=9, distinct=False)
def test_a_batch_and_one_query_agree_with_the_definition(
    histories: list[list[int]], power: float, max_events: int, distinct: bool
) -> None:
    history = HistoryWeights(power=power, max_events=max_events, distinct=distinct)
    model = ItemWeights(table_of(WEIGHTS), history)
    batch = model.score(history_queries(*histories))
    for own, found in zip(histories, batch, strict=True):
        wanted, counted = [0.0] * NUM_ROWS, set()
        for recency, row in enumerate(reversed(own), start=1):
            if recency > max_events or (distinct and row in counted):
                continue
            counted.add(row)
            for (source, target), weight in WEIGHTS.items():
                if source == row:
                    wanted[target] += weight * recency**-power
        for scores in (found, model.score(history_queries(own))[0]):
            # Sums of float32 that cancel may be a rounding away from 0, which is no evidence.
            near = scores.nan_to_num(neginf=0.0)
            assert torch.allclose(near, torch.tensor(wanted), atol=1e-6)
            unread = [row for row in range(NUM_ROWS) if all(
                target != row or source not in counted for source, target in WEIGHTS
            )]  # fmt: skip
            assert (scores[unread] == NOTHING).all()


def test_the_event_that_adds_most_is_named() -> None:
    model = ItemWeights(table_of(WEIGHTS), HistoryWeights(power=1.0))
    seeds = model.strongest_seeds(np.array([3, 2, 5, 1]), np.array([4, 2, 1, 99]))
    assert seeds.tolist() == [2, 1, 4, 0]


def test_saved_and_loaded_and_grown_it_scores_the_same(tmp_path: Path) -> None:
    model = ItemWeights(table_of(WEIGHTS), HistoryWeights(power=0.5), {"l2": (3.0,)})
    model.save(tmp_path)
    loaded, asked = ItemWeights.load(tmp_path), history_queries([1, 2, 4])
    assert (loaded.history, loaded.settings) == (model.history, {"l2": (3.0,)})
    assert torch.equal(loaded.score(asked), model.score(asked))
    grown = ItemWeights(loaded.table.grown(9), loaded.history)
    assert torch.equal(grown.score(asked)[:, :NUM_ROWS], model.score(asked))
    assert grown.score(history_queries([8, 1]))[0, NUM_ROWS:].tolist() == [NOTHING] * 3


def test_what_is_broken_or_does_not_fit_is_refused() -> None:
    def checking(**broken: torch.Tensor) -> Callable[[], object]:
        return table_of(WEIGHTS)._replace(**broken).check

    def inverting(value: float) -> Callable[[], object]:
        return lambda: invert_in_place(torch.diag(torch.tensor([1.0, 1.0, value])), 2)

    check_memory(1_000)
    assert_refused(
        {
            "offsets do not cut": checking(offsets=torch.tensor([0, 2, 1, 4, 4, 4, 4])),
            "item rows 2 to 6 of 6": checking(rows=torch.tensor([2, 3, 3, 6], dtype=torch.int32)),
            "not finite": checking(weights=torch.tensor([1.0, 2.0, torch.nan, 1.0])),
            r"set ease.exact_items to at most \d+": lambda: check_memory(10_000_000),
            "not positive definite": inverting(-1.0),
            "is not positive definite": inverting(float("nan")),
        }
    )


@pytest.mark.parametrize("cells", [1, 20, 1 << 22])
def test_rows_are_those_of_the_weighted_product(
    cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(co_occurrence, "MAX_CELLS", cells)
    rng, num_rows, lengths = np.random.default_rng(3), 8, np.array([5, 0, 1, 9, 4])
    offsets = np.concatenate([[0], lengths.cumsum()])
    rows = rng.integers(0, num_rows, offsets[-1])
    items = UserItems.of(rows, offsets[:-1], offsets[1:], num_rows, 99)
    taken = np.zeros((len(lengths), num_rows))
    taken[np.repeat(np.arange(len(lengths)), lengths), rows] = 1
    taken[:, 0] = 0
    found = np.zeros((num_rows, num_rows))
    for own, block in CoOccurrence(items).blocks(np.arange(num_rows), np.arange(num_rows)):
        found[own] = block
    np.testing.assert_array_equal(found, taken.T @ taken)


def dense(table: WeightTable) -> np.ndarray:
    """Weights as a matrix, [N, N]."""
    num_rows = len(table.offsets) - 1
    found = np.zeros((num_rows, num_rows))
    found[np.repeat(np.arange(num_rows), table.offsets.diff()), table.rows] = table.weights
    return found


@pytest.mark.parametrize("cells", [1, 1 << 22])
def test_rarer_items_extend_the_exact_regression_one_at_a_time(
    cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Users have a few of items 1 to 8 each, the lower ones more often."""
    monkeypatch.setattr(ease, "MAX_CELLS", cells)
    rng, config = np.random.default_rng(0), EaseWeightsConfig(l2=(5.0,), exact_items=3)
    rows = np.minimum(rng.integers(0, 9, 1_200), rng.integers(1, 10, 1_200))
    starts = np.arange(300) * 4
    pairs = CoOccurrence(UserItems.of(rows, starts, starts + 4, 9, 99))
    taken = np.zeros((300, 9))
    taken[np.repeat(np.arange(300), 4), rows] = 1
    exact = most_frequent(pairs, 3)
    found = dense(ease_model(pairs, exact, shared_users(pairs, exact), config).table)
    for source, target in permutations(range(1, 9), 2):
        # EASE among a few items: minus the inverse by its diagonal.
        among = sorted({*exact.tolist(), source, target})
        inverse = np.linalg.inv(taken[:, among].T @ taken[:, among] + 5.0 * np.eye(len(among)))
        own, other = among.index(source), among.index(target)
        wanted = -inverse[own, other] / inverse[other, other]
        assert found[source, target] == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("block", [1, 3, 7, 64])
def test_inverse_is_that_of_the_lower_triangle(block: int) -> None:
    torch.manual_seed(0)
    points = torch.randn(20, 7, dtype=torch.float64)
    matrix = points.T @ points + torch.eye(7)
    wanted = torch.linalg.inv(matrix)
    given = matrix.tril()
    assert invert_in_place(given, block) is given
    torch.testing.assert_close(given, wanted)


def test_own_items_score_by_how_often_and_how_lately() -> None:
    model = repeats_model(NUM_ROWS, RepeatsConfig(history_power=(1.0,), history_decay=(0.5,)))
    scores = model.score(history_queries([3, 1, 3], [2], []))
    of_3 = pytest.approx(1 + 0.25 / 3)
    assert scores[0].tolist() == [NOTHING, 0.25, NOTHING, of_3, NOTHING, NOTHING]
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
    return dense(next_basket_model(cut, NUM_ROWS, config).table)


def test_items_of_a_basket_lead_to_those_behind_it_and_to_themselves() -> None:
    found = model_of([[[1, 2], [3, 1], [4]], [[5], [4]]], window=2)
    wanted = np.zeros((NUM_ROWS, NUM_ROWS))
    wanted[[1, 1, 2, 2, 3, 5], [3, 1, 3, 1, 4, 4]] = 1
    wanted[[1, 2], 4] = 1 + 0.5, 0.5
    np.testing.assert_allclose(found, wanted)
