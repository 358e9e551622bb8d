from dataclasses import replace

import pytest
import torch

from recsys.data.batch import Jagged, JaggedBatch
from recsys.models.item_tower import ItemCatalogue
from recsys.models.ranker.batch import Candidates
from recsys.models.ranker.config import RankerConfig, RankerInputs
from recsys.models.ranker.model import Ranker
from recsys.training.distillation import (
    DistillationConfig,
    distillation_loss,
    listwise_soft_loss,
    self_auxiliary_targets,
    soft_target_loss,
    taught_by_lists,
)
from recsys.training.ranking_examples import RankingExamples
from tests.recsys.testing.ranking_worlds import RankingWorldConfig, ranking_world

TINY = RankerConfig(
    embedding_dim=8, key_dim=4, max_history=5, num_cross_layers=1, trunk="dense", hidden_dim=32,
    head_dim=8, backend="torch", id_init_scale=0.01,
)  # fmt: skip


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_soft_targets_pull_towards_the_teacher(temperature):
    teacher = torch.tensor([[2.0, -3.0], [0.5, 1.0]])
    logits = torch.zeros(2, 2, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.1)
    for _ in range(400):
        optimizer.zero_grad()
        soft_target_loss(logits, teacher, temperature).sum().backward()
        optimizer.step()
    torch.testing.assert_close(logits.detach(), teacher, atol=0.02, rtol=0)


def test_negatives_take_a_share_of_what_the_auxiliary_head_believes():
    labels = torch.tensor([[1.0, 0.0], [0.0, torch.nan]])
    targets = self_auxiliary_targets(labels, torch.zeros(2, 2), 0.5)
    torch.testing.assert_close(
        targets, torch.tensor([[1.0, 0.25], [0.25, torch.nan]]), equal_nan=True
    )


def test_a_list_takes_the_teachers_order_and_holes_count_for_nothing():
    teacher = torch.tensor([[[2.0], [0.0], [-1.0]], [[1.0], [3.0], [torch.nan]]])
    there = torch.tensor([[True, True, True], [True, True, False]])
    logits = torch.zeros(2, 3, 1, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.1)
    for _ in range(600):
        optimizer.zero_grad()
        listwise_soft_loss(logits, teacher, there, 2.0).backward()
        optimizer.step()
    learned = logits.detach()[:, :, 0]
    # Only differences within a list are taught.
    torch.testing.assert_close(learned[0].diff(), torch.tensor([-2.0, -1.0]), rtol=0, atol=0.03)
    torch.testing.assert_close(learned[1, 1] - learned[1, 0], torch.tensor(2.0), rtol=0, atol=0.03)
    assert float(learned[1, 2]) == 0


def test_a_ranker_taught_by_lists_alone_orders_as_its_teacher_says():
    torch.manual_seed(0)
    inputs = RankerInputs(num_item_rows=40, candidate_dense=("score",))
    config = replace(TINY, id_init_scale=0.3)
    student = Ranker(config, inputs, ItemCatalogue.empty(40)).train()
    rows = torch.stack([torch.randperm(39)[:8] + 1 for _ in range(60)])
    rows[:20, 6:] = -1
    # Better the smaller the row, of queries of which nothing was ever taken.
    said = -rows[:, :, None].float() / 5
    examples = RankingExamples(
        JaggedBatch({"history": Jagged.from_lists([[1]] * 60)}),
        Jagged.from_lists([[]] * 60),
        Candidates(rows, torch.zeros(60, 8, 1)),
        torch.zeros(60, 8, 1),
    )
    loss_at = taught_by_lists(
        student, examples, torch.arange(60), said, DistillationConfig(), batch_size=30, seed=0
    )
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-2)
    for step in range(80):
        optimizer.zero_grad()
        loss_at(step).backward()
        optimizer.step()
    with torch.no_grad():
        logits = student.eval()(examples.whole_batch(torch.arange(20, 60))).logits.view(40, 8)
    assert torch.equal(logits.argmax(1), said[20:, :, 0].argmax(1))


def test_a_student_of_a_good_teacher_beats_one_of_few_labels():
    world = ranking_world(RankingWorldConfig(seed=3, num_requests=3_000, num_users=200))
    train, test = torch.arange(1_000), torch.arange(1_000, 3_000)
    means = {}
    for share in (0.0, 1.0):
        torch.manual_seed(0)
        student = Ranker(TINY, world.inputs, world.catalogue).train()
        optimizer = torch.optim.AdamW(student.parameters(), lr=1e-2)
        config = DistillationConfig(soft_share=share)
        for step in range(150):
            requests = train[torch.randperm(1_000, generator=torch.Generator().manual_seed(step))]
            requests = requests[:128]
            batch, feedback = world.batch(requests)
            teacher = torch.logit(world.relevance[requests].flatten(0, 1)).float()
            optimizer.zero_grad()
            distillation_loss(student, teacher, batch, feedback, config).backward()
            optimizer.step()
        with torch.no_grad():
            logits = student.eval()(world.batch(test)[0]).logits
        means[share] = sum(world.aucs(logits, test).values()) / 3
    assert means[1.0] > means[0.0] + 0.02


def test_bad_settings_and_other_tasks_are_refused():
    with pytest.raises(ValueError, match="soft_share must be in"):
        DistillationConfig(soft_share=1.5)
    with pytest.raises(ValueError, match="temperature must be > 0"):
        DistillationConfig(temperature=0.0)
    with pytest.raises(ValueError, match="trust must be in"):
        self_auxiliary_targets(torch.zeros(1, 1), torch.zeros(1, 1), 2.0)
    with pytest.raises(ValueError, match="same batch and tasks"):
        soft_target_loss(torch.zeros(4, 2), torch.zeros(4, 3), 1.0)
