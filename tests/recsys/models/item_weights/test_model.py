"""A table of weights between items: what a history scores by it."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys.data.batch import Jagged, JaggedBatch
from recsys.models.item_weights.model import HistoryWeights, ItemWeights, WeightTable

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


def queries(*histories: list[int]) -> JaggedBatch:
    return JaggedBatch({"history": Jagged.from_lists(histories)})


WEIGHTS = {(1, 2): 1.0, (1, 3): -0.5, (2, 3): 4.0, (4, 5): 2.0}


def test_a_score_is_the_sum_of_weights_by_recency_and_nothing_is_minus_infinity() -> None:
    model = ItemWeights(table_of(WEIGHTS), HistoryWeights(power=1.0))
    scores = model.score(queries([1, 2], [2, 1], [5], [99, 1]))
    assert scores[0].tolist() == [NOTHING, NOTHING, 0.5, 3.75, NOTHING, NOTHING]
    assert scores[1].tolist() == [NOTHING, NOTHING, 1.0, 1.5, NOTHING, NOTHING]
    assert scores[2].tolist() == [NOTHING] * NUM_ROWS
    assert scores[3].tolist() == [NOTHING, NOTHING, 1.0, -0.5, NOTHING, NOTHING]


@settings(deadline=None, max_examples=60)
@given(
    histories=st.lists(st.lists(st.integers(0, 7), max_size=8), min_size=2, max_size=4),
    power=st.sampled_from([0.0, 0.6]),
    max_events=st.integers(1, 9),
    distinct=st.booleans(),
)
def test_a_batch_and_one_query_agree_with_the_definition(
    histories: list[list[int]], power: float, max_events: int, distinct: bool
) -> None:
    history = HistoryWeights(power=power, max_events=max_events, distinct=distinct)
    model = ItemWeights(table_of(WEIGHTS), history)
    batch = model.score(queries(*histories))
    for own, found in zip(histories, batch, strict=True):
        wanted, counted = [0.0] * NUM_ROWS, set()
        for recency, row in enumerate(reversed(own), start=1):
            if recency > max_events or (distinct and row in counted):
                continue
            counted.add(row)
            for (source, target), weight in WEIGHTS.items():
                if source == row:
                    wanted[target] += weight * recency**-power
        # Sums of float32 that cancel may be a rounding away from 0, which is no evidence.
        near = torch.tensor(wanted)
        assert torch.allclose(found.nan_to_num(neginf=0.0), near, atol=1e-6)
        alone = model.score(queries(own))[0]
        assert torch.allclose(alone.nan_to_num(neginf=0.0), near, atol=1e-6)


def test_the_event_that_adds_most_is_named() -> None:
    model = ItemWeights(table_of(WEIGHTS), HistoryWeights(power=1.0))
    seeds = model.strongest_seeds(np.array([3, 2, 5, 1]), np.array([4, 2, 1, 99]))
    assert seeds.tolist() == [2, 1, 4, 0]


def test_saved_and_loaded_and_grown_it_scores_the_same(tmp_path: Path) -> None:
    model = ItemWeights(table_of(WEIGHTS), HistoryWeights(power=0.5), {"l2": (3.0,)})
    model.save(tmp_path)
    loaded = ItemWeights.load(tmp_path)
    assert loaded.history == model.history
    assert loaded.settings == {"l2": (3.0,)}
    asked = queries([1, 2, 4])
    assert torch.equal(loaded.score(asked), model.score(asked))
    grown = ItemWeights(loaded.table.grown(9), loaded.history)
    assert torch.equal(grown.score(asked)[:, :NUM_ROWS], model.score(asked))
    assert grown.score(queries([8, 1]))[0, NUM_ROWS:].tolist() == [NOTHING] * 3


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({"offsets": torch.tensor([0, 2, 1, 4, 4, 4, 4])}, "offsets do not cut"),
        ({"rows": torch.tensor([2, 3, 3, 6], dtype=torch.int32)}, "item rows 2 to 6 of 6"),
        ({"weights": torch.tensor([1.0, 2.0, torch.nan, 1.0])}, "not finite"),
    ],
)
def test_a_broken_table_is_refused(broken: dict[str, torch.Tensor], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        table_of(WEIGHTS)._replace(**broken).check()
