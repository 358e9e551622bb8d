"""Surface ``home`` ranked by learned weights: what is measured in batches is what is served."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from serving.recommend import Recommender
from serving.schemas import Request
from serving.settings import ServingOptions

pytestmark = pytest.mark.numerics


@pytest.fixture(scope="module")
def bundle(ranked):
    return replace(ranked, ranker=None)


@pytest.fixture(scope="module", params=["fast", "full"])
def recommender(bundle, request):
    return Recommender(bundle, ServingOptions(profile=request.param))


@pytest.fixture(scope="module")
def full(bundle):
    return Recommender(bundle, ServingOptions(profile="full"))


def ask(recommender, **fields):
    return recommender.answer(Request.model_validate(fields))


def said(reply):
    return [str(note) for note in reply.degraded]


def test_a_request_gets_the_same_bits_whoever_else_asks(recommender):
    requests = [Request(user_id=f"user-{row}", k=20) for row in range(1, 13)]
    alone = [recommender.answer(request).items for request in requests]
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(lambda one: recommender.answer(one).items, requests * 3))
    assert together == alone * 3


def test_shares_tell_an_items_score_apart(full):
    reply = ask(full, user_id="user-2", k=20, explain=True)
    for item in reply.items:
        assert sum(item.contributions.values()) == pytest.approx(1, abs=1e-3)
        assert next(iter(item.contributions)) == item.source
        assert list(item.contributions.values()) == sorted(
            item.contributions.values(), reverse=True
        )
    assert ask(full, user_id="user-2", k=1).items[0].contributions is None


def test_late_generation_leaves_the_fast_list_and_says_so(bundle):
    late = Recommender(bundle, ServingOptions(profile="full", beam_timeout_ms=1e-6))
    in_time = Recommender(bundle, ServingOptions(profile="full", beam_timeout_ms=60_000))
    for user_id in ("user-1", "user-2"):
        reply = ask(late, user_id=user_id, k=20)
        assert said(reply) == ["late_source: generative"]
        assert reply.served_by.profile == "full"
        fast = ask(Recommender(bundle), user_id=user_id, k=20)
        assert reply.items == fast.items
        assert ask(in_time, user_id=user_id, k=20).degraded == []
    # Without any blend the others' ranks count.
    bare = Recommender(
        replace(bundle, blends={}), ServingOptions(profile="full", beam_timeout_ms=1e-6)
    )
    reply = ask(bare, user_id="user-2", k=5)
    assert said(reply) == ["late_source: generative"]
    assert len(reply.items) == 5
