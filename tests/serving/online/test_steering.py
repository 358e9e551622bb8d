"""What people say steers their lists: in Python, and over HTTP on every worker."""

from dataclasses import replace

import numpy as np
import orjson
import pytest

from recsys.models.text_search.meaning import Meanings
from recsys.models.text_search.search import TextSearch
from recsys.models.text_search.tokens import split
from recsys.models.text_search.words import WordIndex
from serving.bundle.properties import Properties
from serving.client import Client, ServerError
from serving.list_record import write_record
from serving.online.store import RecentEvent, Visitor
from serving.online.topics import TopicsRequest, read_topics
from serving.query import RequestError
from serving.recommend import Recommender
from serving.refine import refine
from serving.schemas import Degraded, RefineRequest, Request
from serving.settings import ServingOptions


@pytest.fixture(scope="module")
def recommender(ranked):
    return Recommender(ranked, ServingOptions(profile="full"))


def listed(recommender, steer=None):
    return recommender.answer(Request(user_id="user-2", steer=steer, k=8))


def share(reply, category="even"):
    return np.mean([category in (item.categories or ()) for item in reply.items])


def test_more_less_and_never_change_the_share_of_what_is_named(recommender):
    plain = listed(recommender)
    assert plain.steered is None
    assert 0.2 < share(plain) < 0.8
    more, less, never = (listed(recommender, f"{way} evens") for way in ("more", "less", "no"))
    assert share(more) >= min(1, 2 * share(plain))
    assert share(less) <= share(plain) / 4
    assert (share(never), len(never.items)) == (0, 8)
    for reply, direction in ((more, "more"), (less, "less"), (never, "never")):
        assert [(one.words, one.direction) for one in reply.steered] == [("evens", direction)]
        scores = [item.score for item in reply.items]
        assert scores == sorted(scores, reverse=True)
        assert len({item.item_id for item in reply.items}) == 8
    both = listed(recommender, "more evens, nothing with title 4")
    assert len(both.steered) == 2
    assert "item-4" not in [item.item_id for item in both.items]


@pytest.mark.parametrize(
    ("wish", "noted"),
    [
        ("more quarkonium", "quarkonium"),
        ("less of this", "like this"),
        ("of this", None),
        ("\u65e0\u804a", "\u65e0\u804a"),
    ],
)
def test_a_wish_that_names_nothing_leaves_the_list_and_is_said(recommender, wish, noted):
    reply = listed(recommender, wish)
    assert Degraded("unknown_wish", noted) in reply.degraded
    assert (reply.items, reply.steered) == (listed(recommender).items, None)


def test_words_that_no_item_has_name_the_value_that_they_mean(ranked):
    rows = range(ranked.num_item_rows)
    documents = [split(" ".join(ranked.catalogue.categories_of(row))) for row in rows]
    items = np.array([["even" in words, "odd" in words] for words in documents], np.float32)
    values = {"even": np.flatnonzero(items[:, 0]), "odd": np.flatnonzero(items[:, 1])}
    axes = np.eye(2, dtype=np.float32)
    meanings = Meanings.build(["halved", "queer"], axes, items, values, axes)
    search = TextSearch(WordIndex.of(documents), (5.0, 3.0, 3.0, 0.5, 4.0, 0.0, 0.0), meanings)
    recommender = Recommender(replace(ranked, text_search=search))
    assert share(listed(recommender, "no halved things")) == 0
    assert share(listed(recommender, "no halved evens")) == 0
    assert listed(recommender, "no zzzz").steered is None
    items = recommender.steering.items
    assert items.ignored("zzzz halved evens") == ["zzzz"]
    assert items.ignored("even") == []


def test_a_wish_names_an_attribute_and_a_category_together(ranked):
    """What enrichment found is a property like a column of the catalogue."""
    pace = {"pace": ["slow" if row < 9 else "quick" for row in range(1, ranked.num_item_rows)]}
    properties = Properties.of_values({"pace": "text"}, pace)
    recommender = Recommender(replace(ranked, properties=properties))
    plain = recommender.answer(Request(user_id="user-2", k=30))
    reply = recommender.answer(Request(user_id="user-2", k=30, steer="no slow evens"))
    gone = {one.item_id for one in plain.items} - {one.item_id for one in reply.items}
    assert reply.steered[0].num_items == 4
    assert gone
    assert gone <= {"item-2", "item-4", "item-6", "item-8"}


def test_topics_and_refusals_of_a_record_make_its_list_again(recommender):
    now = 1_700_000_000.0
    topics = TopicsRequest(wish="less evens this week").change("", now)
    topics = TopicsRequest(wish="more Odd").change(topics, now)
    visitor = Visitor(topics=topics, refused=[RecentEvent("item-3", "dislike", 5)])
    request = Request(user_id="user-2", k=8)
    made = recommender.make(request, now_ms=int(1_000 * now), visitor=visitor)
    assert {one.words for one in made.reply.steered} >= {"evens", "odd"}
    record = orjson.loads(write_record(recommender, made))
    again = Visitor(topics=record["topics"], refused=[RecentEvent(*record["refused"][0])])
    same = recommender.make(request, now_ms=record["unix_ms"], visitor=again)
    assert same.reply.items == made.reply.items
    late = recommender.make(request, now_ms=int(1_000 * now) + 8 * 86_400_000, visitor=visitor)
    assert "evens" not in {one.words for one in late.reply.steered}


def test_a_category_is_refused_like_an_item_and_no_value_refuses_nothing(recommender):
    request = Request(user_id="user-2", k=8)
    plain = recommender.make(request, visitor=Visitor()).reply
    for item_id, wanted in (("category:even", 0.0), ("category:", share(plain)), ("x:even", None)):
        refused = [RecentEvent(item_id, "hide", 5)]
        reply = recommender.make(request, visitor=Visitor(refused=refused)).reply
        assert len(reply.items) == 8
        assert share(reply) == (share(plain) if wanted is None else wanted)
    disliked = [RecentEvent("category:even", "dislike", 5)]
    assert share(recommender.make(request, visitor=Visitor(refused=disliked)).reply) == 0.0


