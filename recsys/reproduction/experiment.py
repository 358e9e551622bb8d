"""Fit each model of a recipe on the events before those held out, and make it a source.

Axes: N item rows, D width of item vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from recsys.data.dataset import Sequences, Split
from recsys.fitting.baselines import fit_item_to_item, fit_popularity
from recsys.fitting.generative import SequenceTeacher, fit_generative
from recsys.fitting.inputs import ModelInputs
from recsys.fitting.item_weights import fit_ease, fit_item_knn
from recsys.fitting.queries import EvaluationQueries
from recsys.fitting.sequence import fit_sequence, num_windows
from recsys.fitting.training import Fitted, Refit, StopBy, TrainingRun
from recsys.fitting.two_tower import fit_two_tower, num_labels
from recsys.models.content_similarity import ContentSimilarity
from recsys.models.popularity import Popularity
from recsys.models.sequence.config import SequenceConfig
from recsys.models.sequence.members import of_first
from recsys.models.sequence.model import SequenceModel
from recsys.reproduction.prepared import Prepared
from recsys.reproduction.recipe import Recipe
from recsys.retrieval.sources import ScoredSource, Source, generated_source
from recsys.semantic_ids.behaviour import behaviour_ids
from recsys.semantic_ids.codes import ItemCodes
from recsys.semantic_ids.kmeans import KMeansConfig
from recsys.semantic_ids.rq_kmeans import ResidualKMeansConfig
from recsys.training.loop import TrainResult
from recsys.training.passes import TrainingConfig
from recsys.training.progress import SilentProgress, StderrProgress

TEACHER = "sequence_model"


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One order of one data set, to be trained on with one seed."""

    prepared: Prepared
    inputs: ModelInputs
    """What is queried, and trained on unless ``training`` is given or models are refitted."""
    seed: int
    device: torch.device
    checkpoints: Path | None = None
    """Folder of the states from which a killed training resumes; None keeps none."""
    shows_progress: bool = False
    training: Sequences | None = None
    """The same events with other ends of train, such as those of some users alone."""
    keeps_ids: bool = False
    """Whether semantic IDs stay as prepared, whatever the recipe says, since others are appended to
    them."""
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
        if self.training is not None:
            events = self.training
        elif self.chosen_steps is not None:
            events = replace(events, train_end=events.validation_end)
        return replace(self.inputs, sequences=events)

    def queries(self, split: Split) -> EvaluationQueries:
        """Query a split, each target of a query once."""
        return EvaluationQueries.of(self.inputs, split, self.recipe.retrieval)

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

    def stop_by(
        self, model: str, training: TrainingConfig, num_examples: Callable[[Sequences], int]
    ) -> StopBy:
        """Stop a model's training by validation, or after the passes that it chose before."""
        if self.chosen_steps is None:
            return self.queries("validation").sample(training.validation_users, self.seed)
        return Refit(
            best_step=self.chosen_steps[model],
            num_examples=num_examples(self.inputs.sequences),
        )


class FittedSource(NamedTuple):
    """A source, with its model and how its training went where it had one."""

    source: Source
    training: TrainResult | None = None
    model: nn.Module | None = None


def popularity_source(experiment: Experiment) -> FittedSource:
    """Count events."""
    model = fit_popularity(experiment.fitted_on, experiment.recipe.popularity, "train")
    moved = Popularity(model.config, model.item_scores.to(experiment.device))
    return FittedSource(ScoredSource(moved.score, needs_history=False))


def item_to_item_source(experiment: Experiment) -> FittedSource:
    """Count co-occurrence."""
    model = fit_item_to_item(experiment.fitted_on, experiment.recipe.item_to_item, "train")
    return FittedSource(ScoredSource(model.to(experiment.device).score))


def linear_source(experiment: Experiment, model: Literal["ease", "item_knn"]) -> FittedSource:
    """Fit EASE or item-kNN; a refit takes the settings that validation chose."""
    fit: Any = fit_ease if model == "ease" else fit_item_knn
    config, judge = getattr(experiment.recipe, model), experiment.queries("validation")
    refits = experiment.chosen_steps is not None
    events, device = experiment.inputs if refits else experiment.fitted_on, experiment.device
    fitted = fit(events, config, "train", judge, device)
    if refits:
        chosen = type(config)(**fitted.settings)
        fitted = fit(experiment.fitted_on, chosen, "train", None, device)
    return FittedSource(ScoredSource(fitted.to(device).score))


def content_source(experiment: Experiment) -> FittedSource:
    """Compare content."""
    content = experiment.inputs.catalogue.content.to(experiment.device)
    return FittedSource(ScoredSource(ContentSimilarity(experiment.recipe.content, content).score))


