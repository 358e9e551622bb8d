"""One run for each kind of data and setting that a stranger may come with."""

import json
from pathlib import Path

import polars as pl
import pytest

from pipelines.config.toml import merge, read_toml, to_toml
from serving.recommend import Recommender
from tests.integration.copies import Recsys
from tests.recsys.testing.synthetic import World


def configured(shop: Path, folder: Path, changes: dict[str, object]) -> Path:
    """Copy the raw files and lay changes over the shop's TOML."""
    folder.mkdir()
    for name in ("events.csv", "items.csv", "users.csv"):
        (folder / name).write_bytes((shop.parent / name).read_bytes())
    settings = read_toml(shop.parent / "shop.toml")
    for section in ("two_tower_training", "sequence_training"):
        settings = merge(settings, {section: {"max_epochs": 1.0}})
    settings = merge(settings, {"generative_training": {"enabled": False}})
    settings = merge(settings, {"release": {"min_gain_over_popularity": -1}})
    path = folder / "shop.toml"
    path.write_text(to_toml(merge(settings, changes)))
    return path


def without(path: Path, section: str, *keys: str) -> None:
    settings = read_toml(path)
    for key in keys:
        del settings[section][key]
    path.write_text(to_toml(settings))


def finished(recsys: Recsys, config: Path) -> Path:
    """Run to the end; return the workspace."""
    workspace = config.parent / "run"
    result = recsys("run", config, "--set", f"workspace={workspace}", "-q")
    assert result.exit_code == 0, result.output
    lists = Recommender.load(workspace / "bundles/current").recommend(["user-0", "nobody"], k=5)
    assert lists.group_by("user_id").len()["len"].to_list() == [5, 5]
    return workspace


def test_events_alone_are_enough(shop: Path, recsys: Recsys, tmp_path: Path) -> None:
    config = configured(shop, tmp_path / "shop", {"content": {"encoder": "none"}})
    without(config, "data", "items", "users")
    workspace = finished(recsys, config)
    bundle = Recommender.load(workspace / "bundles/current").bundle
    assert bundle.catalogue.display_texts[1] == bundle.catalogue.item_ids[1]
    assert json.loads((workspace / "embed_items/content.json").read_text())["dim"] == 0


def test_models_without_training_are_served_alone(
    shop: Path, recsys: Recsys, tmp_path: Path
) -> None:
    off = {"enabled": False}
    names = ("two_tower_training", "sequence_training", "generative_training", "ranker_training")
    changes = {**dict.fromkeys(names, off), "evaluation": {"exclude_history": False}}
    changes["semantic_ids"] = {"source": "content"}
    workspace = finished(recsys, configured(shop, tmp_path / "shop", changes))
    bundle = Recommender.load(workspace / "bundles/current").bundle
    assert bundle.retriever is None
    assert not bundle.exclude_history
    counted = {"popularity", "item_to_item", "ease", "repeats", "next_basket", "content_similarity"}
    assert set(bundle.blends["fast"].sources) == counted
    metrics = json.loads((workspace / "evaluate/metrics.json").read_text())["given"]["test"]
    assert "two_tower" not in metrics


def test_an_order_without_times_is_enough(shop: Path, recsys: Recsys, tmp_path: Path) -> None:
    config = configured(shop, tmp_path / "shop", {})
    path = config.parent / "events.csv"
    events = pl.read_csv(path).with_row_index("sequence_index").drop("event_time")
    events.write_csv(path)
    workspace = finished(recsys, config)
    report = json.loads((workspace / "build_features/report.json").read_text())
    assert "event_time" in " ".join(report["warnings"])


def test_time_splits_everything_after_a_day(shop: Path, recsys: Recsys, tmp_path: Path) -> None:
    config = configured(
        shop,
        tmp_path / "shop",
        {"splits": {"kind": "global_time", "validation_share": 0.3, "test_share": 0.3}},
    )
    path = config.parent / "events.csv"
    events = pl.read_csv(path).with_row_index("place")
    # A day for each tenth of the events, so that there are days to cut at.
    day = (pl.col("place") * 20 // events.height + 1).cast(pl.Utf8).str.zfill(2)
    times = pl.format("2024-01-{}T", day) + pl.col("event_time").str.slice(11)
    events.with_columns(times.alias("event_time")).drop("place").write_csv(path)
    workspace = finished(recsys, config)
    table = pl.read_parquet(workspace / "evaluate/per_user_given_test.parquet")
    assert table.height > table["user_row"].n_unique()


@pytest.fixture(scope="module")
def full_tables(shop: Path, recsys: Recsys, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on users' ages, a catalogue item without events and two rows that are no events."""
    features = {
        "user_features": ["age"],
        "context_features": ["user_num_events"],
        "catalogue_only_items": True,
    }
    changes = {"features": features, "filters": {"max_bad_share": 0.1}}
    config = configured(shop, tmp_path_factory.mktemp("tables") / "shop", changes)
    users = pl.read_csv(config.parent / "users.csv").select("user_id").with_row_index("age")
    users.with_columns(pl.col("age") % 40 + 20).write_csv(config.parent / "users.csv")
    items = pl.read_csv(config.parent / "items.csv")
    cold = items.head(1).with_columns(pl.lit("cold-one").alias("item_id"))
    pl.concat([items, cold]).write_csv(config.parent / "items.csv")
    with (config.parent / "events.csv").open("a") as file:
        file.write("user-1,item-1,yesterday,view\n,item-1,2024-01-01T00:00:00Z,view\n")
    return finished(recsys, config)


def test_user_and_context_features_are_trained_and_served(full_tables: Path) -> None:
    manifest = json.loads((full_tables / "bundles/current/manifest.json").read_text())
    assert set(manifest["user_features"]) == {"age"}
    assert set(manifest["context_features"]) == {"user_num_events"}


def test_catalogue_items_without_events_can_be_recommended(full_tables: Path) -> None:
    lists = Recommender.load(full_tables / "bundles/current").recommend(["user-0"], k=100)
    assert "cold-one" in lists["item_id"].to_list()


def test_bad_rows_are_kept_with_their_reason(full_tables: Path, world: World) -> None:
    quarantine = pl.read_parquet(full_tables / "build_features/quarantine/*.parquet")
    assert quarantine["row"].to_list() == [len(world.user_ids), len(world.user_ids) + 1]
    manifest = json.loads((full_tables / "build_features/manifest.json").read_text())
    assert manifest["rows"]["quarantined"] == 2
