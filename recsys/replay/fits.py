"""Fit and query the models of one policy, step by step: the part of a replay that takes time.

Axes: Q queries, k list length.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from recsys.evaluation.config import ReplayConfig
from recsys.fitting.queries import EvaluationQueries, ModelInputs, NewEvents, measure
from recsys.fitting.spec import ModelSpec, Refit, Start, device_named
from recsys.models.configs import PopularityConfig
from recsys.models.item_tower import Over
from recsys.models.names import MODELS, POPULARITY
from recsys.replay.experiment import (
    FittedSource,
    PreparedData,
    RecipeFitter,
    is_replayed,
    lists_of_source,
)
from recsys.replay.folder import (
    FIRST,
    WARM_UP,
    ReplayFolder,
    read_json,
    save_lists,
    save_source,
    write_json,
)
from recsys.replay.steps import Step, StepQueries, Timeline, cut_steps
from recsys.retrieval.blend.demand import demand_before
from recsys.retrieval.sources import Source

Say = Callable[[str], None]
TRAINED = tuple(one.name for one in MODELS if one.training and is_replayed(one))
CHOICE_QUERIES = 2_000
HALF_LIVES = (7.0, 30.0, 90.0)
"""Days; half-lives of popularity that are tried on the warm-up besides the configured one."""


@dataclass(frozen=True, kw_only=True)
class WarmUpChoices:
    """Choices of the warm-up for all later steps."""

    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By model that validation chooses settings of."""
    best_steps: Mapping[str, int] = field(default_factory=dict)
    """By trained model."""
    num_examples: Mapping[str, int] = field(default_factory=dict)
    """Examples of the training that chose the steps, by trained model."""
    schedule_steps: Mapping[str, int | None] = field(default_factory=dict)


class Member(NamedTuple):
    """A fitted model as a source."""

    name: str
    source: Source
    fit_seconds: float
    model: nn.Module | None = None
    """The trained model, whose weights a later step continues."""


class Weights(NamedTuple):
    """Trained weights that a step continues, and the new events since."""

    by_model: Mapping[str, Mapping[str, Tensor]]
    new: NewEvents


@dataclass(frozen=True, kw_only=True)
class StepFits:
    """The models of one step of a replay."""

    experiment: RecipeFitter
    """With the inputs whose ``train`` ends before the step."""
    models: tuple[str, ...]
    config: ReplayConfig
    choices: WarmUpChoices | None = None
    """None makes them: validation of the inputs is the warm-up."""
    weights: Weights | None = None
    """Weights that are continued; None trains from scratch."""
    frozen: Path | None = None
    """Folder of trained models that are taken as they are."""

    def fitted(self, made: dict[str, Any]) -> Iterator[Member]:
        """Fit the models one by one; ``made`` collects what the warm-up chooses."""
        for name in self.models:
            begin, spec = time.perf_counter(), self.experiment.recipe.spec(name)
            if self.frozen is not None and name in TRAINED:
                over = Over(self.experiment.inputs.catalogue)
                fitted = self.experiment.source(spec, spec.load(self.frozen / name, over))
            else:
                fitted = self._fit(spec)
            if self.choices is None:
                note_choices(made, name, fitted)
            yield Member(name, fitted.source, time.perf_counter() - begin, fitted.model)

    def _fit(self, spec: ModelSpec) -> FittedSource:
        """Fit as the warm-up, as it chose, or from the weights of an earlier step."""
        experiment, recipe = self.experiment, self.experiment.recipe
        settings, training = recipe.models[spec.name], recipe.trainings.get(spec.name)
        start = experiment.start(spec)
        if self.choices is None:
            if spec.name == POPULARITY.name:
                return self._popularity(spec, settings)
            if spec.chooses:
                start = start._replace(stop_by=self._judge())
            return experiment.fit(spec, settings, start)
        if training is None:
            settings = replace(settings, **self.choices.settings.get(spec.name, {}))
            return experiment.fit(spec, settings, Start(start.run))
        refit = Refit(
            best_step=self.choices.best_steps[spec.name],
            num_examples=self.choices.num_examples[spec.name],
            schedule_steps=self.choices.schedule_steps[spec.name],
            weights=None if self.weights is None else self.weights.by_model[spec.name],
        )
        start = Start(start.run, refit, training)
        if self.weights is not None:
            longer = training.continued(self.config.new_passes, self.config.new_rate)
            start = start._replace(training=longer, new=self.weights.new)
        return experiment.fit(spec, settings, start)

    def _judge(self) -> EvaluationQueries:
        return self.experiment.queries("validation").sample(CHOICE_QUERIES, self.experiment.seed)

    def _popularity(self, spec: ModelSpec, config: PopularityConfig) -> FittedSource:
        """Fit popularity with the half-life that is best on the warm-up."""
        judge = self._judge()
        if config.half_life_days is None or not len(judge.held_out.positions):
            return self.experiment.fit(spec, config)
        lives = dict.fromkeys((config.half_life_days, *HALF_LIVES))
        found = {
            life: self.experiment.fit(spec, replace(config, half_life_days=life)) for life in lives
        }

        def quality(half_life: float) -> float:
            source = found[half_life].source
            return measure(source, judge, self.experiment.device)["ndcg@10"]

        best = max(lives, key=quality)
        return found[best]._replace(settings={"half_life_days": best})


