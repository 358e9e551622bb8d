from __future__ import annotations

import pytest
import torch
from torch import Tensor

from recsys.data.batch import Jagged, JaggedBatch
from recsys.models.generative.config import GenerativeConfig, TeachingConfig
from recsys.models.generative.loss import Positions
from recsys.models.item_tower import FeatureSizes, ItemCatalogue
from recsys.models.sequence.config import SequenceConfig
from recsys.models.sequence.model import SequenceModel
from recsys.training.code_distillation import CodeTeacher, scores_after_events, with_dropped_events

SIZES = (4, 3, 5)
NUM_ITEM_ROWS = 31
LISTS: tuple[list[int], ...] = ([3, 8, 3, 21], [], [7, 9, 2, 1, 4, 5, 6, 30], [12], [5, 3])
SMALL = GenerativeConfig(
    embedding_dim=16,
    hidden_dim=32,
    max_length=8,
    num_layers=1,
    items="codes",
    dropout=0.0,
    label_smoothing=0.0,
    backend="torch",
)


def draw_codes() -> Tensor:
    """Give every row but 0 and 7 an ID of its own."""
    keys = torch.randperm(60, generator=torch.Generator().manual_seed(3))[:NUM_ITEM_ROWS]
    codes = torch.stack([keys // 15, keys // 5 % 3, keys % 5], dim=1)
    codes[[0, 7]] = -1
    return codes


def sequence_model(max_length: int = 8) -> SequenceModel:
    config = SequenceConfig(
        embedding_dim=16, hidden_dim=32, max_length=max_length, dropout=0.0, backend="torch"
    )
    torch.manual_seed(1)
    sizes = FeatureSizes(num_item_rows=NUM_ITEM_ROWS)
    counts = torch.ones(NUM_ITEM_ROWS, dtype=torch.int64)
    model = SequenceModel(config, sizes, ItemCatalogue.empty(NUM_ITEM_ROWS), counts).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model


def mixed(config: TeachingConfig, positions: Positions, scores: Tensor) -> Tensor:
    """Mix labels and teacher one position at a time, [P, N]."""
    has_id = draw_codes()[:, 0] >= 0
    target = torch.zeros(len(positions.labels), NUM_ITEM_ROWS)
    for position, label in enumerate(positions.labels.tolist()):
        share = 0.0 if positions.places[position] == 0 else config.share
        if share > 0:
            # Events lie one after the other: the one before it is that of the row before.
            known = scores[position - 1].masked_fill(~has_id, -torch.inf)
            target[position] = share * torch.softmax(known, 0)
        if has_id[label]:
            target[position, label] += 1 - share
    return target


@pytest.mark.parametrize("share", [1.0, 0.4, 1e-9])
def test_targets_are_those_of_adding_up_item_by_item(share: float) -> None:
    config, model = TeachingConfig(share=share), sequence_model()
    batch = JaggedBatch({"history": Jagged.from_lists(LISTS)})
    positions, codes = Positions.of(batch["history"]), draw_codes()
    found = CodeTeacher(model, codes, SIZES, config)(batch, positions)
    target = mixed(config, positions, scores_after_events(model, batch))
    for position in range(len(target)):
        forced = found.forced[position]
        for level, size in enumerate(SIZES):
            expected = torch.zeros(size)
            for row in range(1, NUM_ITEM_ROWS):
                if codes[row, 0] >= 0 and torch.equal(codes[row, :level], forced[:level]):
                    expected[codes[row, level]] += target[position, row]
            total = expected.sum().clamp(min=1e-20)
            torch.testing.assert_close(
                found.targets[level][position], expected / total, rtol=1e-4, atol=1e-5
            )


def test_a_teacher_of_shorter_sequences_is_refused() -> None:
    batch = JaggedBatch({"history": Jagged.from_lists(LISTS)})
    positions = Positions.of(batch["history"])
    short = CodeTeacher(sequence_model(max_length=5), draw_codes(), SIZES, TeachingConfig(share=1))
    with pytest.raises(ValueError, match="reads 5 events and a sequence of the batch has more"):
        short(batch, positions)


def test_dropped_events_are_lost_to_all_features_alike() -> None:
    torch.manual_seed(0)
    lists = [list(range(1, 21))] * 200
    times = Jagged.from_lists([[10 * row for row in one] for one in lists])
    batch = JaggedBatch({"history": Jagged.from_lists(lists), "history.times": times})
    dropped = with_dropped_events(batch, 0.5)
    history = dropped["history"]
    assert torch.equal(10 * history.values, dropped["history.times"].values)
    steps = history.values.diff()[history.segments().diff() == 0]
    assert bool((steps > 0).all())  # what is left keeps its order
    lengths = history.lengths().float()
    assert lengths.mean().item() == pytest.approx(15, abs=0.6)  # a quarter on average
    assert lengths.std() > 2.5  # each at its own rate
    assert torch.equal(with_dropped_events(batch, 0.0)["history"].values, batch["history"].values)
