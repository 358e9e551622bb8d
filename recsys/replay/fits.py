"""Fit and query the models of one policy, step by step: the part of a replay that takes time.

A unit of work is one step of policy ``full``, or all steps of another policy, since each continues
the one before. Units know nothing of each other, so they may run at a time.

Axes: Q queries, k list length.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor

from recsys.data.top_k import TopK
from recsys.fitting.inputs import ModelInputs
from recsys.fitting.queries import EvaluationQueries
from recsys.fitting.training import device_named
from recsys.replay.folder import (
    FIRST,
    WARM_UP,
    ReplayFolder,
    read_json,
    save_lists,
    save_source,
    write_json,
)
from recsys.replay.members import (
    TRAINED,
    Choices,
    Member,
    StepFits,
    Weights,
    can_train,
    inputs_before,
    new_events,
)
from recsys.replay.queries import StepQueries, Timeline
from recsys.replay.steps import ReplayConfig, Step, cut_steps
from recsys.reproduction.experiment import Experiment
from recsys.reproduction.prepared import Prepared
from recsys.retrieval.blend.demand import demand_before
from recsys.retrieval.sources import Source, joined_lists

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Replay:
    """A log to be replayed."""

    prepared: Prepared
    config: ReplayConfig
    models: tuple[str, ...]
    order: str
    seed: int
    device: str
    folder: ReplayFolder

    @cached_property
    def inputs(self) -> ModelInputs:
        return self.prepared.inputs(self.order)

    @cached_property
    def timeline(self) -> Timeline:
        return Timeline(self.inputs.sequences, self.prepared.num_item_rows)

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        return cut_steps(self.inputs.sequences.times, self.config)

    def queries(self, step: Step) -> StepQueries:
        """Collect a step's queries."""
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
        """Set up what answers a step.

        Args:
            step: What was before it is known.
            policy: Of the models.
            number: Of the step that they answer.
        """
        until = step.end if policy == WARM_UP else step.begin
        known = inputs_before(self.inputs, self.timeline, step.begin, until)
        experiment = Experiment(
            prepared=self.prepared,
            inputs=known,
            seed=self.seed,
            device=device_named(self.device),
            checkpoints=self.folder.path / "checkpoints" / f"{policy}-{number}",
        )
        before = self.config.continued_step(number) if policy == "incremental" else None
        choices = None
        if policy != WARM_UP:
            choices = Choices(**read_json(self.folder.path / "choices.json"))
        return StepFits(
            experiment=experiment,
            models=self._fittable(known, choices),
            config=self.config,
            choices=choices,
            weights=None if before is None else self._continued(before, number),
            frozen=self.folder.models(1, FIRST) if policy == "never" else None,
        )

    def _fittable(self, known: ModelInputs, choices: Choices | None) -> tuple[str, ...]:
        """Leave out trained models that the warm-up had no example for."""
        if choices is None:
            recipe = self.prepared.recipe
            out = [name for name in TRAINED if not can_train(name, known, recipe)]
        else:
            out = [name for name in TRAINED if name not in choices.best_steps]
        return tuple(name for name in self.models if name not in out)

    def _continued(self, before: int, number: int) -> Weights:
        """Read the weights of an earlier step, and say what is new since."""
        folder = self.folder.models(before, FIRST if before == 1 else "incremental")
        files = {name: folder / name / f"{name}.safetensors" for name in TRAINED}
        by_model = {name: load_file(path) for name, path in files.items() if path.exists()}
        since, until = self.steps[before].begin, self.steps[number].begin
        new = new_events(self.timeline, since, until, self.config, self.seed + number)
        return Weights(by_model, new)


class Unit(NamedTuple):
    """Steps of one policy that are fitted one after the other."""

    policy: str
    numbers: tuple[int, ...]


def units_of(replay: Replay) -> tuple[Unit, ...]:
    """List the units behind the first two steps, the longest first."""
    later = tuple(range(2, len(replay.steps)))
    if not later:
        return ()
    chains = tuple(Unit(name, later) for name in replay.config.policies if name != "full")
    full = [Unit("full", (number,)) for number in later if "full" in replay.config.policies]
    return (*chains, *reversed(full))


def run_unit(replay: Replay, unit: Unit, say: Say) -> None:
    """Fit and query a unit's steps that are not done."""
    torch.manual_seed(replay.seed)
    members: list[Member] = []
    for number in unit.numbers:
        if not replay.folder.is_done(number, unit.policy):
            members = run_step(replay, unit.policy, number, members)
            seconds = read_json(replay.folder.done(number, unit.policy))["seconds"]
            say(f"step {number} of {len(replay.steps) - 1}, {unit.policy}: {seconds:,.1f} s")


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
        lists = lists_of_source(member.source, evaluation, replay.device)
        ranking = time.perf_counter() - begin_ranking
        fitting = 0.0 if policy == "never" else member.fit_seconds
        save_source(folder.source(number, policy, member.name), lists)
        save_lists(folder.lists(number, policy, member.name), lists.item_rows, fitting, ranking)
        if member.model is not None and policy in (FIRST, "incremental"):
            member.model.save(folder.models(number, policy) / member.name)  # type: ignore[operator]
        members.append(member)
    if policy == WARM_UP:
        write_json(folder.path / "choices.json", Choices(**made).as_json())
    document = {
        "models": [member.name for member in members],
        "num_queries": len(queries),
        "known_at": known_at.begin,
        "seconds": time.perf_counter() - begin,
    }
    write_json(folder.done(number, policy), document)
    return members


def lists_of_source(source: Source, queries: EvaluationQueries, device: str) -> TopK:
    """Query a source; lists come back to the host, [Q, k]."""
    k = queries.list_length
    parts = []
    for batch in queries.batches(device_named(device)):
        lists = source(batch.queries, batch.allowed, k).lists
        parts.append(TopK(*(part.cpu() for part in lists)))
    return joined_lists(parts)
