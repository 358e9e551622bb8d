"""A bundle with a ranker: what is served is what it scores, bit for bit, or said not to be."""

import json
import shutil
from dataclasses import replace

import pytest
import torch

from recsys.data.batch import Jagged, JaggedBatch
from recsys.data.top_k import ItemMask, TopK
from recsys.models.ranker.network import RankingBatch
from recsys.retrieval.blend.candidate_features import OneQueryFeatures
from serving.bundle.delta import NewItem
from serving.bundle.load import load_bundle
from serving.bundle.ranker import CandidateRanker
from serving.bundle.write import write_bundle
from serving.query import hydrate
from serving.recommend import Recommender
from serving.schemas import Request
from serving.settings import ServingOptions
from serving.surfaces import HOME
from tests.serving.bundle.deltas import append_like
from tests.serving.synthetic_bundle import SyntheticSize, synthetic_parts, with_model

SIZE = SyntheticSize(history_models=True, ranker=True)
NUM_RANKED = 30


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    return synthetic_parts(tmp_path_factory.mktemp("parts"), SIZE)


@pytest.fixture(scope="module")
def bundle(parts, tmp_path_factory):
    return load_bundle(write_bundle(tmp_path_factory.mktemp("bundles"), parts, version="v1"))


@pytest.fixture(scope="module")
def recommender(bundle):
    return Recommender(bundle)


def ask(recommender, **fields):
    return recommender.answer(Request.model_validate(fields))


def rows(reply):
    return [int(item.item_id.removeprefix("item-")) for item in reply.items]


def candidates(recommender, user_id):
    """A user's candidates and query, from the sources that a request asks."""
    bundle = recommender.bundle
    query = hydrate(Request(user_id=user_id), bundle, HOME.as_evaluated(True))
    eligible = recommender._exclusions.decide(query).mask
    builder = bundle.ranker.builder
    blend = builder.blend
    lists, _ = recommender.retrieval.query_sources(
        dict.fromkeys(blend.sources, HOME.num_candidates), query, eligible
    )
    features = OneQueryFeatures(blend, bundle.item_counts, builder.history_features)
    found = features.candidates(lists, query.features["history"].values, NUM_RANKED)
    return query, torch.from_numpy(found.merged.item_rows), found.features


def whole_lists(recommender, query):
    """Lists of every item that a source has."""
    bundle = recommender.bundle
    everything = ItemMask(torch.ones(bundle.num_item_rows, dtype=torch.bool).numpy())
    return {
        name: source.one(query, everything, 20)
        for name, source in recommender.retrieval.sources.items()
        if name in bundle.blends["fast"].sources
    }


def test_served_scores_are_batch_scores(recommender):
    users = ["user-3", "user-4", "user-9"]
    made = [candidates(recommender, user) for user in users]
    features = {
        name: Jagged(
            torch.cat([query.features[name].values for query, _, _ in made]),
            torch.tensor([0, *(len(query.features[name].values) for query, _, _ in made)]).cumsum(
                0
            ),
        )
        for name in made[0][0].features
    }
    batch = RankingBatch(
        JaggedBatch(features),
        Jagged(
            torch.cat([own for _, own, _ in made]),
            torch.tensor([0, *(len(own) for _, own, _ in made)]).cumsum(0),
        ),
        torch.cat([numbers for _, _, numbers in made]),
    )
    scores = recommender.bundle.ranker.model.score(batch)
    ends = batch.candidates.offsets.tolist()
    for place, user in enumerate(users):
        own = slice(ends[place], ends[place + 1])
        of_row = dict(zip(batch.candidates.values[own].tolist(), scores[own].tolist(), strict=True))
        for k in (1, 7, 25):
            reply = ask(recommender, user_id=user, k=k)
            assert reply.served_by.ranker == recommender.bundle.ranker.version
            expected = [of_row[row] for row in rows(reply)]
            assert [item.score for item in reply.items] == pytest.approx(expected, abs=1e-5)
            assert rows(reply) == sorted(of_row, key=lambda row: -of_row[row])[:k]