def two_tower_source(experiment: Experiment) -> FittedSource:
    """Train the two-tower."""
    recipe = experiment.recipe
    training = recipe.two_tower_training
    fitted = fit_two_tower(
        experiment.fitted_on,
        recipe.two_tower,
        training,
        experiment.run("two_tower"),
        experiment.stop_by("two_tower", training, lambda events: num_labels(events, "train")),
    )
    return FittedSource(ScoredSource(fitted.model.score), fitted.result, fitted.model)


def sequence_source(experiment: Experiment) -> FittedSource:
    """Train the sequence model; of members trained apart those of profile fast alone."""
    model, result, _ = fit_members(experiment, of_first(experiment.recipe.sequence))
    if experiment.checkpoints is not None:
        # After the checkpoints' folder is known to be there: the training has made it.
        model.eval().save(experiment.checkpoints / TEACHER)
    return FittedSource(ScoredSource(model.score), result, model)


def ensemble_source(experiment: Experiment) -> FittedSource:
    """Train the members that are not trained yet, and join all of them."""
    model, result, _ = fit_members(experiment, experiment.recipe.sequence)
    return FittedSource(ScoredSource(model.score), result, model)


def fit_members(experiment: Experiment, config: SequenceConfig) -> Fitted[SequenceModel]:
    """Train a sequence model; a member whose checkpoints are finished is read from them."""
    training = experiment.recipe.sequence_training
    return fit_sequence(
        experiment.fitted_on,
        config,
        training,
        experiment.run("sequence"),
        experiment.stop_by(
            "sequence", training, lambda events: num_windows(events, "train", config.max_length)
        ),
    )


def sequence_model(experiment: Experiment) -> SequenceModel:
    """Return the recipe's sequence model, fitted here if it was not."""
    saved = None if experiment.checkpoints is None else experiment.checkpoints / TEACHER
    if saved is not None and saved.exists():
        model = SequenceModel.load(saved, experiment.prepared.catalogue)
        return model.to(experiment.device).eval()
    return fit_members(experiment, of_first(experiment.recipe.sequence)).model.eval()


def generated_ids(experiment: Experiment, behaviour: Tensor | None) -> ItemCodes:
    """Return the semantic IDs that the recipe generates.

    Args:
        experiment: Whose recipe.
        behaviour: Item vectors of its sequence model, [N, D], where IDs are made of them.

    Raises:
        ValueError: The arrays have none.
    """
    prepared, codes = experiment.prepared, experiment.prepared.item_codes()
    if behaviour is None:
        return codes
    # Only items that have an ID as prepared get one.
    known = (codes.codes[:, :1] >= 0).float().to(experiment.device)
    content = prepared.catalogue.content.to(experiment.device) * known
    config = ResidualKMeansConfig(
        level_sizes=codes.level_sizes, kmeans=KMeansConfig(balanced=True), seed=experiment.seed
    )
    ids = behaviour_ids(behaviour, content, config).ids
    return replace(codes, codes=ids.codes, level_sizes=ids.level_sizes)


def generative_source(experiment: Experiment) -> FittedSource:
    """Train the generative model, and the sequence model first where it needs that."""
    recipe = experiment.recipe
    training = recipe.generative_training
    by_behaviour = recipe.generative_ids == "sequence" and not experiment.keeps_ids
    is_taught = recipe.generative.items == "codes_vectors" or recipe.generative_teaching.share > 0
    sequence = sequence_model(experiment) if is_taught or by_behaviour else None
    behaviour = None
    if sequence is not None and by_behaviour:
        behaviour = sequence.all_item_vectors()
    codes = generated_ids(experiment, behaviour)
    teacher = None
    if sequence is not None and is_taught:
        teacher = SequenceTeacher(sequence, recipe.generative_teaching)
    max_length = recipe.generative.max_length
    fitted = fit_generative(
        experiment.fitted_on,
        codes,
        recipe.generative,
        training,
        experiment.run("generative"),
        experiment.stop_by(
            "generative", training, lambda events: num_windows(events, "train", max_length)
        ),
        teacher=teacher,
    )
    source = generated_source(fitted.model, codes, recipe.retrieval.beam_width)
    return FittedSource(source, fitted.result, fitted.model)


FITTERS: Mapping[str, Callable[[Experiment], FittedSource]] = {
    "popularity": popularity_source,
    "item_to_item": item_to_item_source,
    "ease": partial(linear_source, model="ease"),
    "item_knn": partial(linear_source, model="item_knn"),
    "content": content_source,
    "two_tower": two_tower_source,
    "sequence": sequence_source,
    "ensemble": ensemble_source,
    "generative": generative_source,
}
