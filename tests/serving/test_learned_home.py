"""Surface ``home`` ranked by learned weights: what is measured in batches is what is served."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys.data.batch import Jagged, JaggedBatch
from recsys.retrieval.beam_search import BeamSearch
from recsys.retrieval.blend.candidate_features import blended_lists
from recsys.retrieval.blend.config import LearnedBlendConfig
from recsys.retrieval.blend.learned import LearnedBlend
from recsys.retrieval.blend.source_features import FEATURES
from recsys.retrieval.generated import GeneratedSource
from recsys.retrieval.sources import ScoredSource, allowed_items
from serving.bundle.load import load_bundle
from serving.recommend import Recommender
from serving.schemas import Request
from serving.settings import ServingOptions
from serving.sources import BEAM_WIDTH
from serving.surfaces import HOME
from tests.serving.synthetic_bundle import SyntheticSize, write_synthetic_bundle

pytestmark = pytest.mark.numerics

SIZE = SyntheticSize(history_models=True)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return load_bundle(write_synthetic_bundle(tmp_path_factory.mktemp("bundles"), "v1", SIZE))


@pytest.fixture(scope="module", params=["fast", "full"])
def recommender(bundle, request):
    return Recommender(bundle, ServingOptions(profile=request.param))


@pytest.fixture(scope="module")
def full(bundle):
    return Recommender(bundle, ServingOptions(profile="full"))


def ask(recommender, **fields):
    return recommender.answer(Request.model_validate(fields))


def ids(reply):
    return [item.item_id for item in reply.items]


def said(reply):
    return [str(note) for note in reply.degraded]


def with_blend(bundle, weights, **bounds):
    """A bundle whose fast blend weighs reciprocal ranks: {source: [G + 1, I + 1] weights}."""
    config = LearnedBlendConfig(**bounds)
    shape = (len(config.history_bounds) + 2, len(config.item_bounds) + 2, len(weights))
    table = torch.zeros(*shape, len(FEATURES))
    for place, values in enumerate(weights.values()):
        table[:, :, place, FEATURES.index("reciprocal_rank")] = torch.tensor(values)
    blend = LearnedBlend(config, tuple(weights), table, torch.ones(len(weights)))
    return replace(bundle, blends={"fast": blend})


def batch_of_all_users(bundle):
    """All users at once, as an evaluation reads them."""
    users = bundle.users
    rows = range(1, users.num_user_rows)
    histories = Jagged.from_lists([users.history(row).tolist() for row in rows])
    times = Jagged.from_lists([users.history_times(row).tolist() for row in rows])
    return JaggedBatch(
        {
            "history": histories,
            "history.times": times,
            "user": Jagged.one_each(torch.tensor(rows)),
            "user.age": Jagged.one_each(torch.from_numpy(users.features["age"][1:].copy())),
            # 5 to 9 events.
            "context.user_num_events": Jagged.one_each(torch.full((len(rows),), 5)),
        }
    )


def offline_sources(bundle, names):
    generation = bundle.generative
    search = BeamSearch(
        generation.model.decode_step,
        generation.trie,
        beam_width=BEAM_WIDTH,
        semantic_ids_version=bundle.semantic_ids.version,
    )
    every = {
        "popularity": ScoredSource(bundle.popularity.score, needs_history=False),
        **{name: ScoredSource(one.score) for name, one in bundle.item_weights.items()},
        "two_tower": ScoredSource(bundle.retriever.model.score),
        "content_similarity": ScoredSource(bundle.content_similarity.score),
        "sequence": ScoredSource(bundle.sequence.score),
        "generative": GeneratedSource(generation.model, search),
    }
    return {name: every[name] for name in names}


def test_the_measured_blend_is_the_served_one(recommender):
    bundle = recommender.bundle
    blend = bundle.blends[recommender.profile]
    queries = batch_of_all_users(bundle)
    history = queries["history"]
    allowed = allowed_items(history, queries.batch_size, bundle.num_item_rows)
    k = min(HOME.num_candidates, bundle.num_item_rows - 1)
    sources = offline_sources(bundle, blend.sources)
    lists = {name: source(queries, allowed, k).lists for name, source in sources.items()}
    lengths = queries["history"].lengths()
    measured = blended_lists(blend, lists, lengths, bundle.item_counts, 20)
    for place, user_id in enumerate(list(bundle.users.user_ids)[1:]):
        reply = ask(recommender, user_id=user_id, k=20)
        assert [f"item-{row}" for row in measured.item_rows[place].tolist()] == ids(reply)
        scores = [item.score for item in reply.items]
        np.testing.assert_allclose(scores, measured.scores[place], rtol=1e-5)
        parts = measured.contributions[place]
        leading = [blend.sources[int(one)] for one in parts.argmax(1)]
        assert leading == [item.source for item in reply.items]


def test_a_request_gets_the_same_bits_whoever_else_asks(recommender):
    requests = [Request(user_id=f"user-{row}", k=20) for row in range(1, 13)]
    alone = [recommender.answer(request).items for request in requests]
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(lambda one: recommender.answer(one).items, requests * 3))
    assert together == alone * 3


def test_reply_names_the_profile_and_its_sources(bundle):
    for profile in ("fast", "full"):
        reply = ask(
            Recommender(bundle, ServingOptions(profile=profile)),
            user_id="user-2",
            k=32,
            explain=True,
        )
        assert reply.served_by.profile == profile
        reported = {name for item in reply.items for name in item.contributions}
        assert reported == set(bundle.blends[profile].sources)
        assert ("generative" in reported) == (profile == "full")
    without = replace(bundle, generative=None)
    reply = ask(Recommender(without, ServingOptions(profile="full")), user_id="user-2", k=5)
    assert reply.served_by.profile == "fast"
    assert reply.items == ask(Recommender(bundle), user_id="user-2", k=5).items


def test_shares_tell_an_items_score_apart(full):
    reply = ask(full, user_id="user-2", k=20, explain=True)
    for item in reply.items:
        assert sum(item.contributions.values()) == pytest.approx(1, abs=1e-3)
        assert next(iter(item.contributions)) == item.source
        assert list(item.contributions.values()) == sorted(
            item.contributions.values(), reverse=True
        )
    assert ask(full, user_id="user-2", k=1).items[0].contributions is None


def test_shares_of_reciprocal_ranks(bundle):
    """No blend: an item's parts are weight / (60 + rank) each."""
    recommender = Recommender(replace(bundle, blends={}))
    item = ask(recommender, user_id="user-2", k=1, explain=True).items[0]
    assert item.score == pytest.approx(
        sum(part * item.score for part in item.contributions.values()), rel=1e-3
    )
    assert {"two_tower", "sequence"} <= item.contributions.keys()


