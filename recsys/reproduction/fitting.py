"""Fit each model of a recipe on what precedes the held-out events, and make it a source.

Axes: B queries of a batch, N item rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from recsys.data.dataset import Sequences, Split, concatenated_ranges
from recsys.data.held_out import HeldOut
from recsys.data.order import BatchOrder
from recsys.data.windows import training_windows
from recsys.evaluation.ranking import distinct_targets
from recsys.models.content_similarity import ContentSimilarity
from recsys.models.generative.model import GenerativeModel
from recsys.models.item_to_item import ItemToItem, Neighbours
from recsys.models.popularity import Popularity
from recsys.models.sequence.config import SequenceConfig
from recsys.models.sequence.members import of_first
from recsys.models.sequence.model import SequenceModel
from recsys.models.two_tower import TwoTower
from recsys.reproduction.generation import GeneratedSource, codes_of, generative_inputs
from recsys.reproduction.prepared import Prepared
from recsys.reproduction.ranking import (
    Question,
    ScoredSource,
    Source,
    metrics_of,
    rank_all,
)
from recsys.reproduction.recipe import Recipe
from recsys.semantic_ids.behaviour import behaviour_ids
from recsys.semantic_ids.codes import ItemCodes
from recsys.semantic_ids.kmeans import KMeansConfig
from recsys.semantic_ids.rq_kmeans import ResidualKMeansConfig
from recsys.training.code_distillation import CodeTeacher, with_dropped_events
from recsys.training.loop import TrainResult, train
from recsys.training.members import Trained, member_seed, train_members
from recsys.training.optim import adamw
from recsys.training.passes import TrainingConfig
from recsys.training.progress import Progress, StderrProgress

TEACHER = "sequence_model"


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One order of one data set, to be trained on with one seed."""

    prepared: Prepared
    sequences: Sequences
    """What is asked about, and trained on where ``training`` is None."""
    seed: int
    device: torch.device
    checkpoints: Path | None = None
    """Folder of the states from which a killed training goes on; None keeps none."""
    eligible: Tensor | None = None
    """Items that validation may list, [N] bool; None for all."""
    shows_progress: bool = False
    training: Sequences | None = None
    """The same events with other ends of train, such as those of some users alone."""
    keeps_ids: bool = False
    """Whether semantic IDs stay as prepared, whatever the recipe says, since others follow on
    them."""
    chosen_steps: Mapping[str, int] | None = None
    """By model, the steps that validation chose. Where they are given, models are fitted again, on
    validation's events too, and nothing is measured while they train."""

    @property
    def trained_on(self) -> Sequences:
        if self.training is not None:
            return self.training
        if self.chosen_steps is None:
            return self.sequences
        return replace(self.sequences, train_end=self.sequences.validation_end)

    @property
    def recipe(self) -> Recipe:
        return self.prepared.recipe

    def question(self, split: Split, num_users: int | None = None) -> Question:
        """Ask a split, or so many of its users drawn by the seed."""
        held_out = HeldOut.of(self.sequences, split)
        held_out = replace(held_out, targets=distinct_targets(held_out.targets))
        if num_users is not None:
            held_out = held_out.sample(num_users, self.seed)
        return Question(
            sequences=self.sequences,
            held_out=held_out,
            user_features=self.prepared.user_features,
            num_item_rows=self.prepared.num_item_rows,
            max_history=self.recipe.max_history,
            eligible=self.eligible,
            exclude_history=self.recipe.exclude_history,
        )

    def item_counts(self) -> Tensor:
        """Count each item's events in train, [N]."""
        sequences = self.trained_on
        return sequences.item_counts(sequences.train_end, self.prepared.num_item_rows)


class Fitted(NamedTuple):
    """A source, and how its training went where it had one."""

    source: Source
    training: TrainResult | None = None
    model: nn.Module | None = None


class QuietProgress:
    """Says nothing, where several trainings share a terminal."""

    def show(self, step: int, num_steps: int, **values: float) -> None:
        pass


