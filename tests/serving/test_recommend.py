"""Known answers: in the synthetic bundle, user-<even> took even items only."""

import json
import logging
from dataclasses import replace
from itertools import chain

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys.data.batch import Jagged, JaggedBatch
from recsys.data.top_k import OneList
from recsys.retrieval.blend.config import FILL
from serving.bundle.catalogue import Catalogue
from serving.bundle.load import load_bundle
from serving.bundle.write import write_bundle
from serving.items import ItemCard, ItemCards
from serving.log import LOGGER
from serving.query import UnknownItemError
from serving.recommend import Recommender
from serving.schemas import Request, to_json
from serving.settings import ServingOptions

pytestmark = pytest.mark.numerics


@pytest.fixture(scope="module")
def recommender(released):
    return Recommender.load(released / "current")


def ask(recommender, **fields):
    return recommender.answer(Request.model_validate(fields))


def ids(reply):
    return [item.item_id for item in reply.items]


def said(reply):
    return [str(note) for note in reply.degraded]


def seen_by(recommender, user_id):
    users, item_ids = recommender.bundle.users, recommender.bundle.catalogue.item_ids
    return {item_ids[row] for row in users.history(users.row_of(user_id))}


def test_scores_are_the_fusion_of_exact_rankings(recommender):
    """A slow truth: every model's full score row, ranked by sorting, fused by a dictionary."""
    bundle = recommender.bundle
    for user_row in range(1, 13):
        history = bundle.users.history(user_row)
        query = JaggedBatch(
            {
                "history": Jagged.from_lists([history.tolist()]),
                "user": Jagged.from_lists([[user_row]]),
                "context.user_num_events": Jagged.from_lists([[5]]),  # 5 to 9 events
                "user.age": Jagged.from_lists([[int(bundle.users.features["age"][user_row])]]),
            }
        )
        fused = dict.fromkeys(set(range(1, 41)) - set(history.tolist()), 0.0)
        with torch.no_grad():
            tables = (
                (bundle.retriever.model.score(query), 1.0),
                (bundle.item_weights["item_to_item"].score(query), 1.0),
                (bundle.popularity.score(query), FILL),
            )
        for scores, weight in tables:
            ranked = sorted(
                (row for row in fused if scores[0, row] > -torch.inf),
                key=lambda row: (-float(scores[0, row]), row),
            )
            for rank, row in enumerate(ranked, start=1):
                fused[row] += weight / (60 + rank)
        expected = sorted(fused, key=lambda row: (-fused[row], row))[:10]
        reply = ask(recommender, user_id=f"user-{user_row}", k=10)
        assert ids(reply) == [f"item-{row}" for row in expected]
        np.testing.assert_allclose(
            [item.score for item in reply.items], [fused[row] for row in expected], rtol=1e-6
        )


def test_unknown_user_gets_popular_items_and_is_told(recommender):
    reply = ask(recommender, user_id="nobody", k=5)
    by_count = torch.sort(
        recommender.bundle.popularity.item_scores[1:], descending=True, stable=True
    )
    assert ids(reply) == [f"item-{row + 1}" for row in by_count.indices[:5].tolist()]
    assert said(reply) == ["unknown_user", "empty_history"]
    assert reply.fallback == "popularity"
    assert {item.source for item in reply.items} == {"popularity"}
    scores = [item.score for item in reply.items]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] > scores[-1] > 0


def test_session_steers_the_list_and_unknown_items_are_named(recommender):
    reply = ask(recommender, session=["item-2", "zz", "item-4", "item-2", "zz"], k=40)
    assert said(reply) == ["unknown_item: zz", "short_list: 38 of 40"]
    assert not {"item-2", "item-4"} & set(ids(reply))
    many = ask(recommender, session=[f"x{n}" for n in range(9)], k=2)
    assert said(many) == [
        *(f"unknown_item: x{n}" for n in range(5)),
        "unknown_items: 4 more",
        "empty_history",
    ]
    assert many.fallback == "popularity"


def test_filter_holds_for_who_has_seen_all_that_passes_it(recommender):
    tens = ["item-10", "item-20", "item-30", "item-40"]
    reply = ask(recommender, session=tens, k=10, filter={"categories": ["tens"]})
    assert sorted(ids(reply)) == tens
    assert said(reply) == ["seen_items_shown", "short_list: 4 of 10"]
    reply = ask(recommender, exclude=tens, k=10, filter={"categories": ["tens"]})
    assert reply.items == []
    assert said(reply) == ["empty_history", "nothing_eligible: exclude"]
    similar = {"surface": "related", "item_id": "item-10", "exclude": tens[1:]}
    assert ask(recommender, **similar, filter={"categories": ["tens"]}).items == []


