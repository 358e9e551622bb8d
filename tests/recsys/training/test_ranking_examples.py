"""What a ranker learns from: labels, tasks, what a step draws, and the loss over a list."""

import numpy as np
import pytest
import torch

from recsys.data.batch import Jagged
from recsys.training import ranker_fit
from recsys.training.ranker_fit import listwise_loss, served_items
from recsys.training.ranking_examples import (
    LIKE,
    NEXT,
    Drawn,
    Outcomes,
    choose_tasks,
    draw_places,
    labels_of,
)
from tests.recsys.testing.tensors import rounding

pytestmark = pytest.mark.numerics

NAN = float("nan")
CLOSE = rounding(3, size=3.0)


def test_labels_say_taken_liked_and_unknown() -> None:
    rows = torch.tensor([[5, 7, 9], [5, 7, -1], [1, 2, 3]])
    targets = Jagged.from_lists([[7], [5, 7], [8]])
    values = torch.tensor([5.0, 2.0, NAN, 4.0])
    labels = labels_of(rows, targets, Outcomes.of_values(values), (NEXT, LIKE), 4.0)
    assert labels[:, :, 0].nan_to_num(-1).tolist() == [[0, 1, 0], [1, 1, -1], [0, 0, 0]]
    # A low value is no like, one that is not known is not observed.
    assert labels[:, :, 1].nan_to_num(-1).tolist() == [[0, 1, 0], [0, -1, -1], [0, 0, 0]]


def test_a_task_of_one_class_is_left_out_and_said() -> None:
    for values, names, *why in (
        ([NAN, NAN], (NEXT,), "no values"),
        ([5.0, 4.0, NAN], (NEXT,), "2 of 2", "one class"),
        ([1.0, 3.5], (NEXT,), "0 of 2", "one class"),
        ([5.0, 1.0, 2.0, 3.0], (NEXT, LIKE), "25%"),
        ([19.99, 1.5, 249.0], (NEXT,), "values reach 249", "no ratings"),
    ):
        found, said = choose_tasks(Outcomes.of_values(torch.tensor(values)), 4.0)
        assert found == names
        assert all(part in said for part in why)


def test_each_type_of_event_that_has_enough_is_a_task() -> None:
    types = torch.eye(4).bool()[torch.tensor([0] * 50 + [1] * 30 + [2] * 19 + [3] * 25)]
    names = ("click", "purchase", "refund", "like")
    outcomes = Outcomes(torch.full((124,), NAN), types, names)
    tasks, why = choose_tasks(outcomes, 4.0)
    assert tasks == (NEXT, "click", "purchase", "like")
    assert "24% are of type purchase" in why
    assert "19 of 124 are of type refund: too few" in why
    rows, targets = torch.tensor([[5, 7], [5, 7]]), Jagged.from_lists([[7], [5]])
    two = Outcomes(torch.full((2,), NAN), torch.eye(4).bool()[[1, 0]], names)
    labels = labels_of(rows, targets, two, (NEXT, "click", "purchase"), 4.0)
    assert labels.tolist() == [[[0, 0, 0], [1, 0, 1]], [[1, 1, 0], [0, 0, 0]]]
    with pytest.raises(ValueError, match=r"no task 'view': .* click, purchase"):
        labels_of(rows, targets, two, (NEXT, "view"), 4.0)


def test_a_step_draws_what_was_taken_the_hard_and_some_of_the_rest_again() -> None:
    labels = torch.zeros(2, 6, 1)
    labels[0, 1] = labels[1, 4] = 1
    labels[1, 5] = NAN
    drawn = [draw_places(labels, 2, 3, torch.Generator().manual_seed(3)) for _ in range(2)]
    assert torch.equal(drawn[0].places, drawn[1].places)
    places, own, log_weights = drawn[0]
    assert places[:, :3].tolist() == [[1, 0, 1], [4, 0, 1]]
    assert int(places[0, 3:].min()) >= 2
    assert int(places[1, 3:].max()) <= 4
    # The taken one stands first; where it is drawn again it counts no second time.
    assert own[:, 0, 0].tolist() == [1, 1]
    again = places[:, 1:] == places[:, :1]
    assert torch.equal(own[:, 1:, 0].isnan(), again)
    # Four and three places behind the hard ones are drawn from.
    torch.testing.assert_close(log_weights[:, 3:].exp()[:, 0], torch.tensor([4 / 3, 1.0]))
    assert log_weights[:, :3].eq(0).all()


def test_each_task_is_ordered_by_who_had_its_feedback() -> None:
    logits = torch.tensor([[[0.0, 5.0], [0.0, 1.0]], [[1.0, 2.0], [0.0, 2.0]]])
    labels = torch.tensor([[[1.0, 0.0], [0.0, 0.0]], [[1.0, 1.0], [0.0, 0.0]]])
    drawn = Drawn(torch.zeros(2, 2, dtype=torch.int64), labels, torch.zeros(2, 2))
    following = (np.log(2) + np.log(1 + np.exp(-1))) / 2
    # Only the second query's event was liked.
    liked = np.log(2)
    assert float(listwise_loss(logits, drawn)) == pytest.approx((following + liked) / 2, abs=CLOSE)


def test_a_large_catalogue_is_stood_for_by_items_drawn_as_often_as_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = torch.cat([torch.ones(3000), torch.arange(2, 3002), torch.zeros(50)]).long()[None]
    items, counts = served_items(rows)
    assert items.tolist() == list(range(1, 3002))
    assert counts.tolist() == [3000] + [1] * 3000
    monkeypatch.setattr(ranker_fit, "MAX_ITEMS", 1000)
    items, counts = served_items(rows)
    assert int(counts.sum()) == 1000
    assert abs(int(counts[0]) - 500) < 60
    assert len(items) < 600
