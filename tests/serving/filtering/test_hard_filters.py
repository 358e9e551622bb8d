"""No list has an item outside its filter, whichever sources made it."""

from random import Random

import pytest

from serving.bundle import item_index
from serving.bundle.load import load_bundle
from serving.recommend import Recommender
from serving.schemas import Request
from serving.settings import ServingOptions
from tests.serving.filtering.random_filters import RandomRequests, with_properties
from tests.serving.synthetic_bundle import SyntheticSize, write_synthetic_bundle

NUM_REQUESTS = 200


@pytest.fixture(scope="module")
def indexed(tmp_path_factory):
    """A bundle whose sequence model and content are searched by index, however few are allowed."""
    size = SyntheticSize(num_items=300, history_models=True)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(item_index, "COMPARED_UP_TO", 100)
        path = write_synthetic_bundle(tmp_path_factory.mktemp("indexed"), "v1", size)
    bundle = load_bundle(path)
    for index in bundle.indexes.values():
        index.masked_exact_max_rows = 0
    return bundle


@pytest.mark.parametrize("profile", ["fast", "full"])
@pytest.mark.parametrize("kind", ["ranked", "indexed"])
def test_no_item_is_outside_of_a_filter(kind, profile, request):
    bundle = with_properties(request.getfixturevalue(kind))
    recommender = Recommender(bundle, ServingOptions(profile=profile))
    asked = RandomRequests(bundle, Random(5), num_filters=100)
    sources, listed = set(), 0
    for _ in range(NUM_REQUESTS):
        one = asked.next()
        reply = recommender.answer(one.request)
        found = {item.item_id for item in reply.items}
        assert found <= one.allowed, one.request
        assert bool(found) == bool(one.allowed), one.request
        sources |= {item.source for item in reply.items}
        listed += len(found)
    assert recommender.retrieval.failures == {}
    assert {"two_tower", "item_to_item", "content_similarity", "sequence", "popularity"} <= sources
    assert ("generative" in sources) == (profile == "full")
    assert listed > NUM_REQUESTS


@pytest.mark.parametrize(
    ("filter_", "detail"),
    [
        ({"where": "price < 0"}, "filter.where"),
        ({"where": "price < 0", "categories": ["even"]}, "filter.where"),
        ({"where": "price < 5", "categories": ["?"]}, "filter.categories"),
        ({"where": "category = 'odd'", "categories": ["tens"]}, "filter.where"),
    ],
)
def test_what_leaves_nothing_is_named(ranked, filter_, detail):
    request = Request.model_validate({"user_id": "user-1", "filter": filter_})
    reply = Recommender(with_properties(ranked)).answer(request)
    assert reply.items == []
    assert [note.detail for note in reply.degraded if note.code == "nothing_eligible"] == [detail]