def note_choices(made: dict[str, Any], name: str, fitted: FittedSource) -> None:
    """Note what the warm-up chose for a model."""
    chosen: dict[str, Any] = {}
    if fitted.settings is not None:
        chosen["settings"] = fitted.settings
    if fitted.training is not None:
        chosen["best_steps"] = fitted.training.best_step
        chosen["num_examples"] = fitted.num_examples
        chosen["schedule_steps"] = fitted.training.schedule_steps
    for key, value in chosen.items():
        made.setdefault(key, {})[name] = value


@dataclass(frozen=True, kw_only=True)
class Replay:
    """A log to be replayed."""

    prepared: PreparedData
    config: ReplayConfig
    models: tuple[str, ...]
    seed: int
    device: str
    folder: ReplayFolder

    @property
    def inputs(self) -> ModelInputs:
        return self.prepared.inputs

    @cached_property
    def timeline(self) -> Timeline:
        return Timeline(self.inputs.sequences, self.prepared.num_item_rows)

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        return cut_steps(self.inputs.sequences.times, self.config)

    def queries(self, step: Step) -> StepQueries:
        return StepQueries.of(
            self.timeline,
            step,
            exclude_history=self.prepared.recipe.retrieval.exclude_history,
            max_queries=self.config.max_queries,
            seed=self.seed,
        )

    def evaluation_queries(self, queries: StepQueries) -> EvaluationQueries:
        """Write a step's queries as sources are queried."""
        return EvaluationQueries(
            inputs=self.inputs,
            held_out=queries.held_out(self.inputs.sequences),
            settings=self.prepared.recipe.retrieval,
            eligible=torch.from_numpy(queries.candidates),
        )

    def item_counts(self, moment: int) -> Tensor:
        """Count each item's events before a moment, [N]."""
        ends = self.timeline.before(moment)
        return self.inputs.sequences.item_counts(ends, self.prepared.num_item_rows)

    def demand(self, moment: int) -> Tensor | None:
        """Measure each item's demand by events before a moment, [N, D]; None without times."""
        ends = self.timeline.before(moment)
        return demand_before(self.inputs.sequences, ends, self.prepared.num_item_rows)

    def fits(self, step: Step, policy: str, number: int) -> StepFits:
        until = step.end if policy == WARM_UP else step.begin
        # Nothing that comes later is left out of the arrays; no fit reads it.
        train, validation = (self.timeline.before(moment) for moment in (step.begin, until))
        events = replace(self.inputs.sequences, train_end=train, validation_end=validation)
        known = replace(self.inputs, sequences=events)
        experiment = RecipeFitter(
            recipe=self.prepared.recipe,
            inputs=known,
            seed=self.seed,
            device=device_named(self.device),
            checkpoints=self.folder.path / "checkpoints" / f"{policy}-{number}",
        )
        before = self.config.continued_step(number) if policy == "incremental" else None
        choices = None
        if policy != WARM_UP:
            choices = WarmUpChoices(**read_json(self.folder.path / "choices.json"))
        return StepFits(
            experiment=experiment,
            models=self._fittable(experiment, choices),
            config=self.config,
            choices=choices,
            weights=None if before is None else self._continued(before, number),
            frozen=self.folder.models(1, FIRST) if policy == "never" else None,
        )

    def _fittable(self, experiment: RecipeFitter, choices: WarmUpChoices | None) -> tuple[str, ...]:
        """Leave out trained models that the warm-up had no example for."""
        if choices is None:
            return tuple(
                name
                for name in self.models
                if name not in TRAINED or experiment.can_train(experiment.recipe.spec(name))
            )
        known = choices.best_steps
        return tuple(name for name in self.models if name not in TRAINED or name in known)

    def _continued(self, before: int, number: int) -> Weights:
        """Read the weights of an earlier step, and find the new events since."""
        folder = self.folder.models(before, FIRST if before == 1 else "incremental")
        files = {name: folder / name / f"{name}.safetensors" for name in TRAINED}
        by_model = {name: load_file(path) for name, path in files.items() if path.exists()}
        since, until = (self.timeline.before(self.steps[one].begin) for one in (before, number))
        new = NewEvents(starts=np.minimum(since, until), seed=self.seed + number)
        return Weights(by_model, new)