# ---- weights by the kind of request and item


def test_weights_are_those_of_the_histories_length(bundle):
    """Below 3 events popularity alone counts, from 3 on the neighbours."""
    whole, nothing = [1.0, 1.0], [0.0, 0.0]
    weights = {"popularity": [whole, nothing, nothing], "item_to_item": [nothing, whole, nothing]}
    recommender = Recommender(with_blend(bundle, weights, history_bounds=(3,)))
    short = ask(recommender, session=["item-2", "item-4"], k=5)
    assert {item.source for item in short.items} == {"popularity"}
    popular = ask(recommender, k=7, exclude=["item-2", "item-4"])
    assert ids(short) == ids(popular)[:5]
    longer = ask(recommender, session=["item-2", "item-4", "item-6"], k=5)
    assert {item.source for item in longer.items} == {"item_to_item"}


def test_weights_are_those_of_the_items_events(bundle):
    """Items with fewer than 2 events count by popularity alone, the others by the two-tower."""
    rare_only = [[1.0, 0.0, 0.0]] * 2
    often_only = [[0.0, 1.0, 0.0]] * 2
    changed = with_blend(
        bundle, {"popularity": rare_only, "two_tower": often_only}, item_bounds=(2,)
    )
    reply = ask(Recommender(changed), user_id="user-3", k=32, explain=True)
    counts = {
        item_id: int(count)
        for item_id, count in zip(
            bundle.catalogue.item_ids, bundle.item_counts.tolist(), strict=True
        )
    }
    sources = {item.source: counts[item.item_id] >= 2 for item in reply.items}
    assert sources == {"popularity": False, "two_tower": True}


