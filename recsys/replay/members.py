"""Fit the models of a step on what was known before it.

The warm-up chooses: passes of trainings, settings of models that have several. Later steps take
what it chose. An incremental step continues trained weights; what only counts is counted anew.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn

from recsys.data.dataset import FitSplit, Sequences
from recsys.evaluation.ranking import RankingConfig
from recsys.fitting.baselines import fit_popularity
from recsys.fitting.continued import NewEvents
from recsys.fitting.inputs import ModelInputs
from recsys.fitting.item_weights import fit_ease, fit_item_knn
from recsys.fitting.queries import EvaluationQueries, measure
from recsys.fitting.sequence import fit_sequence, num_windows
from recsys.fitting.training import Refit, StopBy, TrainingRun
from recsys.fitting.two_tower import fit_two_tower, num_labels
from recsys.models.popularity import Popularity, PopularityConfig
from recsys.models.sequence.members import of_first
from recsys.models.sequence.model import SequenceModel
from recsys.models.two_tower import TwoTower
from recsys.replay.queries import Timeline
from recsys.replay.steps import ReplayConfig
from recsys.reproduction.experiment import FITTERS, Experiment
from recsys.reproduction.recipe import Recipe
from recsys.retrieval.sources import ScoredSource, Source
from recsys.training.passes import TrainingConfig
from recsys.training.progress import SilentProgress, StderrProgress

TRAINED = ("two_tower", "sequence")
CHOOSING = ("ease", "item_knn")
REPLAYED = ("popularity", "item_to_item", "ease", "item_knn", "content", *TRAINED)
"""Models that can be replayed, those of profile ``fast``."""
CHOICE_QUERIES = 2_000
HALF_LIVES = (7.0, 30.0, 90.0)
"""Days; half-lives of popularity that are tried on the warm-up beside the configured one."""
FIT: FitSplit = "train"


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What the warm-up decided, taken by all later steps."""

    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By model that validation chooses settings of."""
    best_steps: Mapping[str, int] = field(default_factory=dict)
    """By trained model."""
    num_examples: Mapping[str, int] = field(default_factory=dict)
    """Of the training that chose the steps, by trained model."""
    schedule_steps: Mapping[str, int | None] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)


class Member(NamedTuple):
    """A fitted model as a source."""

    name: str
    source: Source
    fit_seconds: float
    model: nn.Module | None = None
    """Of trained models, whose weights a later step continues."""


class Weights(NamedTuple):
    """Trained weights that a step continues, and what is new since."""

    by_model: Mapping[str, Mapping[str, Tensor]]
    new: NewEvents


@dataclass(frozen=True, kw_only=True)
class StepFits:
    """The models of one step of a replay."""

    experiment: Experiment
    """With the inputs whose ``train`` is what was known before the step."""
    models: tuple[str, ...]
    config: ReplayConfig
    choices: Choices | None = None
    """None makes them: validation of the inputs is the warm-up."""
    weights: Weights | None = None
    """What is continued; None trains from scratch."""
    frozen: Path | None = None
    """Folder of trained models that are taken as they are."""

    @property
    def inputs(self) -> ModelInputs:
        return self.experiment.inputs

    @property
    def recipe(self) -> Recipe:
        return self.experiment.recipe

    def fitted(self, made: dict[str, Any]) -> Iterator[Member]:
        """Fit the models one by one; ``made`` collects what the warm-up chooses."""
        for name in self.models:
            begin = time.perf_counter()
            if name in CHOOSING:
                source, model = self._linear(name, made), None
            elif name == "popularity":
                source, model = self._popularity(made), None
            elif name in TRAINED:
                source, model = self._trained(name, made)
            else:
                source, model = FITTERS[name](self.experiment).source, None
            yield Member(name, source, time.perf_counter() - begin, model)

    def _judge(self) -> EvaluationQueries:
        return self.experiment.queries("validation").sample(CHOICE_QUERIES, self.experiment.seed)

    def _popularity(self, made: dict[str, Any]) -> Source:
        config = self.recipe.popularity
        if self.choices is not None:
            config = replace(config, **self.choices.settings.get("popularity", {}))
        elif config.half_life_days is not None and len((judge := self._judge()).held_out.positions):
            lives = dict.fromkeys((config.half_life_days, *HALF_LIVES))

            def quality(half_life: float) -> float:
                one = replace(config, half_life_days=half_life)
                measured = measure(
                    self._popular(one), judge, RankingConfig(ks=(10,)), self.experiment.device
                )
                return measured["ndcg@10"]

            config = replace(config, half_life_days=max(lives, key=quality))
            chosen = {"half_life_days": config.half_life_days}
            made.setdefault("settings", {})["popularity"] = chosen
        return self._popular(config)

    def _popular(self, config: PopularityConfig) -> ScoredSource:
        model = fit_popularity(self.inputs, config, FIT)
        scores = model.item_scores.to(self.experiment.device)
        return ScoredSource(Popularity(config, scores).score, needs_history=False)

    def _linear(self, name: str, made: dict[str, Any]) -> Source:
        fit: Any = fit_ease if name == "ease" else fit_item_knn
        config, judge = getattr(self.recipe, name), None
        if self.choices is None:
            judge = self._judge()
        else:
            config = type(config)(**self.choices.settings[name])
        fitted = fit(self.inputs, config, FIT, judge)
        if self.choices is None:
            made.setdefault("settings", {})[name] = fitted.settings
        return ScoredSource(fitted.to(self.experiment.device).score)

    def _loaded(self, name: str, folder: Path) -> tuple[Source, nn.Module]:
        kind: Any = TwoTower if name == "two_tower" else SequenceModel
        model = kind.load(folder / name, self.inputs.catalogue).to(self.experiment.device).eval()
        return ScoredSource(model.score), model

    def _trained(self, name: str, made: dict[str, Any]) -> tuple[Source, nn.Module]:
        if self.frozen is not None:
            return self._loaded(name, self.frozen)
        recipe = self.recipe
        training = recipe.two_tower_training if name == "two_tower" else recipe.sequence_training
        new = None
        if self.weights is not None:
            new = self.weights.new
            training = replace(
                training,
                refit_epochs=self.config.new_passes,
                refit_rate=self.config.new_rate,
                max_seconds=None,
            )
        stop_by = self._stop_by(name, training)
        run = self._run(name)
        fitted: Any
        if name == "two_tower":
            fitted = fit_two_tower(self.inputs, recipe.two_tower, training, run, stop_by, new=new)
        else:
            config = of_first(recipe.sequence)
            fitted = fit_sequence(self.inputs, config, training, run, stop_by, new=new)
        if self.choices is None:
            made.setdefault("best_steps", {})[name] = fitted.result.best_step
            made.setdefault("num_examples", {})[name] = fitted.num_examples
            made.setdefault("schedule_steps", {})[name] = fitted.result.schedule_steps
        model = fitted.model.eval()
        return ScoredSource(model.score), model

    def _stop_by(self, name: str, training: TrainingConfig) -> StopBy:
        if self.choices is None:
            queries: EvaluationQueries = self.experiment.queries("validation")
            return queries.sample(training.validation_users, self.experiment.seed)
        return Refit(
            best_step=self.choices.best_steps[name],
            num_examples=self.choices.num_examples[name],
            schedule_steps=self.choices.schedule_steps[name],
            weights=None if self.weights is None else self.weights.by_model[name],
        )

    def _run(self, name: str) -> TrainingRun:
        experiment = self.experiment
        return TrainingRun(
            seed=experiment.seed,
            device=experiment.device,
            checkpoint_dir=experiment.checkpoints and experiment.checkpoints / name,
            progress=StderrProgress() if experiment.shows_progress else SilentProgress(),
        )


def inputs_before(inputs: ModelInputs, timeline: Timeline, known: int, until: int) -> ModelInputs:
    """Cut the events at two moments: ``train`` is before the first, validation before the second.

    Nothing that comes after the second is left out of the arrays; no fit reads it.
    """
    events: Sequences = inputs.sequences
    cut = replace(events, train_end=timeline.before(known), validation_end=timeline.before(until))
    return replace(inputs, sequences=cut)


def new_events(
    timeline: Timeline, since: int, until: int, config: ReplayConfig, seed: int
) -> NewEvents:
    """Say what came since a moment, for models that know everything before ``until``."""
    starts = np.minimum(timeline.before(since), timeline.before(until))
    return NewEvents(starts=starts, replay_share=config.replay_share, seed=seed)


def can_train(name: str, inputs: ModelInputs, recipe: Recipe) -> bool:
    """Say whether a trained model has an example."""
    if name == "two_tower":
        return num_labels(inputs.sequences, FIT) > 0
    return num_windows(inputs.sequences, FIT, recipe.sequence.max_length) > 0
