import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys.models.text_search.tokens import indexed_texts, words_of
from serving import items
from serving.items import TitleIndex

# Most popular first; the row is the place from 1.
TITLES = [
    "Star Wars (1977)",
    "Stargate (1994)",
    "Le Fabuleux Destin d'Amélie Poulain",
    "A Star Is Born",
    "Star",
    "\u4e16\u754c\u306e\u4e2d\u5fc3",
    "Schindler's List (1993)",
    "Smile \U0001f600 <b>now</b>",
    "L\u00f8ten og STRA\u00dfE",
    "Born Free",
    "As It Was",
]


def index(titles=TITLES):
    return TitleIndex(enumerate(titles, start=1))


def found(query, k=10):
    return [TITLES[row - 1] for row in index().search(query, k)]


@pytest.mark.parametrize(
    ("query", "titles"),
    [
        # The title itself, those that begin with it, those with the word, those with its beginning.
        ("star", ["Star", "Star Wars (1977)", "Stargate (1994)", "A Star Is Born"]),
        ("wars star", ["Star Wars (1977)"]),
        ("FABUL ame", ["Le Fabuleux Destin d'Amélie Poulain"]),
        ("schindler\u2019s li", ["Schindler's List (1993)"]),
        ("\U0001f600", ["Smile \U0001f600 <b>now</b>"]),
        ("loten strasse", ["L\u00f8ten og STRA\u00dfE"]),
        ("tar", []),
        ("???", []),
    ],
)
def test_search_finds(query, titles):
    assert found(query) == titles


def test_only_the_most_popular_titles_are_indexed(monkeypatch):
    monkeypatch.setattr(items, "MAX_TITLES", 4)
    assert index().search("", 10) == [1, 2, 3, 4]
    assert [TITLES[row - 1] for row in index().search("star", 10)][-1] == "A Star Is Born"


def slow_search(titles, query, k):
    """Look at every title."""
    words, text = words_of(query), " ".join(words_of(query))
    ranked = []
    for row, title in enumerate(titles, start=1):
        joined, own = indexed_texts(title)
        own = set(own.split())
        if not all(any(one.startswith(word) for one in own) for word in words):
            continue
        kinds = (joined == text, joined.startswith(text), set(words) <= own, True)
        ranked.append((kinds.index(True), row))
    return [row for _, row in sorted(ranked)][:k]


TEXT = st.text(alphabet="ab c\u00e9E'\u754c", max_size=12)


@given(st.lists(TEXT, max_size=12), TEXT.filter(words_of), st.integers(1, 12))
def test_search_agrees_with_looking_at_every_title(titles, query, k):
    assert index(titles).search(query, k) == slow_search(titles, query, k)


CORRECTED = {
    "stargaet": "stargate",
    "schidnlers lst": "schindlers list",
    "strr": "star",
    # "was" and "wars" are equally near; a title has the second one with "star".
    "star wrs": "star wars",
}
NOT_CORRECTED = dict.fromkeys(["strawars", "wrs", "fabul", "", "zzzzzz"])


@pytest.mark.parametrize(("query", "corrected"), [*CORRECTED.items(), *NOT_CORRECTED.items()])
def test_words_with_typos_are_corrected(query, corrected):
    assert index().corrected(query) == corrected
