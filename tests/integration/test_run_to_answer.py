"""From CSV files to the same answer in Python, over HTTP and by the offline evaluation."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from starlette.testclient import TestClient

from pipelines.candidates.blends import load_blends
from pipelines.inputs.tensors import read_inputs
from pipelines.semantic_ids.store import read_item_codes
from recsys.data.batch import Jagged, JaggedBatch
from recsys.fitting.queries import RetrievalSettings
from recsys.models.content_similarity import ContentSimilarity
from recsys.models.generative.model import GenerativeModel
from recsys.models.item_weights.model import ItemWeights
from recsys.models.popularity import Popularity
from recsys.models.sequence.model import SequenceModel
from recsys.models.two_tower import TwoTower
from recsys.retrieval.generated import generated_source
from recsys.retrieval.sources import ScoredSource, Source, allowed_items, lists_of, rank_by_all
from serving.bundle.manifest import Profile
from serving.recommend import Recommender
from serving.settings import ServingOptions, Settings
from serving.sources import BEAM_WIDTH
from tests.integration.copies import Recsys
from tests.recsys.testing.synthetic import World
from tests.serving.application import create_app

MEASURED = {
    "popularity",
    "item_to_item",
    "ease",
    "content_similarity",
    "two_tower",
    "sequence",
    "generative",
    "blend_fast",
    "blend",
}


@pytest.fixture(scope="module")
def recommender(shop: Path) -> Recommender:
    return Recommender.load(shop / "bundles/current")


def test_the_successor_of_the_last_item_is_recommended(
    world: World, recommender: Recommender
) -> None:
    lists = recommender.recommend(world.users, k=3)
    found = [
        bool(world.answers[user_id] & set(group["item_id"]))
        for (user_id,), group in lists.group_by("user_id")
        if not world.answers[user_id] <= set(history_of(recommender, str(user_id)))
    ]
    assert sum(found) / len(found) >= 0.9


def history_of(recommender: Recommender, user_id: str) -> list[str]:
    bundle = recommender.bundle
    row = bundle.users.row_of(user_id)
    assert row is not None
    return [bundle.catalogue.item_ids[int(item)] for item in bundle.users.history(row)]


def test_history_in_the_bundle_is_the_users_events_in_order(
    world: World, recommender: Recommender
) -> None:
    user_id = world.users[7]
    expected = world.item_ids[world.user_ids == user_id].tolist()
    assert history_of(recommender, user_id) == expected


def test_http_gives_the_scores_of_python(
    shop: Path, world: World, recommender: Recommender
) -> None:
    settings = Settings(bundles=shop / "bundles", log_requests=False)
    with TestClient(create_app(settings)) as client:
        for user_id in [*world.users[:5], "nobody"]:
            reply = client.post("/v1/recommend", json={"user_id": user_id, "k": 7})
            assert reply.status_code == 200
            served = [(one["item_id"], one["score"]) for one in reply.json()["items"]]
            local = recommender.recommend([user_id], k=7)
            assert served == list(local.select("item_id", "score").iter_rows())


@pytest.mark.parametrize("profile", ["fast", "full"])
def test_the_measured_blend_is_the_served_one(shop: Path, profile: Profile) -> None:
    recommender = Recommender.load(shop / "bundles/current", ServingOptions(profile=profile))
    inputs = read_inputs(shop / "build_features", shop / "embed_items")
    assert inputs.sizes.event_types == ("click", "purchase")
    refit = shop / "refit"
    two_tower = TwoTower.load(refit / "two_tower", inputs.catalogue)
    sequence = SequenceModel.load(refit / "sequence", inputs.catalogue)
    popularity = Popularity.load(refit / "popularity")
    codes = read_item_codes(shop / "build_semantic_ids")
    generative = GenerativeModel.load(
        refit / "generative", inputs.catalogue, codes.codes, semantic_ids=codes.version
    )
    sources: dict[str, Source] = {
        "popularity": ScoredSource(popularity.score, needs_history=False),
        "item_to_item": ScoredSource(ItemWeights.load(refit / "item_to_item").score),
        "ease": ScoredSource(ItemWeights.load(refit / "ease").score),
        "content_similarity": ScoredSource(
            ContentSimilarity.load(refit / "content_similarity").score
        ),
        "two_tower": ScoredSource(two_tower.score),
        "sequence": ScoredSource(sequence.score),
        "generative": generated_source(generative, codes, BEAM_WIDTH),
    }
    blend = load_blends(shop / "fit_blend/given")[profile]
    weighed = {"popularity", "item_to_item", "ease", "content_similarity", "two_tower", "sequence"}
    expected = weighed | {"generative"} if profile == "full" else weighed
    assert set(recommender.bundle.blends[profile].sources) == expected
    ends = np.asarray(inputs.sequences.offsets[1:])
    counts = inputs.sequences.item_counts(ends, inputs.sizes.num_item_rows)
    users = recommender.bundle.users
    for row in range(1, users.num_user_rows):
        items, _, types = users.events(row)
        assert types is not None
        history, types = Jagged.from_lists([items.tolist()]), Jagged.from_lists([types.tolist()])
        user = Jagged.one_each(torch.tensor([row]))
        queries = JaggedBatch({"history": history, "history.types": types, "user": user})
        num_item_rows = inputs.sizes.num_item_rows
        allowed = allowed_items(history, 1, num_item_rows)
        k = RetrievalSettings().list_length(num_item_rows)
        lists = lists_of(rank_by_all(sources, queries, allowed, k))
        measured = blend.lists(lists, history.lengths(), counts)
        rows = [item for item in measured.item_rows[0].tolist() if item > 0][:10]
        served = recommender.recommend([users.user_ids[row]], k=10)
        assert served["item_id"].to_list() == [
            recommender.bundle.catalogue.item_ids[item] for item in rows
        ]
        assert served["score"].to_list() == pytest.approx(measured.scores[0, : len(rows)].tolist())


def test_metrics_agree_with_the_per_user_results(shop: Path) -> None:
    metrics = json.loads((shop / "evaluate/metrics.json").read_text())["given"]
    for split in ("validation", "test"):
        table = pl.read_parquet(shop / f"evaluate/per_user_given_{split}.parquet")
        assert table.height == 80
        for model in MEASURED:
            hits = (table[f"rank_{model}"].fill_null(99) <= 5).mean()
            assert metrics[split][model]["recall@5"] == pytest.approx(hits)
            top = table.select(
                pl.col(f"top_k_{model}").list.head(5).list.contains(pl.col("item_row"))
            ).to_series()
            assert top.mean() == pytest.approx(hits)
    assert metrics["test"]["blend"]["recall@5"] > 2 * metrics["test"]["popularity"]["recall@5"]


def test_every_look_at_the_test_split_is_in_the_ledger(shop: Path) -> None:
    looks = [json.loads(line) for line in (shop / "ledger.jsonl").read_text().splitlines()]
    assert [look["split"] for look in looks] == ["test"]
    assert set(looks[0]["ndcg@10"]) == MEASURED


def test_recommend_prints_titles(
    shop: Path, world: World, recsys: Recsys, recommender: Recommender
) -> None:
    result = recsys("recommend", shop / "bundles/current", "--user", world.users[0])
    assert result.exit_code == 0, result.output
    for title in recommender.recommend([world.users[0]], k=10)["display_text"]:
        assert title in result.output
    similar = recsys("recommend", shop, "--item", "item-3", "--k", 2, "--json")
    assert similar.exit_code == 0, similar.output
    assert len(json.loads(similar.output)["items"]) == 2


def test_a_column_of_the_catalogue_can_be_filtered_by(
    shop: Path, world: World, recsys: Recsys
) -> None:
    prices = dict(zip(world.catalogue.item_ids, world.catalogue.prices.tolist(), strict=True))
    middle = sorted(prices.values())[len(prices) // 2]
    command = ("recommend", shop, "--user", world.users[0], "--json", "--where")
    result = recsys(*command, f"price < {middle:.2f}")
    assert result.exit_code == 0, result.output
    found = [item["item_id"] for item in json.loads(result.stdout)["items"]]
    assert found
    assert max(prices[item] for item in found) < middle
    refused = recsys(*command, "cost < 5")
    assert refused.exit_code == 2
    assert "have no property 'cost'; they have category, item_id, price" in " ".join(
        refused.output.split()
    )


def test_unknown_user_gets_a_list_and_a_note(shop: Path, recsys: Recsys) -> None:
    result = recsys("recommend", shop, "--user", "nobody", "--k", 3)
    assert result.exit_code == 0
    assert "unknown_user" in result.output
