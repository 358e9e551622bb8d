"""Two lists side by side, with known answers."""

import pytest

from pipelines.dashboard.ask.lists import Place, kendall, overlap, places


def test_places_and_moves_of_two_lists():
    found = places(["a", "b", "c"], ["c", "a", "d"])
    assert found == [
        Place("a", 1, 2),
        Place("c", 3, 1),
        Place("b", 2, None),
        Place("d", None, 3),
    ]
    assert [one.moved for one in found] == [-1, 2, None, None]


def test_overlap_is_the_share_of_the_first_places():
    first, second = ["a", "b", "c", "d"], ["b", "a", "x", "y"]
    assert overlap(first, second, 1) == 0.0
    assert overlap(first, second, 2) == 1.0
    assert overlap(first, second, 4) == 0.5
    # A list that is short is compared with all of the other one's places.
    assert overlap(["a"], ["a", "b"], 5) == 0.5
    assert overlap([], ["a"], 5) == 0.0
    assert overlap([], [], 5) is None


def test_rank_correlation_of_what_is_in_both():
    assert kendall(["a", "b", "c"], ["a", "b", "c"]) == 1.0
    assert kendall(["a", "b", "c"], ["c", "b", "a"]) == -1.0
    # Of the pairs ab, ac, bc one is turned round; x and y are in one list alone.
    assert kendall(["a", "x", "b", "c"], ["a", "c", "b", "y"]) == pytest.approx(1 / 3)
    assert kendall(["a", "b"], ["a", "c"]) is None
