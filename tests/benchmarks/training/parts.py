"""Trainings that benchmarks of GPUs measure; they need torch, numpy and safetensors alone."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recsys.data.batch import Jagged
from recsys.data.dataset import Sequences
from recsys.data.windows import num_windows
from recsys.fitting.queries import EvaluationQueries, ModelInputs, RetrievalSettings, measure
from recsys.fitting.sequence import fit_sequence
from recsys.fitting.spec import Refit, TrainingRun
from recsys.fitting.two_tower import fit_two_tower
from recsys.models.configs import TwoTowerConfig
from recsys.models.item_tower import FeatureSizes, ItemCatalogue
from recsys.models.sequence.config import SequenceConfig
from recsys.retrieval.sources import ScoredSource
from recsys.training.passes import TrainingConfig
from recsys.training.progress import SilentTracker, Tracker
from tests.benchmarks.recipes.prepared import Prepared
from tests.benchmarks.recipes.run import RunSettings
from tests.benchmarks.reproduction.ranking_run import run_once

CUDA = torch.device("cuda")
WORLD_USERS, WORLD_ITEMS, WORLD_EVENTS = 200_000, 100_000, 50
WORLD_RANKED = 5_000
WORLD_MODELS: Mapping[str, tuple[SequenceConfig | TwoTowerConfig, int]] = {
    "sequence": (
        SequenceConfig(embedding_dim=64, hidden_dim=128, num_uniform_negatives=8_192),
        512,
    ),
    "sequence, all items": (SequenceConfig(embedding_dim=64, hidden_dim=128), 512),
    "two_tower": (
        TwoTowerConfig(embedding_dim=64, hidden_dim=128, num_uniform_negatives=8_192),
        4_096,
    ),
}
"""Models of the world, each with its batch size."""
SERVED_FAST = (
    "popularity",
    "item_to_item",
    "ease",
    "content_similarity",
    "two_tower",
    "sequence",
    "blend_fast",
)
"""Rows of the models that profile ``fast`` serves, and their blend."""


def whole_recipe(folder: Path, rows: tuple[str, ...] = ()) -> dict[str, Any]:
    """Train and measure every model of a recipe, or some rows of it."""
    prepared = Prepared.load(folder)
    if rows:
        prepared = replace(prepared, recipe=replace(prepared.recipe, rows=rows))
    settings = RunSettings(order=next(iter(prepared.orders)), seed=0, device="cuda", why="timed")
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as out:
        result = run_once(prepared, Path(out), settings)
    seconds = time.perf_counter() - begin
    found = {
        name: {
            "fit_seconds": row.get("fit_seconds"),
            "seconds": row["seconds"],
            "steps": (row.get("training") or {}).get("num_steps"),
            "ndcg@10": row["test"]["ndcg@10"],
        }
        for name, row in result["rows"].items()
    }
    return {"seconds": seconds, "rows": found}


def num_train_events(sequences: Sequences) -> int:
    """Count the events that models are fitted on."""
    return int((np.asarray(sequences.train_end) - np.asarray(sequences.offsets[:-1])).sum())


def fit_steps(
    inputs: ModelInputs,
    config: SequenceConfig | TwoTowerConfig,
    training: TrainingConfig,
    num_steps: int,
    curve: Tracker,
    device: torch.device = CUDA,
    run: TrainingRun | None = None,
) -> Any:
    """Train a number of steps, on a GPU by default, without validation; return the model."""
    run = run or TrainingRun(seed=0, device=device, curve=curve)
    training = replace(training, refit_epochs=None)
    if isinstance(config, TwoTowerConfig):
        stop = Refit(best_step=num_steps, num_examples=inputs.sequences.num_labels("train"))
        return fit_two_tower(inputs, config, training, run, stop).model
    windows = num_windows(inputs.sequences, "train", config.max_length)
    return fit_sequence(
        inputs, config, training, run, Refit(best_step=num_steps, num_examples=windows)
    ).model


def world(
    num_users: int = WORLD_USERS, num_items: int = WORLD_ITEMS, num_events: int = WORLD_EVENTS
) -> ModelInputs:
    """Draw events of users with tastes for a few of a hundred groups of items; 10M by default."""
    rng = np.random.default_rng(0)
    size, groups = (num_users, num_events), min(100, num_items)
    group = rng.integers(0, groups, (num_users, 3))[np.arange(num_users)[:, None],
                                                    rng.integers(0, 3, size)]  # fmt: skip
    within = (rng.random(size) ** 3 * (num_items // groups)).astype(np.int64)
    rows = np.concatenate([[], (1 + group * (num_items // groups) + within).ravel()])
    offsets = np.concatenate([[0], np.arange(num_users + 1) * num_events])
    sequences = Sequences(
        item_rows=rows.astype(np.int64),
        offsets=offsets,
        train_end=np.maximum(offsets[1:] - 2, 0),
        validation_end=np.maximum(offsets[1:] - 1, 0),
    )
    nothing = ItemCatalogue(
        torch.empty(num_items + 1, 0),
        Jagged(torch.empty(0, dtype=torch.int64), torch.zeros(num_items + 2, dtype=torch.int64)),
    )
    sizes = FeatureSizes(num_item_rows=num_items + 1)
    return ModelInputs(sequences=sequences, catalogue=nothing, sizes=sizes)


def world_passes() -> dict[str, Any]:
    """Train each model of a world of ten million events for a pass, and validate it."""
    inputs = world()
    num_events = num_train_events(inputs.sequences)
    settings = RetrievalSettings(max_history=50)
    queries = EvaluationQueries.of(inputs, "validation", settings).sample(WORLD_RANKED, 0)
    found = {}
    for name, (config, batch_size) in WORLD_MODELS.items():
        examples = (
            inputs.sequences.num_labels("train")
            if isinstance(config, TwoTowerConfig)
            else num_windows(inputs.sequences, "train", config.max_length)
        )
        steps, begin = examples // batch_size, time.perf_counter()
        model = fit_steps(
            inputs, config, TrainingConfig(batch_size=batch_size), steps, SilentTracker()
        )
        torch.cuda.synchronize()
        fitted = time.perf_counter()
        metrics = measure(ScoredSource(model.eval().score), queries, CUDA)
        found[name] = {
            "steps_a_pass": steps,
            "events": num_events,
            "fit_seconds": fitted - begin,
            "validation_seconds": time.perf_counter() - fitted,
            "ndcg@10": metrics["ndcg@10"],
        }
        print(name, found[name], flush=True)
    return found
