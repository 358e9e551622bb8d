"""Batches brought to one shape have the losses and gradients of the batches as they were."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from recsys.data.dataset import Sequences
from recsys.data.windows import BatchOrder, training_windows
from recsys.fitting import sequence as sequence_fit
from recsys.fitting import two_tower as two_tower_fit
from recsys.fitting.fixed_shapes import FixedWindows, SampledRows
from recsys.fitting.queries import ModelInputs
from recsys.models.configs import TwoTowerConfig
from recsys.models.item_tower import FeatureSizes
from recsys.models.sequence.config import SequenceConfig
from recsys.models.sequence.model import SequenceModel
from recsys.models.two_tower import TwoTower
from recsys.training.captured import FixedShapeLoss
from tests.recsys.testing.catalogues import drawn_catalogue

NUM_ITEMS, NUM_USERS = 40, 30
SIZES = FeatureSizes(
    num_item_rows=NUM_ITEMS + 1,
    num_categories=4,
    user_features={"age": 5},
    event_types=("view", "cart"),
)


def events() -> Sequences:
    """Sequences of 0 to 20 events with times, of which some say no; one item has no row."""
    rng = np.random.default_rng(0)
    lengths = np.concatenate([[0], rng.integers(1, 21, NUM_USERS)])
    offsets = np.concatenate([[0], lengths.cumsum()])
    rows = rng.integers(1, NUM_ITEMS + 1, offsets[-1])
    rows[offsets[5]] = NUM_ITEMS + 7
    times = rng.integers(1_600_000_000, 1_600_900_000, offsets[-1])
    return Sequences(
        item_rows=rows,
        offsets=offsets,
        train_end=offsets[1:],
        validation_end=offsets[1:],
        times=np.sort(times),
        event_types=rng.integers(0, 3, offsets[-1]).astype(np.uint8),
        negative=rng.random(offsets[-1]) < 0.2,
    )


CATALOGUE = drawn_catalogue(NUM_ITEMS + 1)
SEQUENCE = SequenceConfig(
    embedding_dim=16, hidden_dim=16, max_length=7, dropout=0.0, id_dropout=0.0
)


def gradients(model: nn.Module, loss: Tensor) -> Tensor:
    model.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    return torch.cat([torch.zeros(1) if one.grad is None else one.grad.flatten()
                      for one in model.parameters()])  # fmt: skip


def assert_same(model: nn.Module, loss: object, steps: int) -> int:
    """Compare the two ways of each step; return how many fitted."""
    assert isinstance(loss, FixedShapeLoss)
    fitted = 0
    for step in range(steps):
        inputs = loss.inputs_at(step)
        if inputs is None:
            continue
        fitted += 1
        torch.manual_seed(step)
        expected = loss(step)
        torch.manual_seed(step)
        found = loss.loss_of(inputs)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(
            gradients(model, found), gradients(model, expected), rtol=1e-4, atol=1e-6
        )
    return fitted


@pytest.mark.parametrize("leave_out", [True, False])
@pytest.mark.parametrize("block", ["attention", "hstu"])
def test_the_sequence_models_loss_is_that_of_the_batch_alone(block: str, leave_out: bool) -> None:
    config = replace(
        SEQUENCE,
        block=block,  # type: ignore[arg-type]
        calendar_days=30.0,
        leave_out_history=leave_out,
    )
    model, loss = sequence_loss(config, 8)
    assert assert_same(model, loss, 20) >= 15


def stir_types(model: SequenceModel | TwoTower) -> None:
    """Give types, which start at 0, vectors."""
    assert model.event_types is not None
    nn.init.normal_(model.event_types.weight)


def sequence_loss(
    config: SequenceConfig, batch_size: int, before: Callable[[], object] = lambda: None
) -> tuple[SequenceModel, FixedShapeLoss]:
    """Build a model and both ways to its loss; call ``before`` ahead of the ordinary one."""
    torch.manual_seed(0)
    sequences, counts = events(), torch.arange(NUM_ITEMS + 1)
    model = SequenceModel(config, SIZES, CATALOGUE, counts)
    stir_types(model)
    windows = training_windows(sequences, "all", 7)
    order = BatchOrder(len(windows), batch_size, 0)

    def loss_at(step: int) -> Tensor:
        before()
        return model.loss(windows.batch(sequences, order.indices(step)))

    loss = sequence_fit.fixed_loss(model, loss_at, order, windows, sequences)
    assert isinstance(loss, FixedShapeLoss)
    return model, loss


@pytest.mark.parametrize("draws", [3, 30])
def test_the_loss_over_drawn_items_is_that_of_the_same_draws(
    draws: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Tensor] = []

    def inputs_at(step: int) -> Tensor | None:
        rng = np.random.default_rng([0, step])
        drawn.append(torch.from_numpy(rng.integers(1, NUM_ITEMS + 1, draws)))
        return fixed_inputs(step)

    model, loss = sequence_loss(
        replace(SEQUENCE, num_uniform_negatives=draws),
        batch_size=4,
        before=lambda: monkeypatch.setattr(torch, "randint", lambda *_, **__: drawn[-1]),
    )
    fixed_inputs, loss.inputs_at = loss.inputs_at, inputs_at
    assert assert_same(model, loss, 20) >= 15


@pytest.mark.parametrize("num_rows", [NUM_ITEMS + 1, 18])
def test_rows_of_a_step_are_distinct_and_always_as_many(num_rows: int) -> None:
    sampled = SampledRows(NUM_ITEMS + 1, 5, num_rows)
    items, labels = np.array([0, 7, 9, 9, 3]), np.array([9, 0, 3])
    drawn = np.random.default_rng(1).integers(1, NUM_ITEMS + 1, 5)
    found = sampled.inputs(items, labels, np.random.default_rng(1))
    rows, ranked = found
    assert len(rows) == num_rows
    assert (np.diff(rows) > 0).all()
    assert {0, 7, 9, 3} <= set(rows.tolist())
    assert set(rows[ranked == 1].tolist()) == {9, 3, *drawn.tolist()}
    assert sampled._replace(num_rows=4).inputs(items, labels, np.random.default_rng(1)) is None


def test_the_two_towers_loss_is_that_of_the_batch_alone() -> None:
    config = TwoTowerConfig(
        embedding_dim=16,
        hidden_dim=16,
        max_history=6,
        dropout=0.0,
        id_dropout=0.0,
        num_uniform_negatives=10,
    )
    torch.manual_seed(0)
    sequences = events()
    model = TwoTower(config, SIZES, CATALOGUE, torch.arange(NUM_ITEMS + 1))
    stir_types(model)
    inputs = ModelInputs(
        sequences=replace(sequences, item_rows=np.minimum(sequences.item_rows, NUM_ITEMS)),
        catalogue=CATALOGUE,
        sizes=SIZES,
        user_features={"age": np.arange(NUM_USERS + 1) % 5},
    )
    positions = inputs.sequences.label_positions("all")
    order = BatchOrder(len(positions), 16, 0)

    def loss_at(step: int) -> Tensor:
        chosen = positions[order.indices(step)]
        return model.loss(inputs.queries(chosen, max_history=6), inputs.sequences.labels(chosen))

    loss = two_tower_fit.fixed_loss(model, loss_at, order, positions, inputs)
    assert assert_same(model, loss, 20) >= 15


def test_a_batch_that_is_too_long_takes_an_ordinary_step() -> None:
    sequences = events()
    windows = training_windows(sequences, "all", 20)
    fixed = FixedWindows.of(windows, sequences, NUM_ITEMS + 1, 4, 20, columns={})
    longest = np.argsort(windows.ends - windows.starts)[-4:]
    rng = np.random.default_rng(0)
    assert fixed._replace(num_events=30).inputs(longest, rng) is None
    assert fixed._replace(num_pairs=30).inputs(longest, rng) is None
    assert fixed.inputs(longest[:3], rng) is None
