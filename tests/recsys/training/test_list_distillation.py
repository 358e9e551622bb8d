import pytest
import torch

from recsys.data.batch import Jagged, JaggedBatch
from recsys.models.item_tower import FeatureSizes, ItemCatalogue
from recsys.models.sequence.model import SequenceConfig, SequenceModel
from recsys.models.two_tower import TwoTower, TwoTowerConfig
from recsys.training.list_distillation import (
    LEFT_OUT,
    AuxiliaryHead,
    Ensemble,
    scores_after_events,
    scores_of_queries,
    self_auxiliary_list_loss,
    soft_list_loss,
)

NUM_ITEM_ROWS = 30
HISTORY = Jagged.from_lists([[3, 7, 9], [], [5, 5, 1, 2]])


def sequence_model(seed=0, num_item_rows=NUM_ITEM_ROWS, num_members=1):
    torch.manual_seed(seed)
    config = SequenceConfig(
        embedding_dim=16, hidden_dim=32, max_length=6, num_members=num_members, backend="torch"
    )
    inputs = FeatureSizes(num_item_rows=num_item_rows)
    counts = torch.ones(num_item_rows, dtype=torch.int64)
    return SequenceModel(config, inputs, ItemCatalogue.empty(num_item_rows), counts).eval()


def two_tower():
    torch.manual_seed(0)
    config = TwoTowerConfig(embedding_dim=16, hidden_dim=32, dropout=0.0, backend="torch")
    inputs = FeatureSizes(num_item_rows=NUM_ITEM_ROWS)
    counts = torch.ones(NUM_ITEM_ROWS, dtype=torch.int64)
    return TwoTower(config, inputs, ItemCatalogue.empty(NUM_ITEM_ROWS), counts).eval()


@pytest.mark.parametrize("num_members", [1, 2])
def test_scores_after_the_last_event_are_those_of_serving(num_members):
    model = sequence_model(num_members=num_members)
    batch = JaggedBatch({"history": HISTORY})
    after = scores_after_events(model, batch)
    assert after.shape == (7, NUM_ITEM_ROWS)
    served = model.score(batch)
    for place, query, seen in ((2, 0, [0, 3, 7, 9]), (6, 2, [0, 5, 1, 2])):
        free = torch.ones(NUM_ITEM_ROWS, dtype=torch.bool)
        free[seen] = False
        expected = served[query, free] / model.config.temperature
        torch.testing.assert_close(after[place, free], expected, rtol=0, atol=1e-5)
        assert bool((after[place, ~free] == LEFT_OUT).all())
    # An item seen later is not left out before.
    assert after[0, 7] > LEFT_OUT


def test_a_two_towers_scores_are_those_of_serving():
    model = two_tower()
    batch = JaggedBatch({"history": HISTORY})
    scores, served = scores_of_queries(model, batch), model.score(batch)
    assert (scores == LEFT_OUT).sum(1).tolist() == [4, 1, 4]
    free = scores > LEFT_OUT
    torch.testing.assert_close(
        scores[free], served[free] / model.config.temperature, rtol=0, atol=1e-5
    )


def test_a_sequence_models_scores_of_queries_are_those_after_their_last_events():
    model = sequence_model()
    batch = JaggedBatch({"history": Jagged.from_lists([[3, 7, 9], [4], [5, 5, 1, 2]])})
    after = scores_after_events(model, batch)[[2, 3, 7]]
    torch.testing.assert_close(scores_of_queries(model, batch), after, rtol=0, atol=1e-4)


def test_without_trust_a_model_learns_labels_and_its_head_beside_it():
    model, head = two_tower(), AuxiliaryHead(16)
    batch, labels = JaggedBatch({"history": HISTORY}), torch.tensor([4, 6, 8])
    scores = scores_of_queries(model, batch)
    expected = torch.nn.functional.cross_entropy(scores, labels)
    # Untrained, the head says what the model says.
    loss = self_auxiliary_list_loss(model, head, batch, labels, 0.0)
    torch.testing.assert_close(loss, 2 * expected)
    seen = labels.clone()
    seen[0] = 7
    fewer = torch.nn.functional.cross_entropy(scores[1:], labels[1:])
    torch.testing.assert_close(self_auxiliary_list_loss(model, head, batch, seen, 0.0), 2 * fewer)


