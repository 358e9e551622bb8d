from __future__ import annotations

import pytest
import torch

from recsys.data.batch import Jagged, JaggedBatch
from recsys.data.top_k import TopK
from recsys.models.item_tower import FeatureSizes, ItemCatalogue
from recsys.models.two_tower import TwoTower, TwoTowerConfig
from recsys.training.distillation import (
    LEFT_OUT,
    DistillationConfig,
    distillation_loss,
    soft_list_loss,
    student_logits,
)

NUM_ITEM_ROWS = 30
HISTORY = Jagged.from_lists([[3, 7, 9], [], [5, 5, 1, 2]])


def two_tower(seed: int = 0) -> TwoTower:
    torch.manual_seed(seed)
    config = TwoTowerConfig(embedding_dim=16, hidden_dim=32, dropout=0.0, backend="torch")
    inputs = FeatureSizes(num_item_rows=NUM_ITEM_ROWS)
    counts = torch.ones(NUM_ITEM_ROWS, dtype=torch.int64)
    return TwoTower(config, inputs, ItemCatalogue.empty(NUM_ITEM_ROWS), counts).eval()


def test_a_students_logits_are_those_of_serving() -> None:
    model, batch = two_tower(), JaggedBatch({"history": HISTORY})
    logits, served = student_logits(model, batch), model.score(batch)
    assert (logits == LEFT_OUT).sum(1).tolist() == [4, 1, 4]
    free = logits > LEFT_OUT
    expected = served[free] / model.config.temperature
    torch.testing.assert_close(logits[free], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_soft_targets_make_the_students_probabilities_the_teachers(temperature: float) -> None:
    rows = torch.tensor([[4, 2, 1], [3, 5, -1], [-1, -1, -1]])
    said = torch.tensor([[2.0, -1.0, 0.5], [0.0, 1.0, -torch.inf], [-torch.inf] * 3])
    logits = torch.zeros(3, 6, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.1)
    for _ in range(600):
        optimizer.zero_grad()
        soft_list_loss(logits, TopK(said, rows), temperature).backward()
        optimizer.step()
    assert not logits[2].any(), "a query without a list teaches nothing"
    learned = (logits[:2] / temperature).softmax(1).gather(1, rows[:2].clamp(min=0))
    learned = learned.masked_fill(rows[:2] < 0, 0.0)
    torch.testing.assert_close(learned, (said[:2] / temperature).softmax(1), rtol=0, atol=0.02)


def test_a_student_of_soft_targets_alone_lists_what_its_teacher_lists() -> None:
    teacher, student = two_tower(5), two_tower(6)
    generator = torch.Generator().manual_seed(0)
    lists = torch.randint(1, NUM_ITEM_ROWS, (40, 4), generator=generator).tolist()
    batch, labels = JaggedBatch({"history": Jagged.from_lists(lists)}), torch.ones(40).long()
    with torch.no_grad():
        said = TopK(*student_logits(teacher, batch).topk(20))
    config, agreement = DistillationConfig(soft_share=1.0), []
    for _ in range(2):
        found = student_logits(student.eval(), batch).topk(5).indices
        same = found[:, :, None] == said.item_rows[:, None, :5]
        agreement.append(float(same.any(2).float().mean()))
        optimizer = torch.optim.Adam(student.train().parameters(), lr=3e-3)
        for _ in range(120):
            optimizer.zero_grad()
            distillation_loss(student, batch, labels, said, config).backward()
            optimizer.step()
    assert agreement[1] > agreement[0] + 0.3


def test_without_a_share_only_labels_count() -> None:
    student, batch, labels = two_tower(), JaggedBatch({"history": HISTORY}), torch.tensor([4, 6, 8])
    nobody = TopK(torch.zeros(3, 1), torch.full((3, 1), -1))
    torch.manual_seed(1)
    expected = student.loss(batch, labels)
    torch.manual_seed(1)
    found = distillation_loss(student, batch, labels, nobody, DistillationConfig(soft_share=0.0))
    assert torch.equal(found, expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"soft_share": 1.5}, r"soft_share must be in \[0, 1\], got 1.5"),
        ({"temperature": 0.0}, "temperature must be > 0 and finite, got 0.0"),
        ({"list_length": 0}, "list_length must be >= 1, got 0"),
    ],
)
def test_settings_out_of_range_are_refused(change: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DistillationConfig(**change)  # type: ignore[arg-type]
