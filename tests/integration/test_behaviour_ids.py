"""Semantic IDs from the sequence model's item vectors, from a run to what a bundle generates."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from pipelines.presets.resolve import resolve
from pipelines.semantic_ids.append import load_bundle_quantizer
from pipelines.semantic_ids.store import SemanticIdStore, read_item_codes
from pipelines.stages.build_semantic_ids import read_behaviour
from recsys.data.top_k import ItemMask
from recsys.retrieval.generated import GeneratedSource
from recsys.retrieval.model_sources import ContentNeighbours
from recsys.semantic_ids.behaviour import behaviour_ids
from recsys.semantic_ids.rq_kmeans import KMeansConfig, ResidualKMeansConfig
from serving.bundle.load import load_bundle
from serving.query import hydrate
from serving.recommend import Recommender
from serving.schemas import Request
from serving.settings import ServingOptions
from serving.surfaces import HOME
from tests.integration.copies import Recsys, copied, run_well, stages_before

OF_BEHAVIOUR = ("--set", "semantic_ids.source=sequence")


def report_of(own: Path) -> dict[str, Any]:
    path = own / "build_semantic_ids/semantic_ids_report.json"
    return dict(json.loads(path.read_text()))


def store_of(own: Path) -> SemanticIdStore:
    return SemanticIdStore(own / "bundles/semantic_ids")


@pytest.fixture(scope="module")
def finished(shop: Path, recsys: Recsys, tmp_path_factory: pytest.TempPathFactory) -> Path:
    own = copied(shop, tmp_path_factory.mktemp("taken"), stages_before("build_semantic_ids"))
    run_well(recsys, own, *OF_BEHAVIOUR)
    return own


@pytest.fixture
def own(finished: Path, tmp_path: Path) -> Path:
    return copied(finished, tmp_path)


def test_what_a_bundle_serves_is_what_behaviour_ids_gives(finished: Path) -> None:
    places = (finished / "build_features", finished / "embed_items", finished / "train_sequence")
    behaviour = read_behaviour(*places)
    assert behaviour is not None
    content = torch.from_numpy(np.load(finished / "embed_items/content.npy"))
    config = resolve(finished / "config.toml", assignments=[], workspace=finished)
    sizes = config.semantic_ids.level_sizes(24)
    kmeans = ResidualKMeansConfig(level_sizes=sizes, kmeans=KMeansConfig(balanced=True))
    expected = behaviour_ids(behaviour, content, kmeans)
    bundle = load_bundle(finished / "bundles/current")
    assert bundle.semantic_ids is not None
    assert torch.equal(torch.as_tensor(bundle.semantic_ids.codes), expected.ids.codes)
    assert load_bundle_quantizer(bundle.semantic_ids).digest == expected.quantizer.digest
    reply = Recommender(bundle, ServingOptions(profile="full")).answer(
        Request(user_id="user-0", k=3)
    )
    rows = [bundle.catalogue.row_of(item.item_id) or 0 for item in reply.items]
    assert [item.semantic_id for item in reply.items] == [
        "-".join(map(str, expected.ids.codes[row].tolist())) for row in rows
    ]


def test_appended_item_is_generated(own: Path, recsys: Recsys) -> None:
    items = pl.read_csv(own.parent / "items.csv")
    title = items["title"][0]
    new = own.parent / "new.csv"
    new.write_text(f"item_id,title\na-new-one,{title}\n")
    result = recsys("release", "append", own / "bundles/current", new)
    assert result.exit_code == 0, result.output
    bundle = load_bundle(own / "bundles/current")
    assert bundle.semantic_ids is not None
    row = bundle.catalogue.row_of("a-new-one")
    assert row is not None
    # Nobody moved, and the new item begins like one that the quantiser of content puts beside it.
    before = read_item_codes(own / "build_semantic_ids").codes
    codes = torch.as_tensor(bundle.semantic_ids.codes).long()
    assert torch.equal(codes[: len(before)], before)
    assert int(codes[row, 0]) in before[1:, 0].tolist()
    assert bundle.generative is not None
    source = GeneratedSource(bundle.generative.model, bundle.generative.trie, 25)
    mask = ItemMask.all(bundle.num_item_rows)
    for session in (["item-0"], ["item-4", "item-5"]):
        with torch.inference_mode():
            query = hydrate(Request(session=session), bundle, HOME)
            found = source.one(query, mask, 25)
        assert found is not None
        assert row in found.item_rows.tolist()


def test_an_appended_twin_finds_its_original_by_content(own: Path, recsys: Recsys) -> None:
    items = pl.read_csv(own.parent / "items.csv")
    new = own.parent / "new.csv"
    items.head(6).with_columns(item_id=pl.lit("twin-of-") + pl.col("item_id")).write_csv(new)
    result = recsys("release", "append", own / "bundles/current", new)
    assert result.exit_code == 0, result.output
    bundle = load_bundle(own / "bundles/current")
    assert bundle.semantic_ids is not None
    assert bundle.retriever is not None
    neighbours = ContentNeighbours(
        bundle.semantic_ids.content_codes,
        bundle.semantic_ids.ids.level_sizes,
        bundle.items.content,
        bundle.num_released_rows,
    )
    mask = ItemMask.all(bundle.num_item_rows)
    for item_id in items["item_id"][:6]:
        original, twin = (bundle.catalogue.row_of(one) for one in (item_id, f"twin-of-{item_id}"))
        assert original is not None
        assert twin is not None
        for asked, wanted in ((twin, original), (original, twin)):
            # As many as no prefix has but the shortest.
            found = neighbours.nearest(asked, 20, mask)
            assert found is not None
            assert found.item_rows[0, 0] == wanted


def test_published_ids_stay_whatever_the_sequence_model_learns(own: Path, recsys: Recsys) -> None:
    version = report_of(own)["version"]
    more = ("--set", "sequence_training.max_epochs=2", "--until", "build_semantic_ids")
    run_well(recsys, own, *OF_BEHAVIOUR, *more)
    assert report_of(own)["how"] == "kept"
    assert report_of(own)["version"] == version
    run_well(recsys, own, *OF_BEHAVIOUR, *more, "--force", "build_semantic_ids")
    now = report_of(own)
    assert (now["how"], now["parent"]) == ("aligned", version)


def test_content_takes_over_where_the_user_asks_and_is_aligned(own: Path, recsys: Recsys) -> None:
    version = report_of(own)["version"]
    run_well(recsys, own, "--until", "build_semantic_ids", "--set", "semantic_ids.source=content")
    assert (report_of(own)["how"], report_of(own)["parent"]) == ("aligned", version)
    manifest = json.loads((own / "build_semantic_ids/manifest.json").read_text())
    assert "train_sequence" not in manifest["inputs"]
    assert "behaviour" not in report_of(own)["origin"]


def test_without_a_sequence_model_it_is_refused_before_anything_runs(
    shop: Path, recsys: Recsys, tmp_path: Path
) -> None:
    options = (shop.parent / "shop.toml", "--set", f"workspace={tmp_path / 'run'}", *OF_BEHAVIOUR)
    result = recsys("run", *options, "--set", "sequence_training.enabled=false")
    assert result.exit_code == 2
    assert "semantic_ids.source" in result.output
    assert not (tmp_path / "run").exists()
