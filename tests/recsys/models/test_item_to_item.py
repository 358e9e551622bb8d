from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from recsys.data.batch import Jagged, JaggedBatch
from recsys.data.dataset import Sequences
from recsys.models import item_to_item
from recsys.models.configs import ItemToItemConfig
from recsys.models.item_to_item import ItemToItem
from recsys.models.item_weights.model import ItemWeights

pytestmark = pytest.mark.numerics

PLAIN = ItemToItemConfig(
    window=2,
    distance_power=1.0,
    reverse_weight=0.5,
    source_power=0.0,
    target_power=0.0,
    history_power=1.0,
)


def fit(sequences: list[list[int]], config: ItemToItemConfig, num_item_rows: int) -> ItemToItem:
    offsets = np.concatenate([[0], np.cumsum([len(rows) for rows in sequences])]).astype(np.int64)
    rows = np.array([row for rows in sequences for row in rows], np.int64)
    return ItemToItem.fit(rows, offsets[:-1], offsets[1:], num_item_rows, config)


def histories(*lists: list[int]) -> JaggedBatch:
    return JaggedBatch({"history": Jagged.from_lists(lists)})


def slow_scores(
    sequences: list[list[int]], history: list[int], config: ItemToItemConfig, num_item_rows: int
) -> list[float]:
    """The definition, pair by pair."""
    weight: dict[tuple[int, int], float] = defaultdict(float)
    count = [0] * num_item_rows
    for rows in sequences:
        for place, row in enumerate(rows):
            count[row] += 1
            for other_place, other in enumerate(rows):
                distance = other_place - place
                if row == other or 0 in (row, other) or not 1 <= abs(distance) <= config.window:
                    continue
                direction = 1.0 if distance > 0 else config.reverse_weight
                weight[row, other] += direction * abs(distance) ** -config.distance_power
    scores = [0.0] * num_item_rows
    for recency, row in enumerate(reversed(history), start=1):
        for (source, target), value in weight.items():
            if source == row and recency <= config.max_history:
                scale = count[source] ** config.source_power * count[target] ** config.target_power
                scores[target] += value / scale * recency**-config.history_power
    return scores


@settings(deadline=None, max_examples=60)
@given(
    sequences=st.lists(st.lists(st.integers(0, 7), max_size=9), min_size=1, max_size=6),
    history=st.lists(st.integers(0, 7), max_size=6),
    pairs_per_block=st.sampled_from([1, 30, 1 << 24]),
)
def test_agrees_with_the_definition_pair_by_pair(
    sequences: list[list[int]], history: list[int], pairs_per_block: int
) -> None:
    config = replace(ItemToItemConfig(), window=3, max_history=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(item_to_item, "PAIRS_PER_BLOCK", pairs_per_block)
        scores = fit(sequences, config, 8).score(histories(history))[0]
    expected = torch.tensor(slow_scores(sequences, history, config, 8))
    torch.testing.assert_close(scores.nan_to_num(neginf=0.0), expected)


def test_only_the_visible_part_of_a_sequence_counts() -> None:
    rows = np.array([1, 2, 3, 1, 4], np.int64)
    model = ItemToItem.fit(rows, np.array([0, 3]), np.array([2, 4]), 5, PLAIN)
    assert model.score(histories([1]))[0].nan_to_num(neginf=0).tolist() == [0, 0, 1, 0, 0]


def test_the_strongest_neighbours_are_kept_and_ties_go_to_the_lower_row() -> None:
    sequences = [[1, 5], [1, 5], [1, 4], [1, 3], [1, 2]]
    model = fit(sequences, replace(PLAIN, num_neighbours=3), 6)
    offsets, rows, weights = model.table
    assert rows[offsets[1] : offsets[2]].tolist() == [5, 2, 3]
    assert weights[offsets[1] : offsets[2]].tolist() == [2.0, 1.0, 1.0]


def test_unknown_items_and_empty_histories_give_no_evidence() -> None:
    model = fit([[0, 1, 2]], PLAIN, 4)
    scores = model.score(histories([], [0], [99], [1, 0]))
    assert (scores[:3] == -torch.inf).all()
    assert scores[3, 2] == 0.5
    assert (scores[:, 0] == -torch.inf).all()


def test_saved_and_loaded_scores_are_equal(tmp_path: Path, tastes: Sequences) -> None:
    model = ItemToItem.fit(
        tastes.item_rows, tastes.offsets[:-1], tastes.train_end, 41, ItemToItemConfig(window=5)
    )
    model.save(tmp_path / "item_to_item")
    loaded = ItemWeights.load(tmp_path / "item_to_item")
    queries = tastes.queries(tastes.label_positions("test"), max_history=50)
    assert loaded.settings == model.settings
    assert torch.equal(loaded.score(queries), model.score(queries))


def test_a_row_outside_the_catalogue_is_refused() -> None:
    with pytest.raises(ValueError, match=r"item rows must be in \[0, 4\), got 1 to 9"):
        fit([[1, 9]], PLAIN, 4)


@settings(max_examples=50, deadline=None)
@given(
    lists=st.lists(st.lists(st.integers(0, 14), max_size=9), min_size=2, max_size=8),
    limit=st.integers(1, 9),
)
@example(lists=[[0] * 7, [0] * 7, [0] * 7 + [1, 2], [0, 0, 0, 0, 1, 0, 0, 0, 0]], limit=9)
def test_one_query_has_the_scores_of_a_batch_to_the_last_bit(
    lists: list[list[int]], limit: int
) -> None:
    model = fit(lists, replace(ItemToItemConfig(), max_history=limit), 12 + 3)
    together = model.score(histories(*lists))
    for place, rows in enumerate(lists):
        assert torch.equal(model.score(histories(rows))[0], together[place])