def test_history_is_as_long_as_models_read_it(bundle):
    """Of 240 events models read 200, offline and served: the kind from 201 on is nobody's."""
    whole, nothing = [1.0, 1.0], [0.0, 0.0]
    weights = {"popularity": [whole, nothing, nothing], "two_tower": [nothing, whole, whole]}
    recommender = Recommender(with_blend(bundle, weights, history_bounds=(201,)))
    reply = ask(recommender, session=["item-1", "item-2"] * 120, k=5)
    assert {item.source for item in reply.items} == {"popularity"}


# ---- what degrades


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


def test_generated_items_keep_to_the_requests_filter(full):
    reply = ask(
        full,
        user_id="user-2",
        k=40,
        exclude=["item-10", "item-20"],
        filter={"categories": ["tens"]},
        explain=True,
    )
    assert set(ids(reply)) <= {"item-30", "item-40"}
    generated = [item for item in reply.items if "generative" in item.contributions]
    assert generated


def test_strangers_get_popular_items_in_their_order(recommender):
    reply = ask(recommender, user_id="nobody", k=40)
    scores = recommender.bundle.popularity.item_scores[1:]
    order = scores.sort(descending=True, stable=True).indices
    assert ids(reply) == [f"item-{row + 1}" for row in order.tolist()]
    assert reply.fallback == "popularity"
    assert said(reply) == ["unknown_user", "empty_history"]


def test_lists_end_with_what_the_blend_weighs_and_are_not_padded(bundle):
    """Only neighbours are weighed."""
    recommender = Recommender(with_blend(bundle, {"item_to_item": [[1.0] * 2] * 2}))
    reply = ask(recommender, user_id="user-2", k=32, explain=True)
    assert 0 < len(reply.items) < 32
    assert {item.source for item in reply.items} == {"item_to_item"}
    assert all(item.score > 0 for item in reply.items)
    assert said(reply) == [f"short_list: {len(reply.items)} of 32"]


def test_surface_similar_is_as_it_was(bundle, full):
    old = Recommender(
        replace(bundle, blends={}, sequence=None, generative=None, content_similarity=None)
    )
    requested = {"surface": "similar", "item_id": "item-4", "k": 20}
    assert ask(full, **requested).items == ask(old, **requested).items


names = st.sampled_from([*(f"item-{row}" for row in range(1, 41)), "unknown"])


@settings(max_examples=60, deadline=None)
@given(
    user=st.sampled_from([None, "user-1", "nobody"]),
    session=st.none() | st.lists(names, max_size=60),
    exclude=st.lists(names, max_size=60),
    categories=st.none() | st.lists(st.sampled_from(["even", "tens", "?"]), min_size=1),
    k=st.integers(1, 60),
)
def test_any_request_gets_a_sound_list(full, user, session, exclude, categories, k):
    fields = {"session": session, "exclude": exclude, "filter": {"categories": categories}}
    reply = ask(full, user_id=user, k=k, explain=True, **fields)
    listed = ids(reply)
    assert len(set(listed)) == len(listed) <= k
    assert not set(exclude) & set(listed)
    named = {"even": range(2, 41, 2), "tens": range(10, 41, 10), "?": ()}
    rows = range(1, 41) if categories is None else chain(*(named[one] for one in categories))
    assert bool(listed) == bool({f"item-{row}" for row in rows} - set(exclude))
    scores = [item.score for item in reply.items]
    assert scores == sorted(scores, reverse=True)
    assert np.isfinite(scores).all()
    longer = ask(full, user_id=user, k=k + 7, **fields)
    assert ids(longer)[:k] == listed


def test_longer_list_than_sources_are_asked_for_begins_alike(tmp_path):
    size = replace(SIZE, num_items=600)
    recommender = Recommender(
        load_bundle(write_synthetic_bundle(tmp_path, "v1", size)), ServingOptions(profile="full")
    )
    shorter = ask(recommender, user_id="user-2", k=HOME.num_candidates)
    longer = ask(recommender, user_id="user-2", k=592)
    assert longer.items[: HOME.num_candidates] == shorter.items
    assert len(set(ids(longer))) == len(longer.items) > 2 * HOME.num_candidates
    assert said(longer) == [f"short_list: {len(longer.items)} of 592"]
