"""What is measured of a router: items that go most to an expert."""

import torch

from pipelines.ranking.measures import MIN_VISITS, top_items


def test_items_are_named_by_their_share_then_by_visits() -> None:
    often, seldom = MIN_VISITS * 2, MIN_VISITS
    rows = torch.tensor([7] * often + [8] * often + [9] * seldom + [5] * (MIN_VISITS - 1))
    # Item 7 goes to expert 0 alone, 8 to both in turn, 9 to 0 alone and seldom, 5 is too rare.
    experts = torch.zeros(len(rows), 1, dtype=torch.int64)
    experts[often : 2 * often : 2] = 1
    first, second, dead = top_items(experts, rows, 3)
    assert [(one["item_row"], one["share"]) for one in first] == [(7, 1.0), (9, 1.0), (8, 0.5)]
    assert [(one["item_row"], one["share"]) for one in second] == [(8, 0.5)]
    assert dead == []
