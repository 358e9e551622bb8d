"""Further rounds of an automatic run: each adds one part, and is kept if validation says so."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pipelines.auto import beside
from pipelines.auto.beside import Gain, Measured, RunStages
from pipelines.auto.further import CANDIDATES, ONE_ERROR, SLACK, Candidate
from pipelines.auto.plan import Costs, PlanPart, Round
from pipelines.auto.rounds import CLOSING, Automatic, Planned
from pipelines.auto.shape import enough
from pipelines.config.toml import merge
from pipelines.engine.artifacts import read_json
from pipelines.engine.errors import RefusedError, UnstableTrainingError
from pipelines.engine.runner import StageOutcome
from pipelines.engine.workspace import Workspace
from pipelines.ranking.artefact import FILE, RANKER, describe_choices, read_decision
from pipelines.stages.list import STAGES
from recsys.fitting.queries import GIVEN

NO_TIME = "no time left"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What a further round came to; a line of ``plan.json``."""

    name: str
    what: str
    seconds: float
    """That it took, or needs if it was not begun."""
    kept: bool = False
    begun: bool = True
    gain: Gain | None = None
    reason: str = ""
    """Why it was not kept, if not by the difference."""
    parts: Mapping[str, str] = field(default_factory=dict)
    """Outcomes of parts that it chose between."""

    def words(self) -> str:
        """Describe it for the plan."""
        status = "kept" if self.kept else "tried" if self.begun else "left out"
        parts = [self.gain.words()] if self.gain else []
        return f"{status}: {'; '.join([*parts, self.reason] if self.reason else parts)}"

    def table(self) -> dict[str, Any]:
        """Write a line of ``plan.json``."""
        return vars(self) | {"gain": self.gain and self.gain._asdict()}

    @classmethod
    def of_table(cls, table: Mapping[str, Any]) -> Trial:
        """Read what ``table`` gave."""
        gain = table["gain"]
        return cls(**{**table, "gain": None if gain is None else Gain(**gain)})


def in_short(error: BaseException) -> str:
    """Return the first failed check of a refusal, or the first line of another error."""
    text = str(error) or type(error).__name__
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[min(1, len(lines) - 1)] if isinstance(error, RefusedError) else lines[0]


def further_rounds(run: Automatic, planned: Planned, run_stages: RunStages) -> list[StageOutcome]:
    """Try what may be added while time is left, and say why it stops."""
    trials = Trials(run, planned, run_stages)
    if planned.stopped:
        return []
    plan, number = planned.plan, planned.finished
    reasons = ((run.lost.get(one.name, "not served"), one.parts) for one in plan.rounds[number:])
    lost = (replace(part, why=why) for why, parts in reasons for part in parts)
    planned.plan = replace(plan, rounds=plan.rounds[:number], left_out=(*lost, *plan.left_out))
    if enough(planned.shape):
        for name, make in CANDIDATES.items():
            if all(one["name"] != name for one in planned.trials):
                trials.consider(name, make)
    late = [one["name"] for one in planned.trials if one["reason"].startswith(NO_TIME)]
    ended = f"no time is left for {', '.join(late)}" if late else "nothing else can be added"
    planned.stopped = ended if enough(planned.shape) else "too few events to learn from"
    planned.save(run.base, planned.finished - 1)
    return trials.outcomes