def test_what_the_model_is_taught_does_not_move_the_head():
    model, head = two_tower().train(), AuxiliaryHead(16)
    batch, labels = JaggedBatch({"history": HISTORY}), torch.tensor([4, 6, 8])
    grads = []
    for trust in (0.0, 0.7):
        torch.manual_seed(0)
        head.zero_grad()
        self_auxiliary_list_loss(model, head, batch, labels, trust).backward()
        grads.append(head.turn.weight.grad.clone())
    torch.testing.assert_close(grads[0], grads[1])
    assert float(grads[0].abs().max()) > 0
    with pytest.raises(ValueError, match=r"trust must be in \[0, 1\], got 1.2"):
        self_auxiliary_list_loss(model, head, batch, labels, 1.2)


def test_an_ensemble_says_the_mean_of_what_its_members_say():
    members = [sequence_model(seed) for seed in (1, 2)]
    batch = JaggedBatch({"history": HISTORY})
    teacher = Ensemble(members)
    torch.testing.assert_close(
        teacher.score(batch)[:, 1:], sum(one.score(batch)[:, 1:] for one in members) / 2
    )
    torch.testing.assert_close(
        teacher.scores_after_events(batch),
        sum(scores_after_events(one, batch) for one in members) / 2,
    )


def test_members_of_different_catalogues_are_refused():
    with pytest.raises(ValueError, match=r"same items, got \[20, 30\]"):
        Ensemble([sequence_model(), sequence_model(num_item_rows=20)])
    with pytest.raises(ValueError, match="at least one"):
        Ensemble([])


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_soft_targets_make_the_students_probabilities_the_teachers(listed, temperature):
    teacher = torch.tensor([[2.0, -1.0, 0.5], [0.0, 1.0, LEFT_OUT]])
    rows = torch.tensor([[4, 2, 1], [3, 5, 0]]) if listed else None
    width = 6 if listed else 3
    scores = torch.zeros(2, width, requires_grad=True)
    optimizer = torch.optim.Adam([scores], lr=0.1)
    for _ in range(600):
        optimizer.zero_grad()
        soft_list_loss(scores, teacher, temperature, rows).backward()
        optimizer.step()
    learned = (scores / temperature).softmax(1)
    if rows is not None:
        learned = learned.gather(1, rows)
        learned = learned.masked_fill(rows == 0, 0.0)
    torch.testing.assert_close(learned, (teacher / temperature).softmax(1), rtol=0, atol=0.02)


def test_a_teacher_of_other_items_is_refused():
    with pytest.raises(ValueError, match=r"\(2, 4\).*\(2, 3\)"):
        soft_list_loss(torch.zeros(2, 3), torch.zeros(2, 4), 1.0)


def test_a_student_of_soft_targets_alone_lists_what_its_teacher_lists():
    teacher, student = Ensemble([sequence_model(5)]), sequence_model(6)
    generator = torch.Generator().manual_seed(0)
    lists = torch.randint(1, NUM_ITEM_ROWS, (40, 4), generator=generator).tolist()
    batch = JaggedBatch({"history": Jagged.from_lists(lists)})
    wanted = teacher.score(batch).topk(5).indices
    optimizer = torch.optim.Adam(student.parameters(), lr=3e-3)
    targets = teacher.scores_after_events(batch)
    agreement = []
    for _ in range(2):
        student.eval()
        found = student.score(batch).topk(5).indices
        agreement.append(float((found[:, :, None] == wanted[:, None, :]).any(2).float().mean()))
        student.train()
        for _ in range(120):
            optimizer.zero_grad()
            soft_list_loss(scores_after_events(student, batch), targets, 1.0).backward()
            optimizer.step()
    assert agreement[1] > agreement[0] + 0.3
