import pytest
import torch

from recsys.data.batch import Jagged
from recsys.evaluation.ranking import ndcg_at_k
from recsys.evaluation.slices import (
    Slice,
    category_slices,
    item_popularity_slices,
    slice_metrics,
    user_activity_slices,
    user_slices,
)


def members(slices: list[Slice]) -> dict[str, list[bool]]:
    return {part.name: part.targets.tolist() for part in slices}


def test_head_holds_half_the_events_and_cold_items_have_none():
    popularity = torch.tensor([99, 50, 20, 20, 9, 1, 0])  # row 0 does not count
    targets = Jagged.from_lists([[1, 2, 3], [4, 5], [6, 77]])
    assert members(item_popularity_slices(targets, popularity)) == {
        "head": [True] + [False] * 6,
        "torso": [False, True, True, False, False, False, False],
        "tail": [False, False, False, True, True, False, False],
        "cold": [False] * 5 + [True, True],
    }


def test_users_are_new_medium_or_heavy_by_their_events():
    targets = Jagged.from_lists([[1]] * 7)
    events = torch.tensor([0, 4, 5, 6, 7, 8, 90])
    assert members(user_activity_slices(targets, events)) == {
        "new": [True, True, False, False, False, False, False],
        "medium": [False, False, True, True, True, True, False],
        "heavy": [False] * 6 + [True],
    }


def test_an_item_may_be_in_several_categories_or_none():
    categories = Jagged.from_lists([[1], [1, 2], [2], []])
    targets = Jagged.from_lists([[1, 2], [3, 9, 0]])
    assert members(category_slices(targets, "category", categories, ["", "drama", "comedy"])) == {
        "drama": [True, False, False, False, False],
        "comedy": [True, True, False, False, False],
    }


def test_metrics_of_a_slice_see_its_targets_alone():
    ranks = Jagged.from_lists([[1, 20], [3], []])
    cuts = [
        Slice("items", "first", torch.tensor([True, False, False])),
        Slice("items", "others", torch.tensor([False, True, True])),
    ]
    first, others = slice_metrics(ranks, cuts, ["recall@10", "ndcg@10"])
    assert (first.num_users, first.num_targets) == (1, 1)
    assert first.metrics["ndcg@10"].mean == 1
    assert (others.num_users, others.num_targets) == (2, 2)
    assert others.metrics["recall@10"].mean == 0.5
    assert others.metrics["ndcg@10"].mean == pytest.approx(0.25)
    assert others.metrics["ndcg@10"].num_users == 2


def test_user_slices_that_cover_all_users_average_to_the_whole():
    generator = torch.Generator().manual_seed(1)
    ranks = Jagged.one_each(torch.randint(1, 40, (200,), generator=generator))
    odd = torch.arange(200) % 2 == 1
    parts = slice_metrics(
        ranks, user_slices(ranks, "parity", {"odd": odd, "even": ~odd}), ["ndcg@10"]
    )
    total = sum(part.num_users * part.metrics["ndcg@10"].mean for part in parts)
    assert total / 200 == pytest.approx(float(ndcg_at_k(ranks, 10).mean()))