class Trials:
    """The further rounds of one run."""

    def __init__(self, run: Automatic, planned: Planned, run_stages: RunStages) -> None:
        self.run, self.planned, self.run_stages = run, planned, run_stages
        self.outcomes: list[StageOutcome] = []

    def consider(self, name: str, make: Callable[[Measured], Candidate | str]) -> None:
        """Try one part if it applies and there is time, and keep the record of it."""
        last = self.planned.plan.rounds[-1]
        costs = Costs(self.planned.shape, self.planned.machine)
        done = Measured(self.run.round_config(last), self.run.sources.own, costs)
        one = make(done)
        if isinstance(one, str):
            trial = Trial(name=name, what="", seconds=0.0, begun=False, reason=one)
            self.planned.trials.append(trial.table())
            return
        choices = merge(last.choices, one.choices)
        added = replace(last, name=f"with {one.name}", choices=choices, parts=())
        needed = done.needed(one.seconds, self.run.round_config(added))
        total, left = sum(needed.values()), max(0.0, self.run.seconds_left() - CLOSING)
        share = one.share(total, left)
        seconds = total - (1.0 - (share or one.least)) * one.trained
        what = one.what + (f", {share:.0%} of its training" if 0.0 < share < 1.0 else "")
        trial = Trial(name=one.name, what=what, seconds=round(seconds, 1))
        if share == 0.0:
            reason = (
                f"{NO_TIME}: needs about {SLACK * seconds:,.0f} s (an estimate), {left:,.0f} left"
            )
            trial = replace(trial, begun=False, reason=reason)
        else:
            added = replace(added, choices=merge(choices, one.shorter(share)))
            self.run.say(f"trying {one.name}: {what}, about {seconds:,.0f} s")
            trial = self.attempt(trial, one, added, needed)
            beside.remove(self.run.base.workspace)
        self.planned.trials.append(trial.table())
        self.planned.save(self.run.base, len(self.planned.plan.rounds) - 1)
        self.run.say(f"{one.name} {trial.words()}")

    def attempt(
        self, trial: Trial, one: Candidate, added: Round, needed: Mapping[str, float]
    ) -> Trial:
        """Run a candidate beside the workspace, and serve it if it is better."""
        begin = time.perf_counter()
        try:
            trial = (self.adapted if one.name == "adapters" else self.judged)(
                trial, one, added, needed
            )
        except beside.OutOfTimeError:
            reason = f"given up after {time.perf_counter() - begin:,.0f} s, too late to serve it"
            trial = replace(trial, kept=False, reason=reason)
        except (RefusedError, UnstableTrainingError, MemoryError, ValueError) as error:
            trial = replace(trial, kept=False, reason=f"failed: {in_short(error)}")
        if trial.kept:
            part = PlanPart(one.name, one.what, trial.words(), trial.seconds)
            trial = self.serve(replace(added, parts=(part,)), trial)
        return replace(trial, seconds=round(time.perf_counter() - begin, 1))

    def judged(
        self, trial: Trial, one: Candidate, added: Round, needed: Mapping[str, float]
    ) -> Trial:
        """Train a candidate, compare it, and fit it to all events if it is better."""
        config, workspace = self.run.round_config(added), self.run.base.workspace
        parts = (beside.REFITS, beside.ENDS)
        refits, ends = (sum(needed.get(name, 0.0) for name in part) for part in parts)
        with Workspace(workspace).lock():
            # As a planned round of the next number is known.
            key = [self.planned.key, len(self.planned.plan.rounds)]
            side = beside.link_artefacts(workspace, key)
            there = beside.placed(config, side)
            with beside.time_limit(self.run.seconds_left() - CLOSING - refits - ends):
                self.run_stages(beside.stages_between("enrich_items", "train_ranker"), there)
            metric, is_ranker = config.evaluation.primary_metric, one.name == RANKER
            gain = beside.compared(side, metric, ranker=is_ranker)
            decision = side / "train_ranker" / GIVEN
            if is_ranker and (decision / FILE).exists():
                trial = replace(trial, parts=describe_choices(read_decision(decision)))
            if gain is None:
                return replace(trial, reason=self.why_not(side, ranker=is_ranker))
            kept = gain.difference > ONE_ERROR * gain.standard_error
            if kept:
                with beside.time_limit(self.run.seconds_left() - CLOSING - ends):
                    self.run_stages(beside.stages_between(*beside.REFITS), there)
                beside.mark_won(workspace)
        return replace(trial, kept=kept, gain=gain)

    def adapted(
        self, trial: Trial, one: Candidate, added: Round, _needed: Mapping[str, float]
    ) -> Trial:
        """Train adapters of the served bundle; each is judged by its own gate."""
        config, stage = self.run.round_config(added), STAGES[-1]
        with beside.time_limit(self.run.seconds_left() - CLOSING):
            self.outcomes += self.run_stages([stage], config)
        outcomes = read_json(config.workspace / stage.name / "adapters.json")
        whys = [of["verdicts"][0]["reason"] if of["verdicts"] else of["refused"] for of in outcomes]
        reasons = [f"{of['domain']}: {why}" for of, why in zip(outcomes, whys, strict=True)]
        kept = any(of["adapter"] is not None for of in outcomes)
        return replace(trial, kept=kept, reason="; ".join(reasons))

    def why_not(self, side: Path, *, ranker: bool) -> str:
        """Return why a candidate could not be judged."""
        decision = side / "train_ranker" / GIVEN
        if ranker and (decision / FILE).exists():
            return str(read_decision(decision)["reason"])
        return "validation has too few queries to judge it"

    def serve(self, added: Round, trial: Trial) -> Trial:
        """Release a candidate that won; the bundle before stays if that is refused or late."""
        plan = self.planned.plan
        self.planned.plan = replace(plan, rounds=(*plan.rounds, added))
        self.planned.save(self.run.base, len(plan.rounds))
        try:
            self.outcomes += self.run.serve(added, self.run_stages)
        except (RefusedError, beside.OutOfTimeError) as error:
            late = isinstance(error, beside.OutOfTimeError)
            reason = "better, but too late to be served" if late else f"refused: {in_short(error)}"
            self.planned.plan = plan
            return replace(trial, kept=False, reason=reason)
        self.planned.finished = len(self.planned.plan.rounds)
        return trial
