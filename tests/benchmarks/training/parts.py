"""What the benchmark of whole trainings measures, each part in a process of its own.

    python -m tests.benchmarks.training.parts PART --arrays FOLDER --out FILE [--plain]

Needs torch, numpy and safetensors alone, and RecTools for the parts of that name.
``--plain`` switches every kernel and captured step off.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
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
from recsys.kernels.choice import without
from recsys.models.configs import TwoTowerConfig
from recsys.models.item_tower import FeatureSizes, ItemCatalogue
from recsys.models.sequence.config import SequenceConfig
from recsys.models.sequence.members import of_first
from recsys.retrieval.sources import ScoredSource
from recsys.training.passes import TrainingConfig
from recsys.training.progress import SilentTracker, Tracker
from tests.benchmarks.recipes.prepared import Prepared
from tests.benchmarks.recipes.run import RunSettings
from tests.benchmarks.reproduction.ranking_run import run_once
from tests.benchmarks.training.peer_parts import Task, rectools, rectools_fast
from tests.benchmarks.training.profiled_steps import NUM_STEPS, profiled

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
    sequences, recipe = prepared.inputs(settings.order).sequences, prepared.recipe
    batches = num_windows(sequences, "train", recipe.sequence.max_length)
    batches //= recipe.sequence_training.batch_size
    return {
        "seconds": seconds,
        "rows": found,
        "events": num_train_events(sequences),
        "sequence_steps_a_pass": batches,
    }


def num_train_events(sequences: Sequences) -> int:
    """Count the events that models are fitted on."""
    return int((np.asarray(sequences.train_end) - np.asarray(sequences.offsets[:-1])).sum())


def fit_steps(
    inputs: ModelInputs,
    config: SequenceConfig | TwoTowerConfig,
    training: TrainingConfig,
    num_steps: int,
    curve: Tracker,
) -> Any:
    """Train so many steps on a GPU, without validation, and return the model."""
    run = TrainingRun(seed=0, device=CUDA, curve=curve)
    training = replace(training, refit_epochs=None)
    if isinstance(config, TwoTowerConfig):
        stop = Refit(best_step=num_steps, num_examples=inputs.sequences.num_labels("train"))
        return fit_two_tower(inputs, config, training, run, stop).model
    windows = num_windows(inputs.sequences, "train", config.max_length)
    return fit_sequence(
        inputs, config, training, run, Refit(best_step=num_steps, num_examples=windows)
    ).model


def recipe_steps(folder: Path) -> dict[str, Any]:
    """Profile steps of a recipe's trained models."""
    prepared = Prepared.load(folder)
    recipe, inputs = prepared.recipe, prepared.inputs(next(iter(prepared.orders)))
    models: Mapping[str, tuple[Any, TrainingConfig]] = {
        "sequence": (of_first(recipe.sequence), recipe.sequence_training),
        "two_tower": (recipe.two_tower, recipe.two_tower_training),
    }
    found = {}
    for name, (config, training) in models.items():
        if name in recipe.models():
            result = profiled(
                lambda curve, own=config, how=training: fit_steps(  # type: ignore[misc]
                    inputs, own, how, NUM_STEPS, curve
                ),
                CUDA,
            )
            found[name] = result._asdict()
    return found


def world() -> ModelInputs:
    """Ten million events: users with tastes for a few of a hundred groups of items."""
    rng = np.random.default_rng(0)
    size = (WORLD_USERS, WORLD_EVENTS)
    group = rng.integers(0, 100, (WORLD_USERS, 3))[np.arange(WORLD_USERS)[:, None],
                                                   rng.integers(0, 3, size)]  # fmt: skip
    within = (rng.random(size) ** 3 * (WORLD_ITEMS // 100)).astype(np.int64)
    rows = np.concatenate([[], (1 + group * (WORLD_ITEMS // 100) + within).ravel()])
    offsets = np.concatenate([[0], np.arange(WORLD_USERS + 1) * WORLD_EVENTS])
    sequences = Sequences(
        item_rows=rows.astype(np.int64),
        offsets=offsets,
        train_end=np.maximum(offsets[1:] - 2, 0),
        validation_end=np.maximum(offsets[1:] - 1, 0),
    )
    nothing = ItemCatalogue(
        torch.empty(WORLD_ITEMS + 1, 0),
        Jagged(torch.empty(0, dtype=torch.int64), torch.zeros(WORLD_ITEMS + 2, dtype=torch.int64)),
    )
    sizes = FeatureSizes(num_item_rows=WORLD_ITEMS + 1)
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


def world_profile() -> dict[str, Any]:
    """Profile steps of the world's models."""
    inputs, found = world(), {}
    for name, (config, batch_size) in WORLD_MODELS.items():
        training = TrainingConfig(batch_size=batch_size)
        result = profiled(
            lambda curve, own=config, how=training: fit_steps(  # type: ignore[misc]
                inputs, own, how, NUM_STEPS, curve
            ),
            CUDA,
        )
        found[name] = result._asdict()
    return found


def peer_task(folder: Path, num_users: int | None = None) -> Task:
    """Take the arrays of a recipe, or of its first users."""
    prepared = Prepared.load(folder)
    recipe = prepared.recipe
    return Task.of(
        prepared.inputs(next(iter(prepared.orders))).sequences,
        prepared.num_item_rows,
        recipe.sequence,
        recipe.sequence_training.batch_size,
        round(recipe.sequence_training.max_epochs),
        num_users,
    )


def world_task(num_users: int) -> Task:
    """Take the first users of the world, for one pass."""
    config, batch_size = WORLD_MODELS["sequence"]
    assert isinstance(config, SequenceConfig)
    events = world().sequences
    return Task.of(events, WORLD_ITEMS + 1, config, batch_size, 1, num_users, WORLD_RANKED)


PARTS: Mapping[str, Callable[[Path], dict[str, Any]]] = {
    "whole": lambda folder: whole_recipe(folder, SERVED_FAST),
    "whole_ensemble": lambda folder: whole_recipe(folder, ("ensemble",)),
    "whole_sequence": lambda folder: whole_recipe(folder, ("sequence",)),
    "steps": recipe_steps,
    "world": lambda _: world_passes(),
    "world_steps": lambda _: world_profile(),
    "rectools": lambda folder: rectools(peer_task(folder)),
    "rectools_fast": lambda folder: rectools_fast(peer_task(folder)),
    "world_rectools": lambda _: rectools(world_task(WORLD_USERS)),
    "world_rectools_fast": lambda _: rectools_fast(world_task(WORLD_USERS)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--arrays", type=Path, default=Path())
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--plain", action="store_true")
    options = parser.parse_args()
    with ExitStack() as stack:
        if options.plain:
            stack.enter_context(without("all"))
        found = PARTS[options.part](options.arrays)
    document = {
        "part": options.part,
        "arrays": options.arrays.name,
        "plain": options.plain,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "found": found,
    }
    options.out.write_text(json.dumps(document) + "\n")
    print(json.dumps(document)[:3000], flush=True)


if __name__ == "__main__":
    main()
