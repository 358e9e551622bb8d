"""A stranger's files, with names of their own: init, run, recommend."""

from pathlib import Path

import polars as pl
from starlette.testclient import TestClient

from serving.recommend import Recommender
from serving.settings import Settings
from tests.integration.copies import Recsys
from tests.recsys.testing.synthetic import World, write_csv
from tests.serving.application import create_app

TINY = ("content.encoder=hash", "two_tower_training.max_epochs=1.0", "device=cpu",
        "tracking.enabled=false", "release.min_gain_over_popularity=-1")  # fmt: skip


def test_strangers_files_become_recommendations(
    world: World, recsys: Recsys, tmp_path: Path
) -> None:
    write_csv(world, tmp_path)
    events = pl.read_csv(tmp_path / "events.csv").select(
        pl.col("user_id").alias("Kunde"),
        pl.col("item_id").alias("Artikelnummer"),
        pl.col("event_time").str.to_datetime(time_zone="UTC").dt.strftime("%d.%m.%Y %H:%M:%S")
        .alias("Datum"),
    )  # fmt: skip
    events.write_csv(tmp_path / "orders.csv", separator=";")
    title = "<b>Tea & \U0001f375</b>"
    items = pl.read_csv(tmp_path / "items.csv").select("item_id", pl.lit(title).alias("Titel"))
    items.write_csv(tmp_path / "artikel.csv", separator=";")
    target, workspace = tmp_path / "mine.toml", tmp_path / "run"
    files = (tmp_path / "artikel.csv", tmp_path / "orders.csv")
    result = recsys("data", "init", *files, "--out", target)
    assert result.exit_code == 0, result.output
    assert "times: " in result.output
    settings = [part for one in TINY for part in ("--set", one)]
    result = recsys("run", target, "--set", f"workspace={workspace}", "-q", *settings)
    assert result.exit_code == 0, result.output
    lists = Recommender.load(workspace / "bundles/current").recommend(["user-0"], k=5)
    assert lists.height == 5
    assert set(lists["display_text"]) == {title}
    page = next(workspace.rglob("*.html")).read_text(encoding="utf-8")
    assert title not in page
    with TestClient(create_app(Settings(bundles=workspace / "bundles"))) as client:
        assert client.get("/").status_code == 200
        found = client.get("/v1/search", params={"q": "tea"}).json()
    assert title in str(found)
