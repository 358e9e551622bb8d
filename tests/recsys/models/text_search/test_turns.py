"""Corrections change a request, and a question is about what splits the next items."""

import pytest

from recsys.models.text_search.turns import best_split, change_texts, read_turn

NUMBERS = ("release_year", "price", "listed_date")


@pytest.mark.parametrize(
    ("said", "query", "steer", "tests"),
    [
        ("older, no drama", "scary space", "more war, no drama", [("release_year", "<", None)]),
        ("cheaper", "scary space", "more war", [("price", "<", None)]),
        ("Price up to 49.90!", "scary space", "more war", [("price", "<=", "49.90")]),
        (
            "release year over 1994, no war",
            "scary space",
            "no war",
            [("release_year", ">", "1994")],
        ),
        (
            "listed date from 2026-01-31",
            "scary space",
            "more war",
            [("listed_date", ">=", "2026-01-31")],
        ),
        ("no, I meant slow comedies", "slow comedies", "", []),
        ("comedy instead of space", "scary comedy", "more war, no space", []),
        ("a bit less war; not so scary", "space", "less a bit war, less scary", []),
        ("not scary; more comedy, space", "space comedy", "more war, no scary", []),
        ("\u65e0\u804a", "scary space \u65e0 \u804a", "more war", []),
        ("", "scary space", "more war", []),
    ],
)
def test_a_correction_changes_query_wish_and_filter(said, query, steer, tests):
    turn = read_turn(said, NUMBERS)
    assert change_texts("scary space", "more war", turn, searches=True) == (query, steer)
    assert turn.tests == tests


def test_without_a_search_what_is_wanted_is_wished_for_and_texts_stay_within_their_limits():
    turn = read_turn("more comedies, no war", NUMBERS)
    texts = change_texts("", "more war", turn, searches=False)
    assert texts == ("", "more comedies, no war")
    many = read_turn(", ".join(f"no word{n}, more w{n}" for n in range(100)), ())
    query, steer = change_texts(
        "x" * 150, ", ".join(f"no y{n}" for n in range(300)), many, searches=True
    )
    assert len(query) <= 200
    assert len(steer.encode()) <= 1_024
    assert query.endswith("w9")
    assert steer.endswith("no word9")


def test_a_question_is_about_the_value_that_splits_items_most_evenly_and_can_be_answered():
    columns = {
        "category": [["Drama", "Arts and Crafts"], ["Drama"], ["War", "Arts and Crafts"], None],
        "brand": ["Acme"] * 4,
        "price": [5.0, 7.5, None, 9.0],
    }
    split = best_split(columns, ["price"], "slow")
    assert (split.question, split.answers) == ("Drama, or not?", ("more Drama", "no Drama"))
    # Not asked: what was said, "Arts and Crafts", which is two wishes, and a price with gaps.
    split = best_split(columns, ["price"], "drama")
    assert split.answers == ("more War", "no War")
    columns["price"][2] = 6.0
    split = best_split(columns, ["price"], "drama")
    assert split.answers == ("price up to 6", "price over 6")
    assert read_turn(split.answers[1], ["price"]).tests == [("price", ">", "6")]
    dates = {"listed_date": ["2026-01-01T00:00:00Z", "2026-03-01T00:00:00Z"]}
    answer = best_split(dates, dates, "").answers[1]
    assert read_turn(answer, dates).tests[0].value == "2026-01-01"
    assert best_split({}, [], "") is None
    assert best_split({"category": []}, [], "") is None
