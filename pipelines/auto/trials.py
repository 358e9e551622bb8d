"""Further rounds of an automatic run: each adds one part, and is kept if validation says so.

A trial runs in ``.trial`` of the workspace, over hard links to its artefacts. Until it has won and
its models are fitted on all events, artefacts and served bundle stay as they were; then its
artefacts take the place of the others at once, and only evaluation and release are left.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from torch import Tensor

from pipelines.auto.further import CANDIDATES, ONE_ERROR, SLACK, Candidate, Measured
from pipelines.auto.make_plan import enough
from pipelines.auto.plan import PlanPart, Round
from pipelines.auto.rounds import Automatic, Planned
from pipelines.candidates.blends import FAST, load_values
from pipelines.config.run import RunConfig
from pipelines.config.toml import merge
from pipelines.engine.artifacts import MANIFEST, move_into_place, read_json, to_json
from pipelines.engine.errors import RefusedError, UnstableTrainingError
from pipelines.engine.runner import StageOutcome
from pipelines.engine.stage import Stage
from pipelines.engine.workspace import Workspace, bundles_dir
from pipelines.inputs.tensors import released_order
from pipelines.ranking.artefact import RANKER, read_decision, served_ranker
from pipelines.stages.list import STAGES
from recsys.data.durable import write_durably
from recsys.fitting.blend import paired_difference
from serving.bundle.manifest import Profile

FOLDER, KEY, WON, BEFORE = ".trial", "key.json", "won.json", "before"
JUDGED_BY = "train_ranker"
"""The last stage before validation can judge."""
REFITS, ENDS = ("refit", "build_index"), ("evaluate", "report", "release")
"""First and last stage of the refits, and stages that are left when the artefacts are in place."""
TOO_FEW = "too few events to learn from"
RunStages = Callable[[Sequence[Stage], RunConfig], list[StageOutcome]]


class OutOfTimeError(Exception):
    """A round took longer than the time that is left allows."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise OutOfTimeError after a number of seconds; outside the main thread nothing does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(*_: object) -> None:
        raise OutOfTimeError

    former = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(0.01, seconds))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, former)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What a further round came to; a line of ``plan.json``."""

    name: str
    what: str
    seconds: float
    """That it took, or needs if it was not begun."""
    kept: bool = False
    begun: bool = True
    metric: str = ""
    difference: float | None = None
    """Of the served list on validation, paired by query."""
    standard_error: float | None = None
    before: float | None = None
    reason: str = ""
    """Why it was not kept, if not by the difference."""

    def words(self) -> str:
        """Describe it for the plan."""
        status = "kept" if self.kept else "tried" if self.begun else "left out"
        told = [self.reason] if self.reason else []
        if self.difference is not None and self.standard_error is not None and self.before:
            gain = {"difference": self.difference, "standard_error": self.standard_error}
            told = [percent(gain, self.before, self.metric), *told]
        return f"{status}: {'; '.join(told)}"


def percent(gain: Mapping[str, float], before: float, metric: str) -> str:
    """Format a paired difference on validation relative to the list without it."""
    if not before:
        return f"{gain['difference']:+.4f} {metric}"
    share, error = (gain[name] / before for name in ("difference", "standard_error"))
    return f"{share:+.1%} +- {error:.1%} {metric} on validation"


def served_values(folder: Path, order: str, profile: Profile) -> Tensor | None:
    """Read what the list of a profile reaches for each validation query, before release."""
    ranker = folder / JUDGED_BY / order
    if profile == FAST and served_ranker(ranker) is not None:
        return load_values(ranker, RANKER)
    blends = folder / "fit_blend" / order
    found = load_values(blends, profile)
    return load_values(blends, FAST) if found is None else found


def link_artefacts(workspace: Path, key: object) -> Path:
    """Make the folder of a trial over hard links; one that was killed is continued."""
    side = workspace / FOLDER
    path = side / KEY
    if not path.exists() or read_json(path) != key:
        shutil.rmtree(side, ignore_errors=True)
        side.mkdir()
        for stage in STAGES:
            if (workspace / stage.name / MANIFEST).exists():
                shutil.copytree(workspace / stage.name, side / stage.name, copy_function=os.link)
        write_durably(path, to_json(key))
    return side


def adopt(workspace: Path) -> None:
    """Put the artefacts of a trial that won into the workspace; finish what a kill cut off."""
    side = workspace / FOLDER
    if not (side / WON).exists():
        return
    for name in read_json(side / WON):
        if (side / name).exists():
            (side / BEFORE).mkdir(exist_ok=True)
            if (workspace / name).exists() and not (side / BEFORE / name).exists():
                (workspace / name).rename(side / BEFORE / name)
            move_into_place(side / name, workspace / name)


def put_back(workspace: Path) -> None:
    """Undo ``adopt``: the release of the trial was refused."""
    before = workspace / FOLDER / BEFORE
    for path in sorted(before.glob("*")):
        move_into_place(path, workspace / path.name)


def further_rounds(run: Automatic, planned: Planned, run_stages: RunStages) -> list[StageOutcome]:
    """Try what may be added while time is left, and say why it stops."""
    rounds, trials = planned.plan.rounds, Trials(run, planned, run_stages)
    if planned.stopped:
        return []
    if planned.finished < len(rounds):
        # The same command with a later end tries that round again.
        planned.stopped = f"{rounds[planned.finished].name} had no time, or was refused"
        return []
    if enough(planned.shape):
        for name, make in CANDIDATES.items():
            if all(one["name"] != name for one in planned.trials):
                trials.consider(make)
    late = [one["name"] for one in planned.trials if not one["begun"]]
    planned.stopped = "nothing else can be added" if enough(planned.shape) else TOO_FEW
    if late:
        planned.stopped = f"no time is left for {', '.join(late)}"
    planned.save(run.base, planned.finished - 1)
    shutil.rmtree(run.base.workspace / FOLDER, ignore_errors=True)
    return trials.outcomes


class Trials:
    """The further rounds of one run."""

    def __init__(self, run: Automatic, planned: Planned, run_stages: RunStages) -> None:
        self.run, self.planned, self.run_stages = run, planned, run_stages
        self.outcomes: list[StageOutcome] = []

    def consider(self, make: Callable[[Measured], Candidate | None]) -> None:
        """Try one part if it applies and there is time, and keep the record of it."""
        last = self.planned.plan.rounds[-1]
        done = Measured(self.run.round_config(last), self.run.sources.own)
        one = make(done)
        if one is None:
            return
        choices = merge(last.choices, one.choices)
        added = replace(last, name=f"with {one.name}", choices=choices, parts=())
        needed = done.needed(one, self.run.round_config(added))
        total, left = sum(needed.values()), self.run.seconds_left()
        told = Trial(name=one.name, what=one.what, seconds=round(total, 1))
        if SLACK * total > left:
            reason = f"no time left: needs about {SLACK * total:,.0f} s, {max(0.0, left):,.0f} left"
            told = replace(told, begun=False, reason=reason)
        else:
            self.run.say(f"trying {one.name}: {one.what}, about {total:,.0f} s")
            told = self.attempt(told, one, added, needed)
            shutil.rmtree(self.run.base.workspace / FOLDER, ignore_errors=True)
        self.planned.trials.append(asdict(told))
        self.planned.save(self.run.base, len(self.planned.plan.rounds) - 1)
        self.run.say(f"{one.name} {told.words()}")

    def attempt(
        self, told: Trial, one: Candidate, added: Round, needed: Mapping[str, float]
    ) -> Trial:
        """Run a candidate beside the workspace, and serve it if it is better."""
        begin = time.perf_counter()
        try:
            told = self.judged(told, one, added, needed)
        except OutOfTimeError:
            reason = f"given up after {time.perf_counter() - begin:,.0f} s, too late to serve it"
            told = replace(told, kept=False, reason=reason)
        except (RefusedError, UnstableTrainingError, MemoryError, ValueError) as error:
            told = replace(told, kept=False, reason=f"failed: {error}")
        if told.kept:
            part = PlanPart(one.name, one.what, told.words(), told.seconds)
            told = self.serve(replace(added, parts=(part,)), told)
        return replace(told, seconds=round(time.perf_counter() - begin, 1))

    def judged(
        self, told: Trial, one: Candidate, added: Round, needed: Mapping[str, float]
    ) -> Trial:
        """Train a candidate, compare it, and fit it to all events if it is better."""
        config, workspace = self.run.round_config(added), self.run.base.workspace
        refits, ends = (sum(needed.get(name, 0.0) for name in part) for part in (REFITS, ENDS))
        with Workspace(workspace).lock():
            side = link_artefacts(workspace, [self.planned.key, one.name, one.choices])
            release = replace(config.release, bundles=bundles_dir(config))
            beside = replace(config, workspace=side, release=release)
            with time_limit(self.run.seconds_left() - refits - ends):
                self.run_stages(stages_between("enrich_items", JUDGED_BY), beside)
            told = judge(told, side, one.profile, config.evaluation.primary_metric)
            if told.kept:
                with time_limit(self.run.seconds_left() - ends):
                    self.run_stages(stages_between(*REFITS), beside)
                changed = [one.name for one in STAGES if differs(workspace, side, one.name)]
                write_durably(side / WON, to_json(changed))
        return told

    def serve(self, added: Round, told: Trial) -> Trial:
        """Release a candidate that won; what was served stays if the release is refused."""
        plan, workspace = self.planned.plan, self.run.base.workspace
        self.planned.plan = replace(plan, rounds=(*plan.rounds, added))
        self.planned.save(self.run.base, len(plan.rounds))
        adopt(workspace)
        try:
            self.outcomes += self.run_stages(STAGES[1:], self.run.round_config(added))
        except RefusedError as error:
            put_back(workspace)
            self.planned.plan = plan
            return replace(told, kept=False, reason=f"refused: {error}")
        self.planned.finished = len(self.planned.plan.rounds)
        return told


def stages_between(first: str, last: str) -> list[Stage]:
    """List the stages from one to another."""
    names = [stage.name for stage in STAGES]
    return list(STAGES[names.index(first) : names.index(last) + 1])


def differs(workspace: Path, side: Path, stage: str) -> bool:
    """Return True if a trial made another artefact of a stage."""
    manifests = (folder / stage / MANIFEST for folder in (workspace, side))
    before, after = (path.read_bytes() if path.exists() else b"" for path in manifests)
    return bool(after) and before != after


def judge(told: Trial, side: Path, profile: Profile, metric: str) -> Trial:
    """Compare the served lists with and without a candidate, query by query."""
    order = released_order(side / "build_features")
    before, after = (served_values(folder, order, profile) for folder in (side.parent, side))
    if told.name == RANKER:
        ranker = side / JUDGED_BY / order
        after = load_values(ranker, RANKER)
        if after is None:
            return replace(told, reason=read_decision(ranker)["reason"])
    if before is None or after is None or len(before) != len(after):
        return replace(told, reason="validation has too few queries to judge it")
    difference, error, number = paired_difference(after, before)
    return replace(
        told,
        kept=number > 1 and difference > ONE_ERROR * error,
        metric=metric,
        difference=difference,
        standard_error=error,
        before=float(before.nanmean()),
    )
