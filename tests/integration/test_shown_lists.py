"""A shop that logs what it showed: impressions stay out of histories, and the ranker reads them."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from click.testing import Result

from pipelines.config.toml import to_toml
from serving.recommend import Recommender
from serving.schemas import Request
from tests.recsys.testing.worlds import WorldConfig, world

Recsys = Callable[..., Result]
EXAMINED = (1.0, 0.6, 0.3)
SETTINGS = {
    "preset": "shop",
    "data": {"events": "events.parquet"},
    "filters": {"event_types": ["click", "purchase"], "shown_types": ["impression"]},
    "features": {"context_features": []},
    "semantic_ids": {"method": "none"},
    "two_tower": {
        "embedding_dim": 16, "hidden_dim": 16, "max_history": 10, "num_uniform_negatives": 500,
        "backend": "torch",
    },
    "device": "cpu",
    "two_tower_training": {"batch_size": 128, "max_epochs": 1.0},
    "ranker": {
        "embedding_dim": 8, "hidden_dim": 8, "head_dim": 8, "tile_rows": 32, "trunk": "dense",
        "backend": "torch",
    },
    "ranker_training": {
        "enabled": True, "num_candidates": 150, "num_hard": 10, "num_random": 10, "max_epochs": 1.0,
        "max_held_back": 40, "share_held_back": 0.6,
    },
    "release": {"min_gain_over_popularity": -1},
    "tracking": {"enabled": False},
}  # fmt: skip


@pytest.fixture(scope="module")
def workspace(recsys: Recsys, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shown")
    config = WorldConfig(
        seed=5, num_users=200, num_items=400, num_domains=1, num_requests=5_000,
        examination=EXAMINED,
    )  # fmt: skip
    events = world(config).events
    pl.DataFrame(
        {
            "user_id": events.user_ids,
            "item_id": events.item_ids,
            "event_time": events.times,
            "event_type": events.event_types,
            "request_id": events.request_ids,
            "slot": events.slots,
        }
    ).write_parquet(folder / "events.parquet")
    (folder / "shop.toml").write_text(to_toml(SETTINGS))
    result = recsys("run", "-c", folder / "shop.toml", "-w", folder / "run", "-q")
    assert result.exit_code == 0, result.output
    return folder / "run"


@pytest.mark.slow
def test_the_ranker_reads_lists_and_finds_how_often_places_are_looked_at(workspace: Path) -> None:
    report = json.loads((workspace / "build_features/report.json").read_text())
    assert 14_000 < report["shown"] <= 15_000
    told = json.loads((workspace / "train_ranker/given/ranker.json").read_text())
    assert told["shown_lists"] > 1_000
    assert told["tasks"][0] == "next"
    trunk = json.loads((workspace / "train_ranker/given/trunks.json").read_text())["trunks"][0]
    assert trunk["examined"] == pytest.approx(EXAMINED, abs=0.12)


def test_no_place_is_read_when_it_serves(workspace: Path) -> None:
    recommender = Recommender.load(workspace / "bundles/current")
    told = json.loads((workspace / "train_ranker/given/ranker.json").read_text())
    reply = recommender.answer(Request(user_id="user-3", k=5))
    assert (reply.served_by.ranker is not None) == told["served"]
    assert reply.degraded == []
    assert len(reply.items) == 5
    rows = np.load(workspace / "build_features/sequences/given/item_rows.npy")
    assert len(rows) == json.loads((workspace / "build_features/report.json").read_text())["events"]