def test_who_has_no_history_and_other_lists_are_not_ranked(recommender):
    assert ask(recommender, k=5).served_by.ranker is None
    assert ask(recommender, surface="related", item_id="item-4").served_by.ranker is None
    full = Recommender(recommender.bundle, ServingOptions(profile="full"))
    assert ask(full, user_id="user-3").served_by.ranker is None


@pytest.mark.parametrize(
    ("timeout_ms", "broken", "said"),
    [(0.0, False, "late_stage: ranker"), (None, True, "failed_stage: ranker")],
)
def test_late_or_failed_the_blends_order_is_served_and_said(
    bundle, monkeypatch, timeout_ms, broken, said
):
    plain = ask(Recommender(replace(bundle, ranker=None)), user_id="user-3")
    recommender = Recommender(bundle, ServingOptions(ranker_timeout_ms=timeout_ms))
    if broken:
        model = bundle.ranker.model
        monkeypatch.setattr(model, "_task_values", model._task_values * torch.nan)
        monkeypatch.setattr(model, "_tasks", None)
    reply = ask(recommender, user_id="user-3")
    assert [str(note) for note in reply.degraded] == [said]
    assert reply.served_by.ranker is None
    assert reply.items == plain.items


def test_a_ranker_of_other_numbers_is_refused(parts, tmp_path):
    folder = shutil.copytree(parts.models["ranker"], tmp_path / "ranker")
    document = json.loads((folder / "config.json").read_text())
    document["inputs"]["candidate_dense"][0] = "weather"
    (folder / "config.json").write_text(json.dumps(document))
    with pytest.raises(ValueError, match=r"candidate_dense .*weather"):
        write_bundle(tmp_path / "bundles", with_model(parts, "ranker", folder), version="v1")


def test_appended_items_are_ranked_and_old_ones_keep_their_scores(parts, tmp_path):
    directory = write_bundle(tmp_path, parts, version="v1")
    before = load_bundle(directory)
    fresh = NewItem(item_id="item-41", display_text="Fresh", categories=["odd"])
    append_like(tmp_path, "v1", [fresh], [6])
    after = load_bundle(tmp_path / "bundle-v1+1")
    model = after.ranker.model
    query, own, numbers = candidates(Recommender(before), "user-3")
    batch = RankingBatch(query.features, Jagged(own, torch.tensor([0, len(own)])), numbers)
    assert torch.equal(model.score(batch), before.ranker.model.score(batch))
    fresh = torch.tensor([41])
    alone = model.score_candidates(model.encode_reader(batch, 0), fresh, numbers[:1])
    unknown = model.score_candidates(model.encode_reader(batch, 0), torch.tensor([0]), numbers[:1])
    assert bool(alone.isfinite().all())
    assert not torch.equal(alone, unknown)
    reply = ask(Recommender(after), user_id="user-3", k=33)
    assert reply.served_by.ranker == before.ranker.version
    assert "item-41" in [item.item_id for item in reply.items]


def test_offline_reranking_has_the_served_order(recommender, bundle):
    query, _, _ = candidates(recommender, "user-3")
    lists = whole_lists(recommender, query)
    batch = {
        name: TopK(*(torch.from_numpy(part)[None] for part in one)) for name, one in lists.items()
    }
    found = bundle.ranker.reranked(batch, query.features, bundle.item_counts)
    length = found.item_rows.shape[1]
    served = CandidateRanker(bundle.ranker).ranked(
        lists, query.history_tensor, query.categorical, bundle.item_counts, length
    )
    present = found.item_rows[0] > 0
    assert found.item_rows[0, present].tolist() == served.item_rows.tolist()
    assert bool((found.scores[0, present].diff() < 0).all())
    assert not bool(present.all())
    assert bool(found.scores[0, ~present].isneginf().all())
