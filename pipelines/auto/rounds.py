"""Run what a plan says: round by round, each ending with a bundle that is served.

``plan.json`` of the workspace keeps the plan with what it was made for, and how far it came: the
same command on the same data does nothing again, and one that was killed resumes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pipelines.auto.beside import (
    ENDS,
    HASTY,
    REFITS,
    OutOfTimeError,
    RunStages,
    adopt,
    compared,
    first_limit,
    has_won,
    hasty_round,
    link_artefacts,
    mark_won,
    placed,
    put_back,
    read_seconds,
    remove,
    run_in_time,
    stages_between,
    time_limit,
)
from pipelines.auto.machine import Machine, TimedEncoder, this_machine, time_encoder
from pipelines.auto.make_plan import FULLER, LIMIT, make_plan
from pipelines.auto.plan import LAST, PLANNED_ENCODER, SEARCH, SEQUENCE, Plan, Round
from pipelines.auto.shape import DataShape, measure_shape
from pipelines.config.operation import AutoConfig
from pipelines.config.run import RunConfig
from pipelines.config.toml import Table, merge, set_value, without_keys
from pipelines.engine.artifacts import digest_of_json, read_json, write_json
from pipelines.engine.errors import RefusedError
from pipelines.engine.runner import StageOutcome
from pipelines.engine.workspace import Workspace
from pipelines.presets.resolve import PLAN, ConfigSources
from pipelines.stages.list import STAGES

FEATURES = "build_features"
PLAN_VERSION = 7
"""Plans of other versions are made again."""
MIN_SHARE = 0.25
"""Share of the sequence model's estimated seconds below which its round is left out."""
TWO_TOWER = "train_two_tower"
"""Stage before the sequence model's training whose model is trained on all events at the end."""
REPLANNED_FROM, REPLANNED_BELOW, REPLANNED_ABOVE = 10.0, 0.67, 1.2
"""Estimated seconds of a first round, and the shares of them below and above which the machine was
busy when it was measured, or is now."""
CAUTION, LEAST_PACE = 1.5, 0.1
"""Times that share which the next plan believes, and the least one."""
CLOSING, CLOSING_SHARE = 10.0, 0.1
"""Seconds that the command needs after its last round: tracking, results; of a short budget, the
share of it that they may take."""
LOST_BY = 2.0
"""Standard errors by which a round must be worse to be refused; by one, chance refuses one in six
that are as good."""
ENDS_GROWTH = 2.0
"""Times the seconds that evaluation and release of the first round took, which later ones take."""
LAST_GROWTH = 1.25
"""Times the seconds that are kept for what follows a training, which a busy machine takes."""
REFIT_GROWTH = 1.25
"""Times the seconds on train that a fit to all events takes."""
TIMED_FROM = 60.0
"""Seconds left from which the encoder of texts is timed; with fewer no text is encoded."""


@dataclass(kw_only=True)
class Planned:
    """The plan of a workspace and how far it came."""

    key: str
    """Digest of what it was made for."""
    plan: Plan
    finished: int = 0
    """Rounds that ended with a bundle."""
    trials: list[dict[str, Any]] = field(default_factory=list)
    """Further rounds that were tried or had no time (``pipelines.auto.trials.Trial``)."""
    stopped: str = ""
    """Why no further round is tried; empty before the end."""
    shape: DataShape
    machine: Machine
    encoder: TimedEncoder | None = None

    def save(self, config: RunConfig, current: int) -> None:
        """Write it, with the choices of the round that runs."""
        document = {
            "key": self.key,
            "finished": self.finished,
            "trials": self.trials,
            "stopped": self.stopped,
            "choices": self.plan.rounds[current].choices,
            "deferred": self.plan.rounds[current].deferred,
            "shape": vars(self.shape),
            "machine": vars(self.machine),
            "plan": self.plan.table(),
        }
        write_json(config.workspace / PLAN, document)


