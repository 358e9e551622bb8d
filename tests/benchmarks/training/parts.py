"""Trainings of prepared arrays, cut to some steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from recsys.fitting.sequence import fit_sequence, num_windows
from recsys.fitting.training import Refit, TrainingRun
from recsys.fitting.two_tower import fit_two_tower, num_labels
from recsys.models.sequence.members import of_first
from recsys.reproduction.prepared import Prepared
from recsys.training.loop import TrainResult
from recsys.training.progress import Tracker


def fit_steps(folder: Path, model: str, num_steps: int, curve: Tracker) -> TrainResult:
    """Train so many steps of a recipe's model on a GPU, without validation."""
    prepared = Prepared.load(folder)
    recipe, inputs = prepared.recipe, prepared.inputs(next(iter(prepared.orders)))
    run = TrainingRun(seed=0, device=torch.device("cuda"), curve=curve)
    if model == "two_tower":
        labels = num_labels(inputs.sequences, "train")
        training = replace(recipe.two_tower_training, refit_epochs=None)
        stop = Refit(best_step=num_steps, num_examples=labels)
        return fit_two_tower(inputs, recipe.two_tower, training, run, stop).result
    config = of_first(recipe.sequence)
    windows = num_windows(inputs.sequences, "train", config.max_length)
    training = replace(recipe.sequence_training, refit_epochs=None)
    stop = Refit(best_step=num_steps, num_examples=windows)
    return fit_sequence(inputs, config, training, run, stop).result
