"""Stage refit: fit the models that are released on everything, held-out events included.

Trained models have no validation left to stop by, so each takes the number of passes that was best
on validation, with the learning-rate schedule of that run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.artifacts import to_json
from pipelines.config import TrainingConfig
from pipelines.fit_baselines import fit_models, save_models
from pipelines.generation import ItemCodes
from pipelines.model_inputs import ModelInputs, released_order
from pipelines.stage import StageContext, StageRows
from pipelines.train_generative import fit_generative_model, read_sequence
from pipelines.train_sequence import fit_sequence_model
from pipelines.train_two_tower import fit_two_tower
from pipelines.training import Curve, Model, ProgressBar, TrainingRun, save_model
from recsys.data.dataset import Sequences
from recsys.data.windows import training_windows
from recsys.training.loop import TrainConfig, TrainResult


@dataclass(frozen=True, kw_only=True)
class Again:
    """One model's training on everything."""

    name: str
    trained: Path
    """The training stage's folder of the released order; without training.json it was off."""
    training: TrainingConfig
    num_examples: tuple[int, int]
    """Of train, and of everything."""
    fit: Callable[[TrainConfig, TrainingRun], tuple[Model, TrainResult]]

    def train_config(self) -> TrainConfig:
        """Take as many passes as were best on validation."""
        ending = json.loads((self.trained / "training.json").read_text(encoding="utf-8"))
        return self.training.again(ending["best_step"], self.num_examples)


def trainings(context: StageContext, inputs: ModelInputs, order: str) -> list[Again]:
    """Say how each trained model is fitted again; the two-tower comes first."""
    config, sequences = context.config, inputs.sequences
    return [
        Again(
            name="two_tower",
            trained=context.inputs["train_two_tower"] / order,
            training=config.training,
            num_examples=(
                len(sequences.label_positions("train")),
                len(sequences.label_positions("all")),
            ),
            fit=lambda steps, run: fit_two_tower(inputs, config, steps, run, split="all"),
        ),
        Again(
            name="sequence",
            trained=context.inputs["train_sequence"] / order,
            training=config.sequence_training,
            num_examples=num_windows(sequences, config.sequence.max_length),
            fit=lambda steps, run: fit_sequence_model(inputs, config, steps, run, split="all"),
        ),
        Again(
            name="generative",
            trained=context.inputs["train_generative"] / order,
            training=config.generative_training,
            num_examples=num_windows(sequences, config.generative.max_length),
            fit=lambda steps, run: fit_generative_model(
                inputs,
                ItemCodes.load(context.inputs["build_semantic_ids"]),
                config,
                steps,
                run,
                split="all",
                # Fitted again before this one.
                sequence=(
                    read_sequence(context.output, inputs) if config.generation_is_taught() else None
                ),
            ),
        ),
    ]


def num_windows(sequences: Sequences, max_length: int) -> tuple[int, int]:
    """Count the windows of train, and of everything."""
    return (
        len(training_windows(sequences, "train", max_length)),
        len(training_windows(sequences, "all", max_length)),
    )


def train_again(context: StageContext, again: Again) -> int:
    """Train one model and write it with its curve; return its number of steps."""
    kept = context.checkpoints / again.name
    curve = Curve(context.run, again.name, kept.with_suffix(".jsonl"))
    title = f"{again.name.replace('_', '-')} (everything)"
    with ProgressBar(title, visible=context.show_progress) as progress:
        model, result = again.fit(again.train_config(), TrainingRun(kept, progress, curve))
    save_model(model, context.output, again.name)
    folder = context.output / "trainings" / again.name
    folder.mkdir(parents=True)
    curve.write(folder / "curve.jsonl")
    document: Mapping[str, Any] = {
        "num_steps": result.num_steps,
        "num_examples": again.num_examples[1],
    }
    (folder / "training.json").write_text(to_json(document))
    return result.num_steps


def refit(context: StageContext) -> StageRows:
    """Fit every model that was measured on all events, in the first tie order."""
    config, order = context.config, released_order(context.inputs["build_features"])
    inputs = ModelInputs.load(
        context.inputs["build_features"], context.inputs.get("embed_items"), order
    )
    save_models(fit_models(inputs, config, "all"), context.output)
    num_steps = 0
    for again in trainings(context, inputs, order):
        if (again.trained / "training.json").exists():
            num_steps += train_again(context, again)
    return StageRows(
        rows_in=len(inputs.sequences.label_positions("all")),
        rows_out=inputs.sizes.num_item_rows - 1,
        more={"steps": num_steps},
    )
