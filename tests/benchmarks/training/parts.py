"""What the benchmark of whole trainings measures, each part in a process of its own.

    python -m tests.benchmarks.training.parts PART --arrays FOLDER --out FILE [--plain]

Needs torch, numpy and safetensors alone, and RecTools for the part of that name. ``--plain``
switches every kernel and captured step off.
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
from recsys.evaluation.ranking import RankingConfig
from recsys.fitting.inputs import ModelInputs
from recsys.fitting.queries import EvaluationQueries, RetrievalSettings, measure
from recsys.fitting.sequence import fit_sequence, num_windows
from recsys.fitting.training import Refit, TrainingRun
from recsys.fitting.two_tower import fit_two_tower, num_labels
from recsys.kernels.choice import without
from recsys.models.item_tower import FeatureSizes, ItemCatalogue
from recsys.models.sequence.config import SequenceConfig
from recsys.models.sequence.members import of_first
from recsys.models.two_tower import TwoTowerConfig
from recsys.reproduction.prepared import Prepared
from recsys.reproduction.ranking_run import run_once
from recsys.reproduction.run import RunSettings
from recsys.retrieval.sources import ScoredSource
from recsys.training.passes import TrainingConfig
from recsys.training.progress import Tracker
from tests.benchmarks.training.profiled_steps import NUM_STEPS, profiled

CUDA = torch.device("cuda")
WORLD_USERS, WORLD_ITEMS, WORLD_EVENTS = 200_000, 100_000, 50
WORLD_STEPS = 300
SEQUENCE_MODELS = ("sequence", "two_tower")


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
        stop = Refit(best_step=num_steps, num_examples=num_labels(inputs.sequences, "train"))
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


class Clock:
    """Times a training behind its first steps."""

    def __init__(self) -> None:
        self.times: list[tuple[int, float]] = []

    def log(self, step: int, **values: float) -> None:
        if "loss" in values:
            torch.cuda.synchronize()
            self.times.append((step, time.perf_counter()))

    def step_ms(self) -> float:
        """Take the mean behind the first 2 x 50 steps."""
        (first, begin), (last, end) = self.times[1], self.times[-1]
        return (end - begin) / (last - first) * 1e3


def world_steps() -> dict[str, Any]:
    """Time steps of both models of a world of ten million events, and a validation."""
    inputs = world()
    settings = RetrievalSettings(max_history=50)
    queries = EvaluationQueries.of(inputs, "validation", settings).sample(5_000, 0)
    sequence = SequenceConfig(embedding_dim=64, hidden_dim=128, num_uniform_negatives=8_192)
    two_tower = TwoTowerConfig(embedding_dim=64, hidden_dim=128, num_uniform_negatives=8_192)
    found = {}
    for name, config, batch_size in (
        ("sequence", sequence, 512),
        ("two_tower", two_tower, 4_096),
    ):
        clock = Clock()
        model = fit_steps(inputs, config, TrainingConfig(batch_size=batch_size), WORLD_STEPS, clock)
        begin = time.perf_counter()
        metrics = measure(ScoredSource(model.eval().score), queries, RankingConfig(ks=(10,)), CUDA)
        examples = (
            num_labels(inputs.sequences, "train")
            if name == "two_tower"
            else num_windows(inputs.sequences, "train", config.max_length)  # type: ignore[union-attr]
        )
        found[name] = {
            "step_ms": clock.step_ms(),
            "steps_a_pass": examples // batch_size,
            "validation_seconds": time.perf_counter() - begin,
            "ndcg@10": metrics["ndcg@10"],
        }
    return found


def rectools_sasrec(folder: Path) -> dict[str, Any]:
    """Fit RecTools' SASRec on the train and validation events of arrays; rank all test users.

    As wide and as long as the recipe's model, for as many passes.
    """
    from tests.benchmarks.peers.folder import Known
    from tests.benchmarks.peers.transformers import dataset_of, sasrec

    prepared = Prepared.load(folder)
    events = prepared.inputs(next(iter(prepared.orders))).sequences
    config, training = prepared.recipe.sequence, prepared.recipe.sequence_training
    ends = np.asarray(events.validation_end)
    places = events.positions_before(ends)
    times = np.asarray(places if events.times is None else events.times[places])
    users = events.users_of(places)
    known = Known(
        user_rows=users,
        item_rows=np.asarray(events.item_rows)[places],
        times=times,
        num_users=events.num_user_rows,
        num_item_rows=prepared.num_item_rows,
        begin=int(times.max()) + 1,
    )
    begin = time.perf_counter()
    model = sasrec(
        known,
        epochs=round(training.max_epochs),
        n_factors=config.embedding_dim // config.num_members,
        n_blocks=config.num_blocks,
        n_heads=config.num_heads,
        session_max_len=config.max_length,
        batch_size=training.batch_size,
        lr=1e-3,
        loss="softmax",
    ).model
    fitted = time.perf_counter()
    from rectools import Columns

    wanted = np.flatnonzero(np.diff(np.asarray(events.offsets)) > 0)
    table = model.recommend(
        wanted, dataset_of(users, known.item_rows, times), k=10, filter_viewed=True
    )
    done = time.perf_counter()
    target = np.asarray(events.item_rows)[np.asarray(events.offsets)[1:] - 1]
    hits = table[Columns.Item].to_numpy() == target[table[Columns.User].to_numpy()]
    ranks = table[Columns.Rank].to_numpy()[hits]
    return {
        "fit_seconds": fitted - begin,
        "ranking_seconds": done - fitted,
        "epochs": round(training.max_epochs),
        "ndcg@10": float((1 / np.log2(ranks + 1)).sum() / len(wanted)),
    }


PARTS: Mapping[str, Callable[[Path], dict[str, Any]]] = {
    "whole": whole_recipe,
    "whole_sequence": lambda folder: whole_recipe(folder, ("sequence",)),
    "steps": recipe_steps,
    "world": lambda _: world_steps(),
    "rectools": rectools_sasrec,
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
