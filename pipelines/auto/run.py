"""Run what a plan says: round by round, each ending with a bundle that is served.

``plan.json`` of the workspace keeps the plan with what it was made for, and how far it came: the
same command on the same data does nothing again, and one that was killed goes on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.auto.machine import Machine, this_machine
from pipelines.auto.make_plan import make_plan
from pipelines.auto.plan import Plan, Round
from pipelines.auto.shape import DataShape, shape_of
from pipelines.config.auto import budget_seconds
from pipelines.config.run import RunConfig
from pipelines.config.toml import Table
from pipelines.engine.artifacts import digest_of_json, to_json
from pipelines.engine.errors import RefusedError
from pipelines.engine.runner import StageOutcome
from pipelines.engine.workspace import Workspace
from pipelines.presets.resolve import PLAN, ConfigSources, with_dataset
from recsys.data.durable import write_durably

FEATURES = "build_features"
MIN_SHARE = 0.5
"""Share of a round's estimated seconds that must be left for it to begin."""

RunStages = Callable[[RunConfig], list[StageOutcome]]
"""Brings all stages of a configuration up to date."""


@dataclass(kw_only=True)
class Planned:
    """The plan of a workspace and how far it came."""

    key: str
    """Digest of what it was made for."""
    plan: Plan
    finished: int = 0
    """Rounds that ended with a bundle."""
    shape: DataShape
    machine: Machine

    def save(self, config: RunConfig, current: int) -> None:
        """Write it, with the choices of the round that runs."""
        document = {
            "key": self.key,
            "finished": self.finished,
            "choices": self.plan.rounds[current].choices,
            "shape": self.shape.table(),
            "machine": vars(self.machine),
            "plan": self.plan.table(),
        }
        write_durably(config.workspace / PLAN, to_json(document))


def planned_for(
    sources: ConfigSources, config: RunConfig, seconds_left: Callable[[], float]
) -> Planned:
    """Make the plan of a workspace with features, or read it where nothing has changed.

    Args:
        sources: Of the configuration.
        config: What they give without choices.
        seconds_left: To the end of the budget.

    Raises:
        ValueError: The machine has too little memory.
    """
    workspace = Workspace(config.workspace)
    features = workspace.stage(FEATURES)
    manifest = workspace.manifest(FEATURES)
    machine = this_machine(config.sequence_training.device)
    shape = shape_of(features, config.content)
    key = digest_of_json(
        {
            "features": None if manifest is None else manifest.output,
            "user": _without_places(sources.own()),
            "budget": config.auto.budget,
            "machine": [machine.device, machine.num_cpus],
        }
    )
    path = config.workspace / PLAN
    if path.exists():
        known: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if known["key"] == key:
            plan = Plan.of_table(known["plan"])
            return Planned(
                key=key, plan=plan, finished=known["finished"], shape=shape, machine=machine
            )
    plan = make_plan(shape, machine, sources.own(), seconds_left())
    return Planned(key=key, plan=plan, shape=shape, machine=machine)


def _without_places(table: Table) -> Table:
    """Leave out where things lie, which changes nothing that is trained."""
    return {name: value for name, value in table.items() if name not in ("workspace", "data")}


class Automatic:
    """One automatic run."""

    def __init__(self, sources: ConfigSources, begin: float, say: Callable[[str], None]) -> None:
        """Take the configuration's sources, when the command began, and where lines go."""
        self.sources, self.begin, self.say = sources, begin, say
        self.base = sources.config()
        self.deadline = begin + budget_seconds(self.base.auto.budget)

    def seconds_left(self) -> float:
        return self.deadline - time.perf_counter()

    def seconds_spent(self) -> float:
        return time.perf_counter() - self.begin

    def config_of(self, one: Round) -> RunConfig:
        """Build a round's configuration."""
        return with_dataset(self.sources.config(one.choices))

    def run(self, planned: Planned, run_stages: RunStages) -> list[StageOutcome]:
        """Run the rounds that are left; stop where the time of the next is not there.

        Returns:
            The outcomes of all stages that were run.
        """
        outcomes: list[StageOutcome] = []
        rounds = planned.plan.rounds
        for number in range(max(0, planned.finished - 1), len(rounds)):
            one = rounds[number]
            late = number >= planned.finished and self.seconds_left() < MIN_SHARE * one.seconds
            if number > 0 and late:
                self.say(
                    f"{one.name}: left out, {one.seconds:,.0f} s are needed and "
                    f"{max(0.0, self.seconds_left()):,.0f} s are left; what is served stays"
                )
                break
            self.say(f"round {number + 1} of {len(rounds)}: {one.name}")
            planned.save(self.base, number)
            try:
                outcomes += run_stages(self.config_of(one))
            except RefusedError as error:
                if number == 0:
                    raise
                self.say(f"{one.name}: {error}")
                planned.save(self.base, number - 1)
                continue
            planned.finished = max(planned.finished, number + 1)
            planned.save(self.base, number)
            self.say(f"{one.name}: served after {self.seconds_spent():,.0f} s")
        return outcomes


def lines_of(planned: Planned, budget: str) -> Sequence[str]:
    """Say in words what is planned and why."""
    shape = planned.shape
    lines = [
        f"{shape.num_events:,} events of {shape.num_users:,} users and {shape.num_items:,} items, "
        f"{shape.mean_length:.1f} a user; "
        + (f"{shape.text_share:.0%} of the items have a text" if shape.has_text else "no texts")
        + (f"; {shape.num_days:,} days" if shape.has_times else "; an order without times"),
        f"machine: {planned.machine.words()}; budget {budget}",
    ]
    return [*lines, *planned.plan.notes]
