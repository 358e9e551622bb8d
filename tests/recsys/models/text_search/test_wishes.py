import pytest

from recsys.models.text_search.wishes import DAY, find_values, parse_wish, value_key

WEEK = 7 * DAY
WISHES = {
    "more documentaries": [("documentaries", "more", 1.0, None)],
    "less horror this week": [("horror", "less", 1.0, WEEK)],
    "nothing with spoilers of football": [("football", "never", 1.0, None)],
    "less of this, more slow comedies, for a week": [
        ("like this", "less", 1.0, WEEK),
        ("slow comedies", "more", 1.0, WEEK),
    ],
    'less like "Crimes, and: No More (1989)", more \u201cNo_one\u201d': [
        ("like crimes and no more 1989", "less", 1.0, None),
        ("no one", "more", 1.0, None),
    ],
    "I'd like a bit more Sci-Fi and fantasy, no westerns for 3 days": [
        ("sci-fi", "more", 0.5, None),
        ("fantasy", "more", 1.0, None),
        ("westerns", "never", 1.0, 3 * DAY),
    ],
    "less horror, comedies, for two days": [
        ("horror", "less", 1.0, 2 * DAY),
        ("comedies", "less", 1.0, 2 * DAY),
    ],
    # What contradicts itself: the last one counts.
    "more horror, less horror": [("horror", "less", 1.0, None)],
    "No more Am\u00e9lie": [("amelie", "never", 1.0, None)],
    "too much romance lately": [("romance", "less", 1.0, None)],
    "\u043a\u043e\u043c\u0435": [("\u043a\u043e\u043c\u0435", "more", 1.0, None)],
    "please show me less of this": [("like this", "less", 1.0, None)],
    "less of this week, of this": [],
    " , ; !": [],
}


@pytest.mark.parametrize("wish", WISHES)
def test_a_wish_has_directions_words_strengths_and_times(wish):
    assert [tuple(topic) for topic in parse_wish(wish)] == WISHES[wish]


def test_a_long_wish_is_read_in_time_and_has_bounded_topics():
    assert len(parse_wish(",".join(f"w{number}" for number in range(200)))) == 20
    assert len(parse_wish("more " * 200)) == 0
    assert len(parse_wish("for 9999999 years " * 60)) == 1


def test_values_are_found_in_any_number_the_longest_first():
    known = {value_key(name) for name in ("Comedy", "Sci-Fi", "Film-Noir", "Film", "Glass")}
    for words, found in {
        "slow comedies": (["comedy"], ["slow"]),
        "scifi film noir": (["scifi", "filmnoir"], []),
        "films glass": (["film", "glass"], []),
        "nothing": ([], ["nothing"]),
    }.items():
        assert find_values(words, known) == found
