"""Lists for a text, from a bundle with a text search: typos, categories, taste, filters, deltas."""

import os
from dataclasses import replace

import numpy as np
import pytest
from starlette.testclient import TestClient

from recsys.models.text_search.search import TextSearch
from recsys.models.text_search.tokens import split
from recsys.models.text_search.words import WordIndex
from serving import recommend
from serving.bundle.catalogue import Catalogue
from serving.bundle.items import grown_text_search
from serving.bundle.load import load_bundle
from serving.bundle.manifest import publish
from serving.bundle.write import write_bundle
from serving.recommend import Recommender
from serving.refine import refine
from serving.schemas import Degraded, RefineRequest, Request
from serving.settings import ServingOptions, Settings
from tests.serving.application import create_app
from tests.serving.synthetic_bundle import SyntheticSize, synthetic_parts, with_model

WORDS = ("amber", "basil", "cedar", "lavender", "mandarin", "orange", "rosemary", "verbena")
WEIGHTS = (5.0, 3.0, 3.0, 0.5, 4.0, 0.0, 0.0)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    """Forty soaps of eight scents; every item is even or odd, each tenth is of ``tens``."""
    scratch = tmp_path_factory.mktemp("parts")
    parts = synthetic_parts(scratch, SyntheticSize(history_models=True))
    catalogue = parts.catalogue
    titles = [f"soap {WORDS[row % 8]} number {row}" for row in range(catalogue.num_item_rows)]
    named = replace(catalogue, display_texts=["", *titles[1:]])
    documents = [[]] + [
        split(f"{titles[row]} {' '.join(named.categories_of(row))}")
        for row in range(1, named.num_item_rows)
    ]
    search = TextSearch(WordIndex.of(documents), WEIGHTS)
    search.save(scratch / "text_search")
    folder = tmp_path_factory.mktemp("bundles")
    parts = with_model(replace(parts, catalogue=named), "text_search", scratch / "text_search")
    write_bundle(folder, parts, version="1")
    publish(folder, "1")
    return folder


@pytest.fixture(scope="module")
def recommender(bundles):
    return Recommender.load(bundles / "current")


def searched(recommender, query, **more):
    return recommender.answer(Request.model_validate({"surface": "search", "query": query, **more}))


def ids(reply):
    return [item.item_id for item in reply.items]


def test_some_words_in_any_order_find_the_item(recommender):
    assert ids(searched(recommender, "11 lavender", k=1)) == ["item-11"]
    assert set(ids(searched(recommender, "lavender soap", k=5))) == {
        f"item-{row}" for row in (3, 11, 19, 27, 35)
    }


def test_what_is_wanted_becomes_the_query_and_its_plural_a_value(recommender):
    given = RefineRequest(say="lavender from the tens, nothing odd", request=Request(k=3))
    made, request, _ = refine(recommender, given, names_history=True)
    assert (request.surface, request.query, request.steer) == ("search", "lavender tens", "no odd")
    assert all("even" in item.categories for item in made.reply.items)
    given = RefineRequest(say="evens instead", request=request)
    _, request, _ = refine(recommender, given, names_history=True)
    assert (request.query, request.steer) == ("even", "no odd")
    given = RefineRequest(say="no even", request=request)
    assert refine(recommender, given, names_history=True)[1].surface == "home"


def test_one_question_tells_two_readings_apart_and_lists_stay_as_they_are(recommender):
    def refined(say, request):
        return refine(recommender, RefineRequest(say=say, request=request), names_history=True)

    title = "soap lavender number 11"
    for say, answers, steer in (
        ("no tens even", ("no tens, no even", "no tens even"), "no tens, no even"),
        (f"less like {title}", (f'less like "{title}"', f"less {title}"), f'less like "{title}"'),
    ):
        made, following, question = refined(say, Request(user_id="user-2", k=6, diversity=0.3))
        assert question.answers == answers
        plain = recommender.answer(following.model_copy(update={"exclude": []}))
        assert made.reply.items == plain.items
        assert made.reply.steered == plain.steered
        then = [refined(answer, following) for answer in answers]
        assert [one.steer for _, one, _ in then] == [steer, answers[1]]
        assert all(asked is None or asked.answers != answers for *_, asked in then)
    assert refined("more like evens", Request(k=3))[1].query == "even"


