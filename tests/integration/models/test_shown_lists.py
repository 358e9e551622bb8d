"""A shop that logs what it showed: the ranker learns from what was shown and not chosen."""

import json
from pathlib import Path

import numpy as np
import polars as pl

from pipelines.config.toml import to_toml
from tests.integration.copies import Recsys, options, run, stages_before

OFF = {"enabled": False}
SETTINGS = {
    "preset": "shop",
    "auto": OFF,
    "data": {"events": "events.csv", "items": "items.csv"},
    "filters": {"shown_types": ["impression"]},
    "splits": {"kind": "global_time", "validation_share": 0.45, "test_share": 0.05},
    "features": {"context_features": []},
    "content": {"encoder": "none"},
    "semantic_ids": {"method": "none"},
    "two_tower_training": OFF,
    **dict.fromkeys(("ease", "repeats", "next_basket"), OFF),
    "blend": {"recent_demand": False, "max_queries": 400},
    "evaluation": {"exclude_history": False},
    "ranker": {
        "embedding_dim": 8, "hidden_dim": 8, "head_dim": 8, "tile_rows": 64, "trunk": "dense",
        "backend": "torch",
    },
    "ranker_training": {
        "enabled": True, "num_candidates": 60, "num_hard": 10, "num_random": 10, "max_epochs": 1.0,
        "share_held_back": 0.4, "max_queries": 800,
    },
    "tracking": OFF,
    "device": "cpu",
}  # fmt: skip
NUM_LOUD, NUM_ITEMS, NUM_SHOWN, NUM_REQUESTS = 20, 60, 8, 3_000


def write_events(folder: Path) -> None:
    """Write a year in which loud items fill the lists until day 250 and are seldom chosen.

    Even users like even items, and odd users odd ones.
    """
    rng = np.random.default_rng(3)
    rows = []
    for request in range(NUM_REQUESTS):
        day, user = 365 * request / NUM_REQUESTS, rng.integers(300)
        seconds = 1_700_000_000 + int(86_400 * day)
        weights = np.where(np.arange(NUM_ITEMS) < NUM_LOUD, 20.0 if day < 250 else 1.0, 1.0)
        shown = rng.choice(NUM_ITEMS, NUM_SHOWN, replace=False, p=weights / weights.sum())
        chance = np.where(shown < NUM_LOUD, 0.06, 0.5) * np.where(shown % 2 == user % 2, 1.6, 0.2)
        chosen = rng.random(NUM_SHOWN) < chance
        for kind, items in (("impression", shown), ("click", shown[chosen])):
            rows += [(f"u{user}", f"i{item}", seconds, kind, f"r{request}") for item in items]
    names = ["user_id", "item_id", "event_time", "event_type", "request_id"]
    pl.DataFrame(rows, names, orient="row").write_csv(folder / "events.csv")
    loud = ["loud" if item < NUM_LOUD else "quiet" for item in range(NUM_ITEMS)]
    items = {"item_id": [f"i{item}" for item in range(NUM_ITEMS)], "category": loud}
    pl.DataFrame(items).write_csv(folder / "items.csv")


def test_what_was_shown_and_not_chosen_is_learned_from(recsys: Recsys, tmp_path: Path) -> None:
    write_events(tmp_path)
    (tmp_path / "shop.toml").write_text(to_toml(SETTINGS))
    stages = [*stages_before("train_ranker"), "train_ranker"]
    result = run(recsys, tmp_path / "run", *options("--stage", stages))
    assert result.exit_code == 0, result.output
    shown = pl.read_parquet(tmp_path / "run/build_features/shown.parquet")
    assert len(shown) == NUM_REQUESTS * NUM_SHOWN
    decision = json.loads((tmp_path / "run/train_ranker/given/ranker.json").read_text())
    (impressions,) = decision["choices"]
    assert impressions["kept"]
    assert impressions["ahead"] > 2 * impressions["standard_error"]
