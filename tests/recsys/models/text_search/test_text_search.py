"""Text search on a small catalogue: spellings, words, merging, files, and texts that mean harm."""

import json
from pathlib import Path

import numpy as np
import pytest

from pipelines.searching.texts import QueryMaker
from recsys.models.text_search.meaning import Meanings
from recsys.models.text_search.search import (
    FEATURES,
    PERSONAL,
    PERSONAL_SCALE,
    SPELLING,
    START,
    SearchCandidates,
    TextSearch,
    fit_weights,
)
from recsys.models.text_search.tokens import ItemText, split
from recsys.models.text_search.words import WordIndex
from tests.recsys.testing.refusals import assert_refused

TITLES = (
    "Star Trek: The Motion Picture",
    "Star Wars",
    "Amélie of Montmartre",
    "Shampoo with Argan Oil",
    "Dry Shampoo Lavender",
    "The Godfather",
    "Casablanca",
    "七人の侍",
)
GROUPS = ("space", "space", "france", "hair", "hair", "crime", "romance", "samurai")


def texts() -> list[ItemText]:
    return [
        ItemText(item_row=row, title=title, text=f"{title} {group}", attributes=(group,))
        for row, (title, group) in enumerate(zip(TITLES, GROUPS, strict=True), start=1)
    ]


@pytest.fixture(scope="module")
def search() -> TextSearch:
    documents = [[], *(split(text.text) for text in texts())]
    return TextSearch(WordIndex.of(documents), START)


def found(search: TextSearch, text: str, titles: tuple[int, ...] = ()) -> list[int]:
    candidates = search.candidates(text, titles, np.zeros(search.num_item_rows, np.float32))
    return search.order(candidates, candidates.features)[0].tolist()


def test_words_and_misspelt_words_find_their_item(search):
    for query, row in {
        "star wars": 2,
        "trek": 1,
        "shampo lavendar": 5,
        "godfahter": 6,
        "AMELIE": 3,
        "casablnca": 7,
        "侍": 8,
    }.items():
        assert found(search, query)[0] == row, query


def test_the_users_own_list_settles_what_fits_alike(search):
    weights = (1.0, 0.0, 0.0, 0.0, 5.0, 0.0, 0.0)
    by_taste = TextSearch(search.words, weights)
    candidates = by_taste.candidates("hair", [], np.zeros(9, np.float32))
    for own in ([4, 5], [5, 4]):
        rows, _ = by_taste.order(candidates, candidates.personal(np.array(own)))
        assert rows[:2].tolist() == own


def test_places_in_the_users_own_list_are_those_of_a_slow_count():
    rows = np.array([2, 3, 5, 8, 13], np.int64)
    found = SearchCandidates(rows, np.zeros((5, len(FEATURES)), np.float32), has_word=True)
    for own in ([8, 2, 5], [21, 13, 1, 3, 4], [], [13, 8, 5, 3, 2]):
        wanted = [PERSONAL_SCALE / (PERSONAL_SCALE + own.index(r)) if r in own else 0 for r in rows]
        features = found.personal(np.array(own, np.int64))
        assert features[:, PERSONAL].tolist() == np.float32(wanted).tolist()
        assert not np.delete(features, PERSONAL, axis=1).any()
    assert not found.features.any()


@pytest.mark.parametrize("text", ["", "   ", "?!*()", "\x00", "zzzzqqqq", "Ω≈ç√"])
def test_what_means_nothing_finds_nothing(search, text):
    candidates = search.candidates(text, [], np.zeros(9, np.float32))
    assert not candidates.has_word
    assert len(candidates.item_rows) == len(candidates.features)


def test_files_give_the_same_search(search, tmp_path: Path):
    search.save(tmp_path / "one")
    again = TextSearch.load(tmp_path / "one")
    for query in ("shampo lavendar", "space", "zzz"):
        assert found(again, query) == found(search, query)
    again.save(tmp_path / "two")
    first, second = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
        for name in ("one", "two")
    )
    assert first == second
    assert {Path(name).suffix for name in first} <= {".json", ".npy"}


def meanings() -> Meanings:
    """An encoder's space of three directions: what is of space, of hair, of love."""
    words = ["galaxy", "space", "hair", "curls", "love", "sweetheart"]
    vectors = np.eye(3, dtype=np.float32).repeat(2, axis=0)
    values = {"space": [1, 2], "hair": [4, 5], "romance": [2, 7]}
    items = np.zeros((9, 3), np.float32)
    for place, rows in enumerate(values.values()):
        items[rows, place] = 1
    return Meanings.build(words, vectors, items, values, vectors[::2])