def run_policy(replay: Replay, policy: str, say: Say) -> None:
    """Fit and query the steps of a policy, after the first two, that are not done."""
    torch.manual_seed(replay.seed)
    members: list[Member] = []
    for number in range(2, len(replay.steps)):
        if policy == "full":
            # No step of it follows from another.
            torch.manual_seed(replay.seed)
            members = []
        if not replay.folder.is_done(number, policy):
            members = run_step(replay, policy, number, members)
            seconds = read_json(replay.folder.done(number, policy))["seconds"]
            say(f"step {number} of {len(replay.steps) - 1}, {policy}: {seconds:,.1f} s")


def run_step(
    replay: Replay, policy: str, number: int, before: Sequence[Member] = ()
) -> list[Member]:
    """Bring the models of a step up to date, and let them answer it.

    Args:
        before: Models of the step before; policy ``never`` takes them as they are.

    Returns:
        The step's models.
    """
    begin, step, folder = time.perf_counter(), replay.steps[number], replay.folder
    queries = replay.queries(step)
    evaluation = replay.evaluation_queries(queries)
    known_at = replay.steps[1] if policy == "never" else step
    made: dict[str, Any] = {}
    members: list[Member] = []
    if policy == "never" and before:
        fitted: Iterable[Member] = before
    else:
        fitted = replay.fits(known_at, policy, number).fitted(made)
    for member in fitted:
        begin_ranking = time.perf_counter()
        lists = lists_of_source(member.source, evaluation, device_named(replay.device))
        ranking = time.perf_counter() - begin_ranking
        fitting = 0.0 if policy == "never" else member.fit_seconds
        save_source(folder.source(number, policy, member.name), lists)
        save_lists(folder.lists(number, policy, member.name), lists.item_rows, fitting, ranking)
        if member.model is not None and policy in (FIRST, "incremental"):
            member.model.save(folder.models(number, policy) / member.name)  # type: ignore[operator]
        members.append(member)
    if policy == WARM_UP:
        write_json(folder.path / "choices.json", asdict(WarmUpChoices(**made)))
    document = {
        "models": [member.name for member in members],
        "num_queries": len(queries),
        "known_at": known_at.begin,
        "seconds": time.perf_counter() - begin,
    }
    write_json(folder.done(number, policy), document)
    return members
