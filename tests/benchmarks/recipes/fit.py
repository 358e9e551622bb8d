"""Fit the models of a recipe on the events before those held out, and make them sources.

Axes: N item rows.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from recsys.fitting.catalogue import SPECS
from recsys.fitting.queries import EvaluationQueries, ModelInputs
from recsys.fitting.spec import Data, ModelSpec, Refit, Start, TrainingRun
from recsys.models.sequence.config import SequenceConfig
from recsys.models.sequence.members import of_first
from recsys.replay.experiment import FittedSource
from recsys.training.passes import TrainingConfig
from recsys.training.progress import SilentProgress
from tests.benchmarks.recipes.prepared import Prepared
from tests.benchmarks.recipes.recipe import Recipe
from tests.benchmarks.recipes.run import MeasuredSplit
from tests.benchmarks.recipes.time_to_split import last_held_out


class StderrProgress:
    """Writes one line each time, with the steps done per second since the line before."""

    def __init__(self) -> None:
        self._line_before: tuple[int, float] | None = None

    def show(self, step: int, num_steps: int, **values: float) -> None:
        numbers = [f"{name} {value:.4g}" for name, value in values.items()]
        time_s = time.monotonic()
        if self._line_before is not None:
            step_before, time_before_s = self._line_before
            rate = (step - step_before) / max(1e-9, time_s - time_before_s)
            numbers.append(f"{rate:.1f} steps/s")
        self._line_before = (step, time_s)
        sys.stderr.write(f"step {step}/{num_steps} {' '.join(numbers)}\n")


def trained_as(spec: ModelSpec) -> str:
    """Name the model whose training makes a model: its own, but for an ensemble."""
    return spec.names.variant_of or spec.name


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One order of one data set, to be trained on with one seed."""

    prepared: Prepared
    inputs: ModelInputs
    """What is queried, and trained on unless models are refitted."""
    seed: int
    device: torch.device
    checkpoints: Path | None = None
    """Folder of the states from which a killed training resumes; None keeps none."""
    shows_progress: bool = False
    chosen_steps: Mapping[str, int] | None = None
    """By model, the steps that validation chose. Where they are given, models are refitted, on
    validation's events too, and nothing is measured while they train."""

    @property
    def recipe(self) -> Recipe:
        return self.prepared.recipe

    @property
    def fitted_on(self) -> ModelInputs:
        """Return the inputs whose train split models are fitted on."""
        events = self.inputs.sequences
        if self.chosen_steps is not None:
            events = replace(events, train_end=events.validation_end)
        return replace(self.inputs, sequences=events)

    def queries(self, split: MeasuredSplit) -> EvaluationQueries:
        """Query a split, each target of a query once."""
        inputs = self.inputs
        if self.prepared.asks_last:
            inputs = replace(inputs, sequences=last_held_out(inputs.sequences, split))
        return EvaluationQueries.of(inputs, split, self.recipe.retrieval)

    def item_counts(self) -> Tensor:
        """Count each item's events that models are fitted on, [N]."""
        return self.fitted_on.item_counts("train")

    def run(self, folder: str) -> TrainingRun:
        """Describe where a training runs; ``folder`` is of its checkpoints."""
        return TrainingRun(
            seed=self.seed,
            device=self.device,
            checkpoint_dir=self.checkpoints and self.checkpoints / folder,
            progress=StderrProgress() if self.shows_progress else SilentProgress(),
        )

    def settings(self, spec: ModelSpec) -> Any:
        """Return the recipe's settings of a model; of the sequence model its fast members'."""
        settings = getattr(self.recipe, trained_as(spec))
        is_part = isinstance(settings, SequenceConfig) and not spec.names.variant_of
        return of_first(settings) if is_part else settings

    def passes(self, spec: ModelSpec) -> TrainingConfig | None:
        """Return the recipe's training of a model; None without one."""
        training: TrainingConfig | None
        training = getattr(self.recipe, f"{trained_as(spec)}_training", None)
        return training

    def start(self, spec: ModelSpec, settings: Any) -> Start:
        """Start afresh and let validation choose, or refit for the passes that it chose."""
        run, training = self.run(trained_as(spec)), self.passes(spec)
        if training is None:
            chooses = spec.chooses and self.chosen_steps is None
            return Start(run, self.queries("validation") if chooses else None)
        if self.chosen_steps is None:
            queries = self.queries("validation").sample(training.validation_users, self.seed)
            return Start(run, queries, training)
        assert spec.num_examples is not None
        num_examples = spec.num_examples(settings, self.inputs.sequences, "train")
        steps = self.chosen_steps[trained_as(spec)]
        return Start(run, Refit(best_step=steps, num_examples=num_examples), training)

    def chosen_settings(self, spec: ModelSpec) -> Any:
        """Return a model's settings; a refit takes those that validation chooses."""
        settings = self.settings(spec)
        if not spec.chooses or self.chosen_steps is None:
            return settings
        before = replace(self, chosen_steps=None)
        start = before.start(spec, settings)
        fitted = spec.fit(settings, Data(inputs=before.fitted_on), "train", start)
        return settings if fitted is None else replace(settings, **fitted.model.settings)


def fit_source(experiment: Experiment, name: str) -> FittedSource:
    """Fit a model of the catalogue and rank every item by it.

    Raises:
        ValueError: The events give the model nothing to rank by.
    """
    spec, data = SPECS[name], Data(inputs=experiment.fitted_on)
    settings = experiment.chosen_settings(spec)
    start = experiment.start(spec, settings)
    fitted = spec.fit(settings, data, "train", start)
    if fitted is None:
        raise ValueError(f"{name} has nothing to rank by here; leave it out of the models")
    model = fitted.model.to(experiment.device)
    chosen = model.settings if spec.chooses else None
    if not isinstance(model, nn.Module):
        return FittedSource(spec.source(model, data, sys.maxsize), settings=chosen)
    source = spec.source(model.eval(), data, sys.maxsize)
    return FittedSource(source, fitted.result, model, fitted.num_examples)