def test_similar_to_an_unknown_item_is_an_error_that_names_it(recommender):
    with pytest.raises(UnknownItemError, match="'zz' is not in the catalogue of bundle v1"):
        ask(recommender, surface="related", item_id="zz")


def test_reasons_name_the_strongest_item_of_the_history(recommender):
    reply = ask(recommender, user_id="user-2", k=30, explain=True)
    offsets, rows, weights = recommender.bundle.item_weights["item_to_item"].table
    history = recommender.bundle.users.history(2)[::-1].tolist()
    power = recommender.bundle.item_weights["item_to_item"].history.power
    checked = 0
    for item in reply.items:
        if item.source != "item_to_item":
            assert item.reason == "fits the history"
            continue
        row = int(item.item_id.removeprefix("item-"))
        strength = {}
        for recency, seed in enumerate(history, start=1):
            own = slice(int(offsets[seed]), int(offsets[seed + 1]))
            weight = float(weights[own][rows[own] == row].sum()) * recency**-power
            strength[seed] = weight
        seed = max(strength, key=lambda one: strength[one])
        assert item.reason.startswith(f"goes with Title {seed} ")
        checked += 1
    assert checked > 3
    assert ask(recommender, user_id="user-2").items[0].reason is None
    assert ask(recommender, k=1, explain=True).items[0].reason == "popular"


def test_reasons_may_keep_a_stored_history_to_themselves(recommender):
    """Named then: only what the request itself sent."""
    request = Request(user_id="user-2", session=["item-4"], k=30, explain=True)
    open_reply = recommender.answer(request)
    closed = recommender.answer(request, names_history=False)
    assert [item.item_id for item in closed.items] == [item.item_id for item in open_reply.items]
    sent = recommender.bundle.catalogue.display_texts[4]
    reasons = {item.reason for item in closed.items if item.source == "item_to_item"}
    assert reasons == {f"goes with {sent}", "goes with the history"}
    named = {item.reason for item in open_reply.items if item.source == "item_to_item"}
    assert named - {f"goes with {sent}", "goes with the history"}


def test_lists_leave_out_the_history_as_evaluated_unless_the_deployment_says(parts, tmp_path):
    for name, evaluated in (("without", True), ("with", False)):
        write_bundle(tmp_path, replace(parts, exclude_history=evaluated), version=name)
        bundle = load_bundle(tmp_path / f"bundle-{name}")
        assert bundle.exclude_history is evaluated
        for option in (None, True, False):
            served = Recommender(bundle, ServingOptions(exclude_history=option))
            repeats = seen_by(served, "user-2") & set(ids(ask(served, user_id="user-2", k=40)))
            excluded = evaluated if option is None else option
            assert bool(repeats) is not excluded


def test_list_that_is_kept_for_unknown_visitors_is_as_if_made_for_each(released):
    recommender = Recommender.load(released / "current")
    for fields in (
        *({}, {"user_id": "nobody"}, {"exclude": ["item-2"]}, {"exclude": ["unheard"]}),
        *({"k": 7}, {"diversity": 0.5}, {"explain": True}, {"filter": {"categories": ["odd"]}}),
        *(
            {"session": ["item-3"]},
            {"user_id": "user-2"},
            {"surface": "cart", "session": ["x"]},
            {},
        ),
    ):
        expected = ask(Recommender(recommender.bundle), **fields)
        for _ in range(2):
            reply = ask(recommender, **fields)
            assert (reply.items, reply.degraded) == (expected.items, expected.degraded)
            assert reply.timings_ms.keys() == expected.timings_ms.keys()


class Broken:
    """A source that fails."""

    def candidates(self, query, mask, k):
        raise RuntimeError("no such file")


def test_source_that_fails_is_left_out_named_counted_and_logged(released, caplog):
    recommender = Recommender.load(released / "current")
    recommender.retrieval.sources["two_tower"] = Broken()
    with caplog.at_level(logging.WARNING, logger=LOGGER.name):
        replies = [ask(recommender, user_id="user-2", k=5) for _ in range(9)]
    without = Recommender(replace(recommender.bundle, retriever=None))
    for reply in replies:
        assert said(reply) == ["failed_source: two_tower"]
        assert reply.items == ask(without, user_id="user-2", k=5).items
    assert recommender.retrieval.failures == {"two_tower": 9}
    assert [line.fields["times"] for line in caplog.records] == [1, 2, 4, 8]
    assert caplog.records[0].exc_info