def test_kept_topics_are_bounded_and_the_latest_of_equal_words_counts():
    kept = ""
    for number in range(130):
        kept = TopicsRequest(wish=f"more w{number}, less horror").change(kept, 0.0)
    kept = TopicsRequest(wish="no Horror for a day").change(kept, 0.0)
    found = read_topics(kept)
    assert len(found) == 100
    assert [one.words for one in found[:1]] == ["w31"]
    assert [one.direction for one in found if one.words == "horror"] == ["never"]
    assert len(read_topics(TopicsRequest(wish="more x").change(kept, 90_000.0))) == 100


def test_topics_are_kept_followed_listed_deleted_and_forgotten(shared):
    with Client(shared.url, timeout=20) as client:
        plain = client.recommend("user-5", k=8)
        kept = client.say("user-5", "more evens, nothing with title 7 for a week")
        assert [(one.words, one.direction) for one in kept.topics] == [
            ("evens", "more"),
            ("title 7", "never"),
        ]
        for _ in range(8):
            steered = client.recommend("user-5", k=8)
            assert [one.words for one in steered.steered] == ["title 7", "evens"]
        assert share(steered) > share(plain)
        cards = [one for one in client.topics("user-5").topics if one.source == "said"]
        assert all(0 < one.num_items < 40 for one in cards)
        assert cards[0].until is None
        assert cards[1].until is not None
        assert [one.words for one in client.unsay("user-5", "Title 7").topics] == ["evens"]
        assert client.unsay("user-5").topics == []
        assert client.recommend("user-5", k=8).items == plain.items
        client.say("nobody-yet", "less evens")
        client.forget("nobody-yet")
        assert client.topics("nobody-yet").topics == []
        for wrong in ("", "x" * 1_025, "\u0436" * 513):
            for send in (client.say, lambda user, wish: client.recommend(user, steer=wish)):
                with pytest.raises(ServerError) as refused:
                    send("user-5", wrong)
                assert (refused.value.status, refused.value.code) == (422, "invalid_request")
        assert Degraded("unknown_wish", "x") in client.recommend("user-5", steer="x").degraded


def test_a_list_is_refined_turn_by_turn_and_the_question_splits_what_is_left(shared):
    with Client(shared.url, timeout=20) as client:
        first = client.refine("no title 4", Request(user_id="user-5", k=4))
        assert first.request.exclude == [item.item_id for item in first.list.items]
        assert [one.words for one in first.list.steered] == ["title 4"]
        assert first.question.answers[0].removeprefix("more ") in first.question.text
        seen = set(first.request.exclude)
        for answer in first.question.answers:
            reply = client.refine(answer, first.request)
            assert len(reply.list.items) == 4
            assert seen.isdisjoint(item.item_id for item in reply.list.items)
        # Without a text search what is wanted is wished for.
        wanted = client.refine("I meant odd", reply.request)
        assert wanted.request.steer == "no title 4, more odd"
        assert Degraded("unknown_wish", "quarkonium") in client.refine("quarkonium").list.degraded
        nothing = client.refine("of this", first.request)
        assert Degraded("unknown_wish") in nothing.list.degraded
        assert nothing.request.steer == first.request.steer
        for say, request in (("", None), ("x" * 1_025, None), ("x", Request(surface="none"))):
            with pytest.raises(ServerError) as refused:
                client.refine(say, request)
            assert refused.value.status == 422


def test_a_number_is_compared_with_what_was_shown_and_a_filter_stays(ranked):
    years = {"release_year": [1_960.0 + row for row in range(ranked.num_item_rows - 1)]}
    properties = Properties.of_values({"release_year": "number"}, years)
    recommender = Recommender(replace(ranked, properties=properties))
    shown = [f"item-{number}" for number in (11, 21, 31)]
    filters = {"where": "release_year < 1975 or release_year > 1978"}
    request = Request(user_id="user-2", k=3, exclude=shown, filter=filters)

    def refined(say, request):
        made, following, _ = refine(
            recommender, RefineRequest(say=say, request=request), names_history=True
        )
        return [int(item.item_id[5:]) for item in made.reply.items], following

    numbers, following = refined("older, no title 4", request)
    assert len(numbers) == 3
    assert all(number < 21 and number not in (4, 11, *range(16, 20)) for number in numbers)
    assert following.filter.where == f"({filters['where']}) and `release_year` < 1980"
    numbers, following = refined("release year over 1965, older", following)
    assert all(7 <= number < 15 for number in numbers)
    long = "release_year < 2000" + " and release_year < 2000" * 169
    with pytest.raises(RequestError, match="too long"):
        refined("release year under 1990", Request(filter={"where": long}))
    # Without a list before, "older" compares with nothing.
    assert refined("older", Request(k=3))[1].filter.where is None


def test_of_ten_thousand_hides_the_newest_thousand_count(shared):
    with Client(shared.url, timeout=60) as client:
        named = [f"gone-{number}" for number in range(9_995)]
        hidden = ["item-1", *named, "item-2", "category:tens", "item-3", "item-4"]
        user = {"user_id": "user-11", "event_type": "hide"}
        client.events([{**user, "item_id": item_id} for item_id in hidden])
        reply = client.recommend("user-11", k=30)
        found = {item.item_id for item in reply.items}
        assert found.isdisjoint(["item-2", "item-3", "item-4", "item-10", "item-20"])
        assert Degraded("many_refusals", "the newest 1000") in reply.degraded