def test_words_that_no_item_has_find_what_they_mean(search, tmp_path):
    understood = TextSearch(search.words, START, meanings())
    assert set(found(search, "galaxy")[:2]) != {1, 2}
    both = ("sweetheart galaxy", {2})
    for query, rows in (("galaxy", {1, 2}), ("sweethearts", {7}), ("haircurls", {4, 5}), both):
        assert set(found(understood, query)[: len(rows)]) == rows, query
    assert [meanings().named_value(word) for word in ("curls", "zzzz")] == ["hair", None]
    # A word that is known is not misspelt; what an item has by all words stays in front.
    known = understood.candidates("galaxy", [], np.zeros(9, np.float32))
    assert not known.features[:, SPELLING].any()
    assert found(understood, "star wars")[:2] == found(search, "star wars")[:2]
    assert not understood.candidates("zzzz", [], np.zeros(9, np.float32)).has_word
    grown = understood.grown(["a space of its own"])
    assert set(found(grown, "galaxy")[:3]) == {1, 2, 9}
    understood.save(tmp_path)
    assert found(TextSearch.load(tmp_path), "sweetheart") == found(understood, "sweetheart")


def test_a_search_of_before_meanings_loads_and_finds_as_it_did(search, tmp_path):
    search.save(tmp_path)
    document = json.loads((tmp_path / "search.json").read_text())
    for name in ("meaning", "values"):
        del document["weights"][name]
    del document["num_item_rows"]
    (tmp_path / "search.json").write_text(json.dumps(document))
    assert found(TextSearch.load(tmp_path), "shampo lavendar") == found(search, "shampo lavendar")


def test_decades_become_one_word():
    for text in ("80s", "eighties", "1980ern", "80er", "années 80"):
        assert split(f"Krimi {text}") == ["krimi", "1980s"]
    assert split("10s 1980 80 90210") == ["2010s", "1980", "80", "90210"]


def test_appended_items_are_found_by_words_and_spelling(search, tmp_path):
    grown = search.grown(["Lavender Hand Cream skin"])
    assert grown.num_item_rows == 10
    assert 9 in found(grown, "hand creme")
    assert found(grown, "hand cream")[0] == 9
    twice = grown.grown(["Space Cream"])
    assert twice.num_item_rows == 11
    assert found(twice, "space cream")[0] == 10
    with pytest.raises(ValueError, match="index all texts"):
        twice.save(tmp_path)
    assert search.grown([]) is search


def test_parts_that_do_not_fit_are_refused_and_without_words_nothing_is_found(search):
    words = search.words
    assert_refused(
        {
            "7 finite weights": lambda: TextSearch(words, [1, 2]),
            "9 item rows has meanings of 10": lambda: TextSearch(
                words, START, meanings().grown([["space"]])
            ),
        }
    )
    empty = TextSearch(WordIndex.of([[], []]), START)
    assert found(empty, "anything") == []


def test_queries_are_made_of_the_item_and_repeat_by_seed():
    item = texts()[3]
    first, second = QueryMaker(1), QueryMaker(1)
    made = [first.make(item) for _ in range(60)]
    assert made == [second.make(item) for _ in range(60)]
    assert {one.kind for one in made} == {"title", "typo", "attribute", "mixed"}
    assert all(one.text == "hair" for one in made if one.kind == "attribute")
    titled = [one for one in made if one.kind == "title"]
    assert all(set(split(one.text)) <= set(split(item.title)) for one in titled)
    bare = ItemText(item_row=1, title="x y", text="x y")
    assert {first.make(bare, "attribute").kind, first.make(bare, "typo").kind} == {"title", "typo"}


def test_weights_follow_what_tells_the_wanted_item():
    random = np.random.default_rng(0)
    features, targets = [], []
    for _ in range(80):
        one = random.random((12, len(FEATURES))).astype(np.float32)
        one[:, 4:] = 0
        features.append(one)
        targets.append(int((one[:, 0] + 3 * one[:, 2]).argmax()))
    weights = fit_weights(features, targets)
    assert weights[2] > 2 * weights[0] > 0
    assert weights[1] < 0.3 * weights[0] + 1
    # Nothing was known of anybody, so that weight says nothing and stays.
    assert weights[4] == START[4]
    assert fit_weights([], []) == list(START)
