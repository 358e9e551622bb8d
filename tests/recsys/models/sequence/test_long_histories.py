"""Sparse attention to single long histories, and the means that are kept of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from recsys.data.batch import Jagged, JaggedBatch
from recsys.data.dataset import Sequences
from recsys.fitting.queries import ModelInputs
from recsys.fitting.sequence import fit_sequence, near_items
from recsys.fitting.spec import Refit, TrainingRun
from recsys.layers.attention.latest import SHORTEST_WITH_BLOCKS
from recsys.models.item_to_item import counted_neighbours
from recsys.models.item_tower import FeatureSizes, ItemCatalogue
from recsys.models.item_weights.model import ItemNeighbours
from recsys.models.sequence.config import SequenceConfig
from recsys.models.sequence.model import SequenceModel
from recsys.models.sequence.one import KeptHistories, OneHistory, States
from recsys.training.passes import TrainingConfig

NUM_ROWS = 41
CONFIG = SequenceConfig(
    embedding_dim=16,
    block="sparse",
    num_heads=2,
    hidden_dim=32,
    max_length=400,
    time_buckets=4,
    absolute_positions=False,
    backend="torch",
)


def made_model(config: SequenceConfig = CONFIG) -> SequenceModel:
    torch.manual_seed(0)
    counts, sizes = torch.ones(NUM_ROWS, dtype=torch.int64), FeatureSizes(num_item_rows=NUM_ROWS)
    model = SequenceModel(config, sizes, ItemCatalogue.empty(NUM_ROWS), counts)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.1)
    return model.eval()


def kept_of(model: SequenceModel, **limits: float) -> KeptHistories:
    advance = OneHistory(model)._members[0].advance
    return KeptHistories(advance, SHORTEST_WITH_BLOCKS, **limits)  # type: ignore[arg-type]


def history(num: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    rows = torch.randint(1, NUM_ROWS, (num,), generator=torch.Generator().manual_seed(seed))
    return rows, 1_600_000_000 + torch.arange(num) * 50_000


def whole(model: SequenceModel, rows: Tensor, times: Tensor) -> Tensor:
    offsets = torch.tensor([0, len(rows)])
    batch = JaggedBatch({"history": Jagged(rows, offsets), "history.times": Jagged(times, offsets)})
    return model.query_vectors(batch)[0]


def assert_near(one: Tensor, other: Tensor) -> None:
    assert torch.allclose(one, other, atol=2e-6), (one - other).abs().max()


@pytest.mark.parametrize("further", [0, 1, 31, 32, 100])
def test_kept_means_of_sparse_attention_equal_the_whole_history(further: int) -> None:
    model, (rows, times) = made_model(replace(CONFIG, time_buckets=0)), history(370)
    one = OneHistory(model)
    assert one._kept is not None
    one.query_vector(rows[: 370 - further], None)
    for asked in (rows, rows.flip(0), rows[:231]):
        assert_near(one.query_vector(asked, None), whole(model, asked, times[: len(asked)]))
    assert len(one._kept) == 2


def test_kept_means_are_computed_on_from_and_a_repeat_reads_nothing() -> None:
    model, (rows, times) = made_model(), history(301)
    advance, read = OneHistory(model)._members[0].advance, []

    def counted(rows: Tensor, times: Tensor | None, states: States | None, first: int) -> object:
        read.append((len(rows), first, states is not None))
        return advance(rows, times, states, first)

    kept = KeptHistories(counted, SHORTEST_WITH_BLOCKS)  # type: ignore[arg-type]
    kept.query_vector(rows[:300], times[:300])
    vector = kept.query_vector(rows, times)
    kept.query_vector(rows, times)
    assert read == [(300, 0, False), (301, 300, True)]
    assert_near(vector, whole(model, rows, times))


def test_a_history_that_changed_is_read_from_its_start() -> None:
    model, (rows, times) = made_model(), history(300)
    without = torch.arange(300) != 100
    late = times.clone()
    late[150] += 1
    for other, moments in (
        (rows[without], times[without]),
        (rows[:280], times[:280]),
        (rows, late),
        (torch.cat([rows[:60], rows[:240]]), times),
    ):
        kept = kept_of(model)
        kept.query_vector(rows, times)
        assert_near(kept.query_vector(other, moments), whole(model, other, moments))


def test_states_are_bounded_and_short_histories_keep_none() -> None:
    model = made_model()
    rows, times = history(SHORTEST_WITH_BLOCKS - 1)
    kept = kept_of(model)
    kept.query_vector(rows, times)
    assert len(kept) == 0
    rows, times = history(300)
    kept.query_vector(rows, times)
    size = kept._num_bytes
    assert size == sum(one.num_bytes for one in kept._kept.values()) > 0
    kept = kept_of(model, max_bytes=3 * size)
    for seed in range(6):
        kept.query_vector(*history(300, seed))
    assert len(kept) == 3
    assert kept._num_bytes == 3 * size
    kept = kept_of(model, max_seconds=-1.0)
    kept.query_vector(rows, times)
    assert (len(kept), kept._num_bytes) == (0, 0)


FEW_ROWS = 7
NEIGHBOURLY = SequenceConfig(
    embedding_dim=4, hidden_dim=4, max_length=4, num_neighbours=2, dropout=0.0, backend="torch"
)


def counted(*events: int) -> ItemNeighbours:
    """Count one user's events."""
    offsets = np.array([0]), np.array([len(events)])
    return counted_neighbours(np.array(events), *offsets, FEW_ROWS, 2)


def test_near_items_weigh_by_the_inverse_of_their_distance() -> None:
    found = counted(1, 2, 3)
    assert found.rows[1].tolist() == [2, 3]
    torch.testing.assert_close(found.shares[1], torch.tensor([2 / 3, 1 / 3]))
    assert found.rows[4].tolist() == [0, 0]
    assert found.shares[4].sum() == 0


def test_an_item_reads_its_own_id_and_its_neighbours() -> None:
    neighbours, sizes = counted(1, 2, 3, 4, 6), FeatureSizes(num_item_rows=FEW_ROWS)
    counts = torch.tensor([0, 1, 1, 1, 1, 0, 1])
    config = replace(NEIGHBOURLY, neighbour_weight=0.5)
    catalogue = ItemCatalogue.empty(FEW_ROWS)
    model = SequenceModel(config, sizes, catalogue, counts, neighbours).eval()
    table, inputs = model.item_tower.tables.weight("item"), model.all_item_inputs()
    for row in (1, 2, 3, 4, 6):
        near = neighbours.shares[row] @ table[neighbours.rows[row]]
        torch.testing.assert_close(inputs[row], table[row] + 0.5 * near)
    # Item 5 has no events: the unknown id and nothing beside it.
    torch.testing.assert_close(inputs[5], table[0])


def test_a_continued_refit_counts_neighbours_again(tastes: Sequences) -> None:
    inputs = ModelInputs(
        sequences=tastes, catalogue=ItemCatalogue.empty(41), sizes=FeatureSizes(num_item_rows=41)
    )
    before, after = near_items(inputs, "train", 2), near_items(inputs, "all", 2)
    assert not torch.equal(before.rows, after.rows)
    model = SequenceModel(NEIGHBOURLY, inputs.sizes, inputs.catalogue, None, before)
    training = TrainingConfig(batch_size=32, refit_epochs=1.0)
    refit = Refit(best_step=1, num_examples=60, weights=model.state_dict())
    fitted = fit_sequence(inputs, NEIGHBOURLY, training, TrainingRun(seed=0), refit, split="all")
    assert torch.equal(fitted.model.item_tower.neighbours, after.rows)
