"""One step decides what a list leaves out; its reasons are those that explanations report."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serving.configuration.file import check_configuration
from serving.explanation.served_list import explain_list
from serving.list_record import write_record
from serving.online.records import record_of
from serving.recommend import Recommender
from serving.schemas import Request
from tests.serving.test_live import MemoryStore

ITEMS = [f"item-{number}" for number in range(1, 41)]
TABLE = {
    "rules": [{"name": "gone", "kind": "hide", "items": ["item-7", "item-8"]}],
    "surfaces": {
        "home": {"not_shown_within": "6h"},
        "tens": {"kind": "home", "filter": "category = 'tens'"},
    },
}


class Store(MemoryStore):
    """A store that shows every user the same items."""

    shown = ()

    def shown_items(self, user_id, since_ms):
        return list(self.shown)


@pytest.fixture(scope="module")
def shop(released):
    bundle = Recommender.load(released / "current").bundle
    recommender, store = Recommender(bundle, configuration=check_configuration(TABLE)), Store()
    recommender.connect(lambda: store)
    return recommender, store


def reason(shop, made, item_id):
    """The reason to leave an item out, in the documented order, from the request alone."""
    recommender, store = shop
    request, bundle = made.query.request, recommender.bundle
    names = bundle.catalogue.categories_of(bundle.catalogue.row_of(item_id))
    searched = request.query is not None and item_id not in shop_search(shop, request.query)
    history = {bundle.catalogue.item_ids[row] for row in made.query.seen.tolist()}
    shows_new = request.surface != "search" and request.candidates is None
    notes = {note.code for note in made.reply.degraded}
    # The history gives way if nothing else is left, even if it is left out for another reason too.
    seen_shown = bool(notes & {"seen_items_shown", "nothing_eligible"})
    lately = request.surface == "home" and request.user_id is not None
    reasons = {
        "hidden": item_id in ("item-7", "item-8") or item_id in store.changed,
        "excluded": item_id in request.exclude,
        "in_history": shows_new and not seen_shown and item_id in history,
        "shown": lately and item_id in store.shown,
        "not_a_candidate": request.candidates is not None and item_id not in request.candidates,
        "not_found": searched,
        "not_on_surface": request.surface == "tens" and "tens" not in names,
        "filtered": not set(names) & set(request.filter.categories or names),
    }
    return next((code for code, holds in reasons.items() if holds), None)


def shop_search(shop, text):
    recommender, _ = shop
    found = recommender.search.find(text)
    return {recommender.bundle.catalogue.item_ids[row] for row in found.item_rows}


some_items = st.lists(st.sampled_from(ITEMS), max_size=6, unique=True)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    surface=st.sampled_from(["home", "tens", "session", "search"]),
    user_id=st.sampled_from([None, "user-2", "user-5"]),
    session=some_items,
    exclude=some_items,
    candidates=st.none() | some_items.filter(bool),
    categories=st.none() | st.lists(st.sampled_from(["even", "odd", "tens", "?"]), min_size=1),
    lately=some_items,
    hidden=some_items,
)
def test_an_item_is_left_out_exactly_if_a_reason_is_recorded(
    shop, surface, user_id, session, exclude, candidates, categories, lately, hidden
):
    recommender, store = shop
    store.shown, store.version = lately, store.version + 1
    store.changed = dict.fromkeys(hidden, True)
    fields = {"surface": surface, "user_id": user_id, "session": session, "exclude": exclude}
    fields |= {"filter": {"categories": categories}, "k": 40}
    if candidates is not None and surface != "search":
        fields["candidates"] = candidates
    if surface == "search":
        fields["query"] = "title 3"
    if surface == "session" and not session:
        fields["session"] = ["item-9"]
    made = recommender.make(Request.model_validate(fields))
    allowed = made.eligible.mask.as_bool().tolist()
    for item_id in ITEMS:
        row = recommender.bundle.catalogue.row_of(item_id)
        found, expected = made.eligible.why(row), reason(shop, made, item_id)
        assert allowed[row] == (found is None) == (expected is None), (item_id, found, expected)
        if found is not None and expected is not None:
            assert found.code == expected.replace("shown", "filtered")
            assert ("shown to the visitor within" in found.detail) == (expected == "shown")
    assert {item.item_id for item in made.reply.items} <= {
        item_id for item_id in ITEMS if reason(shop, made, item_id) is None
    }


def why_not(recommender, made, item_id):
    record = record_of(write_record(recommender, made))
    return explain_list(recommender, record, item_id, names_history=True)


def test_a_list_on_a_surface_without_repeats_is_explained_after_it_was_shown(shop):
    recommender, store = shop
    store.changed, store.shown, store.version = {}, ["item-11"], store.version + 1
    made = recommender.make(Request(user_id="user-2", k=5))
    listed = [item.item_id for item in made.reply.items]
    # The list is stored; its own items count as shown to every later list, and not to itself.
    store.shown = ["item-11", *listed]
    explanation = why_not(recommender, made, "item-11")
    assert [slot.item_id for slot in explanation.items if slot.sentence] == listed
    assert explanation.why_not.code == "filtered"
    assert "shown to the visitor within" in explanation.why_not.detail
    assert why_not(recommender, made, listed[0]).why_not.code == "shown"


def test_an_item_that_a_search_finds_and_the_filter_leaves_out_is_not_called_unfound(shop):
    recommender, store = shop
    store.changed, store.shown, store.version = {}, (), store.version + 1
    fields = {"surface": "search", "query": "title 3", "filter": {"categories": ["even"]}}
    made = recommender.make(Request.model_validate(fields))
    assert why_not(recommender, made, "item-3").why_not.code == "filtered"
    assert why_not(recommender, made, "item-20").why_not.code == "not_found"