def fit(
    experiment: Experiment,
    name: str,
    model: nn.Module,
    source: Source,
    loss_at: Callable[[int], Tensor],
    training: TrainingConfig,
    num_examples: Callable[[Sequences], int],
    folder: str | None = None,
) -> TrainResult:
    """Train to the best weights on validation, or for the passes that it chose before.

    Args:
        folder: Of its checkpoints, if not called as the model is.
    """
    question = experiment.question("validation", training.validation_users)
    checkpoints, chosen = experiment.checkpoints, experiment.chosen_steps
    examples = num_examples(experiment.trained_on)

    def evaluate(_: nn.Module) -> dict[str, float]:
        found = rank_all(source, question, 10, experiment.device)
        return metrics_of(found.ranks, question.held_out.targets)

    config = training.for_examples(examples)
    if chosen is not None:
        config = training.again(chosen[name], (num_examples(experiment.sequences), examples))
    progress: Progress = StderrProgress() if experiment.shows_progress else QuietProgress()
    return train(
        model,
        loss_at,
        adamw(model, training.optimizer),
        config,
        evaluate=evaluate if chosen is None else None,
        progress=progress,
        checkpoint_dir=None if checkpoints is None else checkpoints / (folder or name),
    )


def num_windows(max_length: int) -> Callable[[Sequences], int]:
    """Count training windows of so many events."""
    return lambda sequences: len(training_windows(sequences, "train", max_length))


def fit_popularity(experiment: Experiment) -> Fitted:
    """Count what everyone took."""
    sequences = experiment.trained_on
    visible = concatenated_ranges(np.asarray(sequences.offsets[:-1]), sequences.train_end)
    times = None if sequences.times is None else np.asarray(sequences.times[visible])
    model = Popularity.fit(
        np.asarray(sequences.item_rows[visible]),
        times,
        experiment.prepared.num_item_rows,
        experiment.recipe.popularity,
    )
    moved = Popularity(model.config, model.item_scores.to(experiment.device))
    return Fitted(ScoredSource(moved.score))


def fit_item_to_item(experiment: Experiment) -> Fitted:
    """Count what appears near what."""
    sequences = experiment.trained_on
    model = ItemToItem.fit(
        np.asarray(sequences.item_rows),
        np.asarray(sequences.offsets[:-1]),
        np.asarray(sequences.train_end),
        experiment.prepared.num_item_rows,
        experiment.recipe.item_to_item,
    )
    neighbours = Neighbours(*(part.to(experiment.device) for part in model.neighbours))
    return Fitted(ScoredSource(ItemToItem(model.config, neighbours).score))


def fit_content(experiment: Experiment) -> Fitted:
    """Compare content; nothing is fitted."""
    content = experiment.prepared.catalogue.content.to(experiment.device)
    return Fitted(ScoredSource(ContentSimilarity(experiment.recipe.content, content).score))


def fit_two_tower(experiment: Experiment) -> Fitted:
    """Train on single labels."""
    prepared, recipe, sequences = experiment.prepared, experiment.recipe, experiment.trained_on
    training, max_history = recipe.two_tower_training, recipe.two_tower.max_history
    positions = sequences.label_positions("train")
    torch.manual_seed(experiment.seed)
    model = TwoTower(
        recipe.two_tower, prepared.sizes(), prepared.catalogue, experiment.item_counts()
    ).to(experiment.device)
    order = BatchOrder(len(positions), training.batch_size, experiment.seed)

    def loss_at(step: int) -> Tensor:
        chosen = positions[order.indices(step)]
        queries = sequences.queries(
            chosen, max_history=max_history, user_features=prepared.user_features
        )
        labels = sequences.labels(chosen)
        return model.loss(queries.to(experiment.device), labels.to(experiment.device))

    source = ScoredSource(model.score)

    def num_labels(among: Sequences) -> int:
        return len(among.label_positions("train"))

    result = fit(experiment, "two_tower", model, source, loss_at, training, num_labels)
    return Fitted(source, result, model)


def fit_sequence(experiment: Experiment) -> Fitted:
    """Train on every position of windows; of members trained apart those of profile fast alone."""
    model, result = train_members(
        of_first(experiment.recipe.sequence),
        lambda config, number: trained_one(experiment, config, number),
    )
    if experiment.checkpoints is not None:
        # After the checkpoints' folder is known to be there: fit has made it.
        model.eval().save(experiment.checkpoints / TEACHER)
    return Fitted(ScoredSource(model.score), result, model)


def fit_ensemble(experiment: Experiment) -> Fitted:
    """Train the members that are not trained yet, and put all side by side."""
    model, result = train_members(
        experiment.recipe.sequence, lambda config, number: trained_one(experiment, config, number)
    )
    return Fitted(ScoredSource(model.score), result, model)