def test_a_loaded_bundle_has_its_titles_indexed_for_every_forked_worker(bundles, monkeypatch):
    loaded = Recommender.load(bundles / "current", ServingOptions()).warm()

    def build(*_):
        raise AssertionError("built inside a request")

    monkeypatch.setattr(recommend, "build_search", build)
    assert ids(searched(loaded, "11 lavender", k=1)) == ["item-11"]
    workers = []
    for _ in range(2):
        if (child := os.fork()) == 0:
            found = {*ids(searched(loaded, "lavendr", k=5)), *ids(searched(loaded, "12", k=1))}
            os._exit(0 if found == {f"item-{row}" for row in (3, 11, 12, 19, 27, 35)} else 1)
        workers.append(child)
    assert [os.waitpid(child, 0)[1] for child in workers] == [0, 0]


def test_a_category_is_found_and_ordered_by_taste(recommender):
    anonymous = ids(searched(recommender, "tens", k=4))
    assert set(anonymous) == {"item-10", "item-20", "item-30", "item-40"}
    orders = {
        tuple(ids(searched(recommender, "tens", k=4, user_id=f"user-{n}"))) for n in (1, 2, 3, 4)
    }
    assert len(orders) > 1
    assert all(set(order) == set(anonymous) for order in orders)


def test_the_route_takes_a_query_and_is_the_surface(bundles):
    app = create_app(Settings(bundles=bundles, log_requests=False))
    with TestClient(app) as client:
        body = {"query": "number 7 verbena", "k": 2}
        reply = client.post("/v1/search", json=body)
        assert reply.status_code == 200
        assert reply.json()["items"][0]["item_id"] == "item-7"
        same = client.post("/v1/recommend", json={"surface": "search", **body}).json()
        assert same["items"] == reply.json()["items"]
        for wrong in (
            {},
            {"query": ""},
            {"query": "x" * 201},
            {"query": "soap", "item_id": "item-1"},
        ):
            assert client.post("/v1/search", json=wrong).status_code == 422
        looked_up = client.get("/v1/search", params={"q": "verbena", "k": 2}).json()
        assert len(looked_up["items"]) == 2


def test_appended_items_are_searched_by_title_and_spelling(bundles):
    bundle = load_bundle(bundles / "current")
    rows = bundle.num_item_rows
    more = Catalogue.from_lists(
        item_ids=["new"],
        display_texts=["cinnamon candle"],
        category_names=["even", "odd", "tens"],
        category_values=np.array([1], np.int64),
        category_offsets=np.array([0, 0, 1], np.int64),
    )
    more = bundle.catalogue.extended(more)
    grown = grown_text_search(bundle.text_search, more)
    assert grown is not None
    assert grown.num_item_rows == rows + 1
    found = grown.candidates("cinamon candel", [], np.zeros(rows + 1, np.float32))
    assert rows in found.item_rows


def test_a_typo_is_corrected_and_said(recommender):
    reply = searched(recommender, "lavendre", k=5)
    assert set(ids(reply)) == {f"item-{row}" for row in (3, 11, 19, 27, 35)}
    assert Degraded("corrected_query", "lavender") in reply.degraded


def test_a_word_beyond_correction_finds_what_is_spelt_like_it_and_says_so(recommender):
    reply = searched(recommender, "rosemarian", k=3)
    assert ids(reply)
    words = [item.title for item in reply.items]
    assert "rosemary" in words[0]
    assert searched(recommender, "qqqqq", k=3).items == []
