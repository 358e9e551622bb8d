"""Time a pass of the sequence model by a few steps of it on the data."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from pipelines.auto.recipe import SequenceRecipe
from pipelines.inputs.tensors import read_inputs, released_order
from recsys.fitting.sequence import fit_sequence, num_windows
from recsys.fitting.training import Refit, TrainingRun, device_named

FEW, MORE = 1, 4
"""Steps of two trainings; the difference is free of what a start costs."""


def pass_seconds(features: Path, recipe: SequenceRecipe, seed: int) -> float:
    """Measure how long one pass over the training windows takes.

    Args:
        features: Artefact of build_features.
        recipe: What is trained.
        seed: Of the run.
    """
    inputs = read_inputs(features, None, released_order(features))
    windows = num_windows(inputs.sequences, "train", recipe.model.max_length)
    steps = max(1, windows // recipe.training.batch_size)
    training = replace(recipe.training, refit_epochs=None)
    run = TrainingRun(seed=seed, device=device_named(training.device))

    def seconds_of(number: int) -> float:
        begin = time.perf_counter()
        fit_sequence(
            inputs,
            recipe.model,
            training,
            run,
            Refit(best_step=number, num_examples=max(1, windows)),
        )
        return time.perf_counter() - begin

    seconds_of(FEW)
    return max(1e-4, (seconds_of(MORE) - seconds_of(FEW)) / (MORE - FEW)) * steps
