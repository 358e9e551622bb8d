"""Neighbours whose ids an item reads: counted, read, saved, joined."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from recsys.data.dataset import Sequences
from recsys.fitting.queries import ModelInputs
from recsys.fitting.sequence import fit_sequence, near_items
from recsys.fitting.spec import Refit, TrainingRun
from recsys.models.item_to_item import ItemNeighbours
from recsys.models.item_tower import FeatureSizes, ItemCatalogue
from recsys.models.sequence.config import SequenceConfig
from recsys.models.sequence.model import SequenceModel
from recsys.training.passes import TrainingConfig

ROWS = 7
CONFIG = SequenceConfig(
    embedding_dim=4, hidden_dim=4, max_length=4, num_neighbours=2, dropout=0.0, backend="torch"
)


def counted(events: list[int], num_neighbours: int) -> ItemNeighbours:
    """Count one user's events."""
    return ItemNeighbours.counted(
        np.array(events), np.array([0]), np.array([len(events)]), ROWS, num_neighbours
    )


def model_of(config: SequenceConfig, neighbours: ItemNeighbours | None = None) -> SequenceModel:
    counts = torch.tensor([0, 1, 1, 1, 1, 0, 1])
    sizes = FeatureSizes(num_item_rows=ROWS)
    model = SequenceModel(config, sizes, ItemCatalogue.empty(ROWS), counts, neighbours)
    return model.eval()


@pytest.fixture
def neighbours() -> ItemNeighbours:
    return counted([1, 2, 3, 4, 6], 2)


def test_near_items_weigh_by_the_inverse_of_their_distance() -> None:
    found = counted([1, 2, 3], 2)
    assert found.rows[1].tolist() == [2, 3]
    torch.testing.assert_close(found.shares[1], torch.tensor([2 / 3, 1 / 3]))
    assert found.rows[4].tolist() == [0, 0]
    assert found.shares[4].sum() == 0


def test_an_item_reads_its_own_id_and_its_neighbours(neighbours: ItemNeighbours) -> None:
    model = model_of(replace(CONFIG, neighbour_weight=0.5), neighbours)
    table = model.item_tower.tables.weight("item")
    expected = [table[row] + 0.5 * shares @ table[rows] for row, (rows, shares) in enumerate(
        zip(neighbours.rows, neighbours.shares, strict=True)
    )]  # fmt: skip
    inputs = model.all_item_inputs()
    torch.testing.assert_close(inputs[[1, 2, 3, 4, 6]], torch.stack(expected)[[1, 2, 3, 4, 6]])
    # Item 5 has no events: the unknown id and nothing beside it.
    torch.testing.assert_close(inputs[5], table[0])


def test_a_continued_refit_counts_neighbours_again(tastes: Sequences) -> None:
    inputs = ModelInputs(
        sequences=tastes,
        catalogue=ItemCatalogue.empty(41),
        sizes=FeatureSizes(num_item_rows=41),
    )
    before, after = near_items(inputs, "train", 2), near_items(inputs, "all", 2)
    assert before is not None
    assert after is not None
    assert not torch.equal(before.rows, after.rows)
    model = SequenceModel(CONFIG, inputs.sizes, inputs.catalogue, None, before)
    training = TrainingConfig(batch_size=32, refit_epochs=1.0)
    refit = Refit(best_step=1, num_examples=60, weights=model.state_dict())
    fitted = fit_sequence(inputs, CONFIG, training, TrainingRun(seed=0), refit, split="all")
    assert torch.equal(fitted.model.item_tower.neighbours, after.rows)
