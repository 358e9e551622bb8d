"""TODO-DOC."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pipelines.config.run import TrainingConfig
from pipelines.engine.stage import StageContext
from pipelines.semantic_ids.artefact import read_item_codes
from pipelines.training.generative import fit_generative_model, read_sequence
from pipelines.training.run import Model, TrainingRun
from pipelines.training.sequence import fit_sequence_model
from pipelines.training.two_tower import fit_two_tower
from recsys.data.dataset import Sequences
from recsys.data.windows import training_windows
from recsys.fitting.inputs import ModelInputs
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
                read_item_codes(context.inputs["build_semantic_ids"]),
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