def planned_for(
    sources: ConfigSources, config: RunConfig, seconds_left: Callable[[], float]
) -> Planned:
    """Make the plan of a workspace with features, or read it where nothing has changed."""
    workspace = Workspace(config.workspace)
    features = workspace.stage(FEATURES)
    manifest = workspace.manifest(FEATURES)
    machine = this_machine(config.device)
    shape = measure_shape(features, config.content)
    made_for = {
        "features": None if manifest is None else manifest.output,
        # Places of files change no training, and a budget only how many there are.
        "user": without_keys(sources.own, ["workspace", "data", "auto"]),
        "machine": [machine.device, machine.num_cpus],
        "plan": PLAN_VERSION,
    }
    trainings, path = digest_of_json(made_for), config.workspace / PLAN
    key = f"{trainings} in {config.auto.budget}"
    known: dict[str, Any] = read_json(path) if path.exists() else {}
    before: Planned | None = None
    if known.get("key", "").startswith(trainings):
        progress = {name: known[name] for name in ("finished", "trials", "stopped")}
        plan = Plan.of_table(known["plan"])
        before = Planned(key=key, plan=plan, shape=shape, machine=machine, **progress)
        if known["key"] == key:
            return before
        # Another budget continues from what is served.
        before.plan = replace(plan, rounds=plan.rounds[: before.finished])
        before.trials, before.stopped = [one for one in before.trials if one["begun"]], ""
        if before.finished > 1:
            return before
    encoder = None
    if shape.has_text and seconds_left() > TIMED_FROM:
        own = set_value(sources.own, "content.encoder")
        content = config.content if own else replace(config.content, encoder=PLANNED_ENCODER)
        encoder = time_encoder(features / "items.parquet", content)
    if before is not None and before.finished:
        before.encoder = encoder
        before.plan = replanned(before, sources.own, seconds_left(), 1.0)
        return before
    plan = make_plan(shape, machine, sources.own, seconds_left(), encoder)
    return Planned(key=key, plan=plan, shape=shape, machine=machine, encoder=encoder)


def replanned(planned: Planned, user: Table, left: float, pace: float) -> Plan:
    """Plan what follows the first round again, which took ``pace`` times its estimate."""
    machine = replace(planned.machine, flops=planned.machine.flops / pace)
    plan = make_plan(planned.shape, machine, user, left, planned.encoder, is_served=True)
    done, first, rest = planned.plan.rounds[0], plan.rounds[0], list(plan.rounds[1:])
    more = tuple(one for one in first.parts if one.name not in {part.name for part in done.parts})
    if rest:
        rest[0] = replace(rest[0], parts=(*more, *rest[0].parts))
    elif more or (done.name == HASTY and len(first.parts) > 1):
        rest = [replace(first, name=FULLER)]
    return replace(plan, rounds=(done, *rest), notes=planned.plan.notes)


