"""What the benchmark of the dashboard looks at: many runs, and one run of a million users.

Runs of the many have the files, sizes and shapes of real ones (a resolved configuration of 400
settings, 16 stages, 200 metrics) with numbers that are drawn. The run of a million users is a made
log with ranks drawn with planted differences, evaluated by the stage's own code.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pipelines.config.toml import to_toml
from pipelines.engine.artifacts import plain
from pipelines.presets import PRESETS
from tests.pipelines.dashboard.planted import Model, World, world, write_workspace
from tests.pipelines.dashboard.synthetic_runs import write_bundle, write_run

MODELS = ("popularity", "item_to_item", "ease", "two_tower", "content", "sequence")
MODELS += ("generative", "blend_fast", "blend", "ranked")
METRICS = tuple(f"{name}@{k}" for k in (5, 10, 20, 50, 100) for name in ("ndcg", "recall"))
STAGES = (
    "build_features",
    "enrich_items",
    "embed_items",
    "fit_baselines",
    "train_two_tower",
    "train_sequence",
    "build_semantic_ids",
    "train_generative",
    "fit_blend",
    "train_ranker",
    "evaluate",
    "report",
    "refit",
    "build_index",
    "release",
    "adapt_domains",
)
DATASETS = ("movielens-100k", "amazon-beauty", "shop/events")
BEGAN = datetime(2024, 1, 1, tzinfo=UTC)


def drawn_metrics(rng: random.Random, num_models: int) -> dict[str, dict[str, float]]:
    """Draw the metrics of one split, better models last."""
    found: dict[str, dict[str, float]] = {}
    for place, model in enumerate(MODELS[-num_models:]):
        level = 0.05 + 0.01 * place + 0.005 * rng.gauss(0, 1)
        found[model] = {name: level * math.log(1 + int(name[-1])) + 0.1 for name in METRICS}
    return found


def write_many(folder: Path, count: int, *, small: bool = False) -> Path:
    """Write so many runs, every tenth with a bundle; small ones have 20 metrics and one stage.

    A folder that is there is kept.
    """
    done = folder / f"{count}.done"
    if done.exists():
        return folder
    rng = random.Random(count)
    text = "seed = 0\n" if small else to_toml(plain(PRESETS["movielens_100k"]()))
    for number in range(count):
        splits = ("test",) if small else ("test", "validation")
        metrics = {split: drawn_metrics(rng, 2 if small else len(MODELS)) for split in splits}
        settings = text.replace("seed = 0", f"seed = {number % 17}", 1)
        path = write_run(
            folder / f"group-{number // 1000}" / f"run-{number:06d}",
            metrics,
            began=BEGAN + timedelta(minutes=7 * number),
            settings=settings + f'[report]\ntitle = "{DATASETS[number % 3]}"\n' * small,
            stages=("evaluate",) if small else STAGES,
            data=f"{number % 3}" * 64,
        )
        if number % 10 == 0 and not small:
            write_bundle(path / "bundles", f"v{number}", metrics["test"])
    done.touch()
    return folder


def models_of(seed: int) -> Mapping[str, Model]:
    """Plant four models; the second run's later ones lose on new users and gain on others."""

    def shift(known: World) -> object:
        return -0.25 * seed + 0.6 * seed * known.new_users

    return {
        "popularity": Model(seed=1, shift=lambda known: 0.9, spread=0.01),
        "item_to_item": Model(seed=2, shift=lambda known: 0.4),
        "blend_fast": Model(seed=3 + seed, shift=shift),
        "blend": Model(seed=5 + seed, shift=lambda known: shift(known) - 0.05),
    }


def write_large(folder: Path, num_users: int, num_items: int = 300) -> Path:
    """Write two runs over the same users; a folder that is there is kept."""
    if (folder / "done").exists():
        return folder
    known = world(1, num_users=num_users, num_items=num_items)
    first = write_workspace(folder / "large-a", known, models_of(0))
    features = first / "build_features"
    write_workspace(folder / "large-b", known, models_of(1), features=features.absolute())
    (folder / "done").touch()
    return folder