@pytest.mark.parametrize("score", [np.nan, np.inf, -np.inf])
def test_source_whose_scores_are_no_numbers_has_failed(released, score):
    recommender = Recommender.load(released / "current")

    class Strange:
        def candidates(self, query, mask, k):
            return OneList(np.array([1.0, score], np.float32), np.array([2, 4]))

    recommender.retrieval.sources["two_tower"] = Strange()
    reply = ask(recommender, user_id="user-2", k=5)
    assert said(reply) == ["failed_source: two_tower"]
    assert all(np.isfinite(item.score) for item in reply.items)


def test_what_the_catalogue_says_of_an_item_is_cut_to_a_bound(recommender):
    names = [f"c{n}" for n in range(60)]
    catalogue = Catalogue.from_lists(
        item_ids=["a", "b"],
        display_texts=["W" * 10_000, ""],
        category_names=names,
        category_values=np.arange(1, 61),
        category_offsets=np.array([0, 0, 60, 60]),
    )
    cards = ItemCards(replace(recommender.bundle, catalogue=catalogue, semantic_ids=None))
    assert cards.of(1) == ItemCard("a", "W" * 500, tuple(names[:50]), None)
    assert cards.of(2) == ItemCard("b", None, None, None)
    assert json.loads(to_json(cards.of(2))) == {"item_id": "b"}


names = st.sampled_from([*(f"item-{row}" for row in range(1, 41)), "unknown", "\u00fc"])


@settings(max_examples=150, deadline=None)
@given(
    user=st.sampled_from([None, "user-1", "user-2", "nobody"]),
    session=st.none() | st.lists(names, max_size=60),
    exclude=st.lists(names, max_size=60),
    categories=st.none() | st.lists(st.sampled_from(["even", "odd", "tens", "?"]), min_size=1),
    k=st.integers(1, 1000),
)
def test_any_request_gets_a_sound_list(recommender, user, session, exclude, categories, k):
    reply = ask(
        recommender,
        user_id=user,
        session=session,
        exclude=exclude,
        filter={"categories": categories},
        k=k,
    )
    listed = ids(reply)
    assert len(set(listed)) == len(listed) <= k
    assert not set(exclude) & set(listed)
    named = {"even": range(2, 41, 2), "odd": range(1, 41, 2), "tens": range(10, 41, 10), "?": ()}
    rows = range(1, 41) if categories is None else chain(*(named[one] for one in categories))
    wanted = {f"item-{row}" for row in rows} - set(exclude)
    assert set(listed) <= wanted
    assert bool(listed) == bool(wanted)
    scores = [item.score for item in reply.items]
    assert scores == sorted(scores, reverse=True)
    if "seen_items_shown" not in said(reply):
        assert not set(session or []) & set(listed)


@pytest.mark.parametrize("who", [{"user_id": "user-2"}, {"user_id": "nobody"}, {}])
def test_filter_that_leaves_nothing_gives_an_empty_list_and_says_so(recommender, who):
    names = ["no such category", "", *(f"unknown-{n}" for n in range(7))]
    reply = ask(recommender, **who, k=4, filter={"categories": [name for name in names if name]})
    assert reply.items == []
    assert reply.fallback is None
    assert said(reply)[-7:] == [
        "unknown_category: no such category",
        *(f"unknown_category: unknown-{n}" for n in range(4)),
        "unknown_categories: 3 more",
        "nothing_eligible: filter.categories",
    ]


def test_frame_list_and_single_answers_are_bit_equal(recommender):
    users = [f"user-{row}" for row in range(1, 13)] + ["nobody"]
    frame = recommender.recommend(pl.DataFrame({"user_id": users}), k=7)
    assert frame.equals(recommender.recommend(users, k=7))
    assert frame.columns == [
        "user_id",
        "rank",
        "item_id",
        "display_text",
        "score",
        "source",
        "semantic_id",
    ]
    assert frame["rank"].to_list() == list(range(1, 8)) * 13
    for user_id in users:
        rows = frame.filter(pl.col("user_id") == user_id)
        reply = ask(recommender, user_id=user_id, k=7)
        assert rows["item_id"].to_list() == ids(reply)
        assert rows["score"].to_list() == [item.score for item in reply.items]
    assert frame["display_text"][0].startswith(f"Title {frame['item_id'][0][5:]} ")


def test_frame_without_user_ids_says_what_it_has(recommender):
    with pytest.raises(ValueError, match=r"needs a column user_id, it has \['user'\]"):
        recommender.recommend(pl.DataFrame({"user": ["a"]}))
    with pytest.raises(ValueError, match="user_id of row 1 is null"):
        recommender.recommend(pl.DataFrame({"user_id": ["user-1", None]}))
    assert recommender.recommend([]).height == 0