class Automatic:
    """One automatic run."""

    def __init__(
        self, sources: ConfigSources, base: RunConfig, begin: float, say: Callable[[str], None]
    ) -> None:
        """Take the sources, their configuration without choices, and when the command began."""
        self.sources, self.base, self.begin, self.say = sources, base, begin, say
        self.deadline = begin + self.base.auto.seconds
        self.pace = 1.0
        """Times its estimate that the last round took."""
        self.lost: dict[str, str] = {}

    def seconds_left(self) -> float:
        """Return the seconds to the end of the budget."""
        return self.deadline - time.perf_counter()

    def round_config(self, one: Round) -> RunConfig:
        """Build a round's configuration."""
        return replace(self.sources.config(one.choices, one.deferred), data=self.base.data)

    def run(self, planned: Planned, run_stages: RunStages) -> list[StageOutcome]:
        """Run the rounds that are left; stop where the time of the next is not there.

        Raises:
            RefusedError: Every round was refused, so nothing is served.
        """
        outcomes: list[StageOutcome] = []
        refused: RefusedError | None = None
        # A finished run goes through its last round, whose stages are skipped.
        number = min(planned.finished, len(planned.plan.rounds) - 1) - 1
        while (number := number + 1) < len(planned.plan.rounds):
            one, begin = planned.plan.rounds[number], time.perf_counter()
            try:
                if number > 0 and number >= planned.finished:
                    added = self._add(planned, number, run_stages)
                    if added is None:
                        break
                    outcomes += added
                else:
                    self._begin(planned, number)
                    planned.save(self.base, number)
                    try:
                        outcomes += self._run_whole(planned, number, run_stages)
                    except OutOfTimeError:
                        one, begin = self._in_haste(planned), time.perf_counter()
                        outcomes += run_stages(STAGES[1:], self.round_config(one))
            except RefusedError as error:
                refused = error
                self.lost.setdefault(one.name, str(error).partition("\n")[0])
                self.say(f"{one.name}: {error}")
                if one.name == HASTY:
                    planned.plan = replanned(
                        planned, self.sources.own, self.seconds_left(), self.pace
                    )
                planned.save(self.base, max(0, number - 1))
                continue
            is_new = number >= planned.finished
            planned.finished = max(planned.finished, number + 1)
            planned.save(self.base, number)
            pace = (time.perf_counter() - begin) / max(one.seconds, 1.0)
            self.pace = max(1.0, pace)
            self.say(f"{one.name}: served after {time.perf_counter() - self.begin:,.0f} s")
            is_right = one.seconds <= REPLANNED_FROM or REPLANNED_BELOW <= pace <= REPLANNED_ABOVE
            if number == 0 and is_new and (one.name == HASTY or not is_right):
                self.say(f"it took {pace:.0%} of its estimate, so the rest is planned again")
                pace = max(CAUTION * pace if pace < REPLANNED_BELOW else pace, LEAST_PACE)
                left = self.seconds_left()
                planned.plan = replanned(planned, self.sources.own, left, pace)
                self.pace = 1.0
        if refused is not None and planned.finished == 0:
            raise refused
        return outcomes

    def _run_whole(
        self, planned: Planned, number: int, run_stages: RunStages
    ) -> list[StageOutcome]:
        """Run the first round, or the last one of a finished run, to its bundle.

        Raises:
            OutOfTimeError: It would be late, and a round in haste is not.
        """
        one, begin = planned.plan.rounds[number], time.perf_counter()
        hasty = hasty_round(one) if planned.finished == 0 else None
        if hasty is None:
            return run_stages(STAGES[1:], self.round_config(one))
        closing = min(CLOSING, CLOSING_SHARE * self.base.auto.seconds)
        left, elapsed = self.seconds_left() - closing, begin - self.begin
        until = begin + first_limit(planned.shape.num_events, elapsed, left)
        config, reserve = self.round_config(one), hasty.seconds
        return run_in_time(one, config, run_stages, lambda: until - time.perf_counter(), reserve)

    def _in_haste(self, planned: Planned) -> Round:
        """Take a smaller first round, since the planned one would be late."""
        first, took = planned.plan.rounds[0], time.perf_counter() - self.begin
        hasty = hasty_round(first)
        assert hasty is not None
        note = f"{first.name}: late after {took:,.0f} s; what is popular is served until the next"
        self.say(note)
        notes = (*planned.plan.notes, note)
        planned.plan = replace(planned.plan, rounds=(hasty,), notes=notes)
        planned.save(self.base, 0)
        return hasty

    def _begin(self, planned: Planned, number: int) -> None:
        rounds = planned.plan.rounds
        self.say(f"round {number + 1} of {len(rounds)}: {rounds[number].name}")

    def _add(
        self, planned: Planned, number: int, run_stages: RunStages
    ) -> list[StageOutcome] | None:
        """Run a round beside the workspace, and serve it; None if there is no time for it."""
        one, workspace = planned.plan.rounds[number], self.base.workspace
        if not has_won(workspace, key := [planned.key, number]):
            # The sequence model can be trained for less.
            least = {SEQUENCE: MIN_SHARE}
            needed = sum(part.seconds * least.get(part.name, 1.0) for part in one.parts)
            if not self._has_time(one, self.pace * needed):
                return None
            self._begin(planned, number)
            ends = ENDS_GROWTH * sum(read_seconds(workspace, stage) for stage in ENDS)
            try:
                limit = self.seconds_left() - ends - CLOSING
                with Workspace(workspace).lock(), time_limit(limit):
                    if not self._prepared(
                        planned, number, link_artefacts(workspace, key), run_stages
                    ):
                        return None
            except OutOfTimeError:
                self._give_up(one)
                return None
            mark_won(workspace)
        planned.save(self.base, number)
        try:
            return self.serve(planned.plan.rounds[number], run_stages)
        except OutOfTimeError:
            self._give_up(one)
            return None
        finally:
            remove(workspace)

    def _give_up(self, one: Round) -> None:
        took = time.perf_counter() - self.begin
        self.lost[one.name] = f"given up after {took:,.0f} s"
        self.say(f"{one.name}: {self.lost[one.name]}; what is served stays")

    def serve(self, one: Round, run_stages: RunStages) -> list[StageOutcome]:
        """Put a round's artefacts into the workspace, evaluate and release them.

        Raises:
            OutOfTimeError, RefusedError: It is not served; the workspace is as it was.
        """
        adopt(self.base.workspace)
        try:
            return self.release(self.round_config(one), run_stages)
        except (RefusedError, OutOfTimeError):
            put_back(self.base.workspace)
            raise

    def release(self, config: RunConfig, run_stages: RunStages) -> list[StageOutcome]:
        """Evaluate and release what the workspace has, within the time that is left.

        The stage of the release is short and never cut; what follows it may be.
        """
        *before, release = stages_between(STAGES[1].name, ENDS[-1])
        needed = self.pace * read_seconds(config.workspace, release.name)
        with time_limit(self.seconds_left() - CLOSING - needed):
            outcomes = run_stages(before, config)
        outcomes += run_stages([release], config)
        with suppress(OutOfTimeError), time_limit(self.seconds_left() - CLOSING):
            outcomes += run_stages(STAGES[len(before) + 2 :], config)
        return outcomes

    def _prepared(self, planned: Planned, number: int, side: Path, run_stages: RunStages) -> bool:
        """Bring a round to where it can be served; False if its training has no time.

        Raises:
            RefusedError: It is worse than the served bundle by `LOST_BY`.
        """
        one = planned.plan.rounds[number]
        before = stages_between("enrich_items", TWO_TOWER)
        prepared = run_stages(before, placed(self.round_config(one), side))
        shorter = self._shortened(one, prepared)
        if shorter is None:
            return False
        rounds = list(planned.plan.rounds)
        rounds[number] = shorter
        planned.plan = replace(planned.plan, rounds=tuple(rounds))
        planned.save(self.base, max(0, number - 1))
        config = placed(self.round_config(shorter), side)
        run_stages(stages_between("train_sequence", "train_ranker"), config)
        gain = compared(side, config.evaluation.primary_metric)
        if gain is not None:
            self.say(f"{one.name}: {gain.words()}")
            if gain.difference < -LOST_BY * gain.standard_error:
                self.lost[one.name] = f"{one.name}: {gain.words()}, worse than what is served"
                remove(self.base.workspace)
                raise RefusedError("it is worse than what is served, which stays")
        run_stages(stages_between(*REFITS), config)
        return True

    def _has_time(self, one: Round, needed: float) -> bool:
        """Return True if enough seconds are left; if not, print the part that is left out."""
        left = max(0.0, self.seconds_left())
        if left >= needed:
            return True
        self.lost[one.name] = f"{needed:,.0f} s are needed and {left:,.0f} s are left"
        self.say(f"{one.name}: left out, {self.lost[one.name]}; what is served stays")
        return False

    def _shortened(self, one: Round, prepared: Sequence[StageOutcome]) -> Round | None:
        """Bound the sequence model's training by the time left before the last parts.

        None where that leaves too little of it.
        """
        parts = {part.name: part.seconds for part in one.parts}
        if SEQUENCE not in parts:
            return one
        refits = sum(outcome.seconds for outcome in prepared if outcome.stage == TWO_TOWER)
        last = self.pace * (parts[LAST] + parts.get(SEARCH, 0.0)) + REFIT_GROWTH * refits
        last = LAST_GROWTH * (last + read_seconds(self.base.workspace, REFITS[0]) + CLOSING)
        if not self._has_time(one, last + MIN_SHARE * parts[SEQUENCE]):
            return None
        choices = one.choices["sequence_training"]
        trained = choices["max_seconds"] / LIMIT
        share = trained / max(trained, parts[SEQUENCE])
        limit = min(choices["max_seconds"], round(share * (self.seconds_left() - last), 1))
        shorter = merge(one.choices, {"sequence_training": {"max_seconds": limit}})
        return replace(one, choices=shorter)


def describe_plan(planned: Planned, budget: AutoConfig) -> Sequence[str]:
    """Describe the plan and its reasons."""
    shape = planned.shape
    lines = [
        f"{shape.num_events:,} events of {shape.num_users:,} users and {shape.num_items:,} items, "
        f"{shape.mean_length:.1f} a user; "
        + (f"{shape.text_share:.0%} of the items have a text" if shape.has_text else "no texts")
        + (f"; {shape.num_days:,} days" if shape.has_times else "; an order without times"),
        f"machine: {planned.machine.words()}; budget {budget.budget}, {budget.seconds:,.0f} s",
    ]
    return [*lines, shape.judged_by, *planned.plan.notes]