def trained_one(experiment: Experiment, config: SequenceConfig, number: int | None) -> Trained:
    """Train a sequence model, or a member of one; one that was finished is read."""
    prepared, sequences = experiment.prepared, experiment.trained_on
    training = experiment.recipe.sequence_training
    windows = training_windows(sequences, "train", config.max_length)
    seed = member_seed(experiment.seed, number or 0)
    torch.manual_seed(seed)
    model = SequenceModel(
        config, prepared.sizes(), prepared.catalogue, experiment.item_counts()
    ).to(experiment.device)
    order = BatchOrder(len(windows), training.batch_size, seed)

    def loss_at(step: int) -> Tensor:
        batch = windows.batch(sequences, order.indices(step))
        return model.loss(batch.to(experiment.device))

    result = fit(
        experiment,
        "sequence",
        model,
        ScoredSource(model.score),
        loss_at,
        training,
        num_windows(config.max_length),
        folder="sequence" if number is None else f"sequence-{number}",
    )
    return model, result


def sequence_model(experiment: Experiment) -> SequenceModel:
    """Give the recipe's sequence model, fitted here if it was not."""
    saved = None if experiment.checkpoints is None else experiment.checkpoints / TEACHER
    if saved is not None and saved.exists():
        model = SequenceModel.load(saved, experiment.prepared.catalogue)
        return model.to(experiment.device).eval()
    return cast("SequenceModel", fit_sequence(experiment).model).eval()


def generated_ids(experiment: Experiment, behaviour: Tensor | None) -> ItemCodes:
    """Give the semantic IDs that the recipe generates.

    Args:
        experiment: Whose recipe.
        behaviour: Item vectors of its sequence model, [N, D], where IDs are made of them.

    Raises:
        ValueError: The arrays have none.
    """
    prepared, codes = experiment.prepared, codes_of(experiment.prepared)
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


class Taught(NamedTuple):
    """A generative model to be trained, and what it learns from."""

    model: GenerativeModel
    codes: ItemCodes
    teacher: CodeTeacher | None


def taught_model(experiment: Experiment) -> Taught:
    """Build the recipe's generative model, and its teacher where it has one."""
    prepared, recipe = experiment.prepared, experiment.recipe
    reads_vectors = recipe.generative.items == "codes_vectors"
    teaches = recipe.generative_teaching.share > 0
    by_behaviour = recipe.generative_ids == "sequence" and not experiment.keeps_ids
    sequence = sequence_model(experiment) if reads_vectors or teaches or by_behaviour else None
    behaviour = inputs = None
    if sequence is not None:
        behaviour = sequence.all_item_vectors() if by_behaviour else None
        inputs = sequence.all_item_inputs().cpu() if reads_vectors else None
    codes = generated_ids(experiment, behaviour)
    torch.manual_seed(experiment.seed)
    model = GenerativeModel(
        recipe.generative,
        generative_inputs(prepared, codes, 0 if inputs is None else inputs.shape[1]),
        codes.codes,
        prepared.catalogue,
        experiment.item_counts(),
        inputs,
    ).to(experiment.device)
    teacher = None
    if sequence is not None and teaches:
        teacher = CodeTeacher(sequence, codes.codes, codes.level_sizes, recipe.generative_teaching)
    return Taught(model, codes, teacher)


def fit_generative(experiment: Experiment) -> Fitted:
    """Train on every event's semantic ID; what the beam finds on validation picks the weights."""
    recipe, sequences = experiment.recipe, experiment.trained_on
    training, teaching = recipe.generative_training, recipe.generative_teaching
    windows = training_windows(sequences, "train", recipe.generative.max_length)
    model, codes, teacher = taught_model(experiment)
    order = BatchOrder(len(windows), training.batch_size, experiment.seed)

    def loss_at(step: int) -> Tensor:
        batch = windows.batch(sequences, order.indices(step))
        if teacher is not None:
            batch = with_dropped_events(batch, teaching.dropped_events)
        return model.loss(batch.to(experiment.device), teacher)

    source = GeneratedSource(model, codes, recipe.beam_width)
    counted = num_windows(recipe.generative.max_length)
    result = fit(experiment, "generative", model, source, loss_at, training, counted)
    return Fitted(source, result, model)


FITTERS: Mapping[str, Callable[[Experiment], Fitted]] = {
    "popularity": fit_popularity,
    "item_to_item": fit_item_to_item,
    "content": fit_content,
    "two_tower": fit_two_tower,
    "sequence": fit_sequence,
    "ensemble": fit_ensemble,
    "generative": fit_generative,
}
