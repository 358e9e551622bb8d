"""Rounds that run beside the workspace, so that the served bundle stays whole until they are done.

A round runs in ``.trial`` of the workspace, over hard links to its artefacts. When its models are
fitted on all events, its artefacts take the place of the others; only evaluation and release are
left. A round that lost, or has no time left, leaves nothing; one that was killed is continued.

All of the first round up to its release may be cut. What is popular, and what occurs together, is
then served first, and the other models wait for the next round.
"""

from __future__ import annotations

import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from pipelines.auto.first_round import COUNTED, HASTY_USERS
from pipelines.auto.plan import LAST, SEARCH, Costs, PlanPart, Round
from pipelines.candidates.blends import FAST, load_values
from pipelines.config.run import RunConfig
from pipelines.config.toml import Table, merge
from pipelines.engine.artifacts import MANIFEST, RUN, move_into_place, read_json, write_json
from pipelines.engine.runner import StageOutcome
from pipelines.engine.stage import Stage
from pipelines.engine.workspace import bundles_dir
from pipelines.publishing.released import link_tree
from pipelines.ranking.artefact import RANKER, served_ranker
from pipelines.stages.list import STAGES
from recsys.fitting.blend import paired_difference
from recsys.fitting.queries import GIVEN

FOLDER, KEY, WON, BEFORE = ".trial", "key.json", "won.json", "before"
REFITS = ("refit", "build_index")
"""First and last stage that fits to all events."""
ENDS = ("evaluate", "report", "release")
"""Stages that are left when the artefacts are in place."""
RunStages = Callable[[Sequence[Stage], RunConfig], list[StageOutcome]]
"""Brings stages of a configuration up to date."""
FIRST_BUNDLE, FIRST_EVENTS = 60.0, 500_000
"""Seconds from the begin of the command within which the first bundle is to be served, for logs of
up to that many events."""
RESERVED_SHARE = 2
"""Part of the limit that the round in haste keeps at most: a busy machine's estimates are high."""
HASTY, HASTY_ENDS = "bundle in haste", 4.0
"""Name of that round, and its estimated seconds to evaluate and release."""


class OutOfTimeError(BaseException):
    """A round took longer than the time that is left allows.

    Like an interrupt, it passes code that handles any ``Exception``.
    """


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise OutOfTimeError after a number of seconds; outside the main thread nothing does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(*_: object) -> None:
        raise OutOfTimeError

    former, learns = signal.signal(signal.SIGALRM, ring), torch.is_grad_enabled()
    signal.setitimer(signal.ITIMER_REAL, max(0.01, seconds))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, former)
        # An alarm between the two ends of ``torch.no_grad`` leaves gradients off.
        torch.set_grad_enabled(learns)


def stages_between(first: str, last: str) -> list[Stage]:
    """List the stages from one to another."""
    names = [stage.name for stage in STAGES]
    return list(STAGES[names.index(first) : names.index(last) + 1])


def read_seconds(workspace: Path, stage: str) -> float:
    """Return the seconds that a stage took; 0 before it ran."""
    path = workspace / stage / RUN
    return float(read_json(path)["seconds"]) if path.exists() else 0.0


@dataclass(frozen=True)
class Measured:
    """A finished round: its configuration, and what its stages took."""

    config: RunConfig
    user: Table
    """Keys that the configuration sets itself."""
    costs: Costs
    """Seconds of what did not run before."""

    def took(self, stage: str) -> float:
        """Return the seconds that a stage took; 0 before it ran."""
        return read_seconds(self.config.workspace, stage)

    def rows(self, stage: str, which: str = "in") -> int:
        """Return the number of rows that a stage read, or wrote (``out``)."""
        path = self.config.workspace / stage / MANIFEST
        return int(read_json(path)["rows"][which]) if path.exists() else 0

    def refit_seconds(self, model: str) -> float:
        """Return the seconds that a model's refit took, by its steps."""
        places = f"train_{model}/{GIVEN}", f"refit/trainings/{model}"
        paths = [self.config.workspace / place / "training.json" for place in places]
        steps = [float(read_json(path)["num_steps"]) for path in paths if path.exists()]
        return self.took(f"train_{model}") * steps[1] / max(1.0, steps[0]) if steps[1:] else 0.0

    def needed(self, changed: Mapping[str, float], config: RunConfig) -> dict[str, float]:
        """Estimate the seconds of every stage that is made again if these change, in order."""
        needed: dict[str, float] = {}
        for stage in STAGES:
            if stage.name in changed:
                needed[stage.name] = changed[stage.name]
            elif needed.keys() & set(stage.input_stages(config)):
                needed[stage.name] = self.took(stage.name)
        return needed


def link_artefacts(workspace: Path, key: object) -> Path:
    """Make the folder of a round over hard links; one that was killed is continued."""
    side = workspace / FOLDER
    path = side / KEY
    if not path.exists() or read_json(path) != key:
        shutil.rmtree(side, ignore_errors=True)
        side.mkdir()
        for stage in STAGES:
            if (workspace / stage.name / MANIFEST).exists():
                link_tree(workspace / stage.name, side / stage.name)
        write_json(path, key)
    return side


def placed(config: RunConfig, side: Path) -> RunConfig:
    """Move a configuration's workspace, but not its bundles."""
    release = replace(config.release, bundles=bundles_dir(config))
    return replace(config, workspace=side, release=release)


def mark_won(workspace: Path) -> None:
    """Note which artefacts of a round take the place of the workspace's."""
    side = workspace / FOLDER
    manifests = (
        {folder: folder / one.name / MANIFEST for folder in (workspace, side)} for one in STAGES
    )
    changed = [
        of[side].parent.name
        for of in manifests
        if of[side].exists()
        and not (of[workspace].exists() and of[workspace].read_bytes() == of[side].read_bytes())
    ]
    write_json(side / WON, changed)


def has_won(workspace: Path, key: object) -> bool:
    """Return True if a round was killed while its artefacts were put into the workspace."""
    side = workspace / FOLDER
    return (side / WON).exists() and read_json(side / KEY) == key


def adopt(workspace: Path) -> None:
    """Put the artefacts of a round that won into the workspace; finish what a kill cut off."""
    side = workspace / FOLDER
    (side / BEFORE).mkdir(parents=True, exist_ok=True)
    for name in ENDS[:-1]:
        # They are made again in the workspace itself.
        if (workspace / name).exists() and not (side / BEFORE / name).exists():
            link_tree(workspace / name, side / BEFORE / name)
    for name in read_json(side / WON) if (side / WON).exists() else ():
        if (side / name).exists():
            if (workspace / name).exists() and not (side / BEFORE / name).exists():
                (workspace / name).rename(side / BEFORE / name)
            move_into_place(side / name, workspace / name)


def put_back(workspace: Path) -> None:
    """Undo ``adopt``: the release of the round was refused."""
    for path in sorted((workspace / FOLDER / BEFORE).glob("*")):
        move_into_place(path, workspace / path.name)


def remove(workspace: Path) -> None:
    """Delete the folder of a round."""
    shutil.rmtree(workspace / FOLDER, ignore_errors=True)


class Gain(NamedTuple):
    """Difference of two lists on validation, paired by query."""

    metric: str
    difference: float
    standard_error: float
    before: float

    def words(self) -> str:
        """Format it relative to the list before."""
        where = f"{self.metric} on validation"
        if not self.before:
            return f"{self.difference:+.4f} {where}"
        share, error = self.difference / self.before, self.standard_error / self.before
        return f"{share:+.1%} +- {error:.1%} {where}"


def compared(side: Path, metric: str, *, ranker: bool = False) -> Gain | None:
    """Compare a round's list with that of the workspace; None if they answer other queries.

    Args:
        ranker: Whether the round's ranker is compared, even if it is not to be served.
    """
    before, after = (served_values(folder) for folder in (side.parent, side))
    if ranker:
        after = load_values(side / "train_ranker" / GIVEN, RANKER)
    if before is None or after is None or len(before) != len(after):
        return None
    difference, error, number = paired_difference(after, before)
    return Gain(metric, difference, error, float(before.nanmean())) if number > 1 else None


def served_values(folder: Path) -> Tensor | None:
    """Read what profile fast reaches for each validation query, before release."""
    ranker = folder / "train_ranker" / GIVEN
    if served_ranker(ranker) is not None:
        return load_values(ranker, RANKER)
    return load_values(folder / "fit_blend" / GIVEN, FAST)


def first_limit(num_events: int, elapsed: float, left: float) -> float:
    """Return the seconds that the first round has, of those that are left of the budget."""
    return left if num_events > FIRST_EVENTS else min(left, FIRST_BUNDLE - elapsed)


def hasty_round(first: Round) -> Round | None:
    """Reduce a first round to what counts alone; None if it has nothing else."""
    counts, *others = first.parts
    if first.name == HASTY or all(part.name == LAST for part in others):
        return None
    off = [*COUNTED, *([SEARCH] if SEARCH in first.choices else [])]
    choices = merge(first.choices, {section: {"enabled": False} for section in off})
    few = {"evaluation": {"max_users": HASTY_USERS}, "blend": {"max_queries": HASTY_USERS}}
    choices = merge(choices, few)
    parts = (counts, PlanPart(LAST, "", "to be served", HASTY_ENDS))
    deferred = dict.fromkeys([*first.deferred, *(f"{section}.enabled" for section in off)])
    return Round(name=HASTY, choices=choices, parts=parts, deferred=tuple(deferred))


def run_in_time(
    one: Round, config: RunConfig, run_stages: RunStages, left: Callable[[], float], reserve: float
) -> list[StageOutcome]:
    """Run a first round to its bundle; ``reserve`` of the seconds left are for the one in haste.

    Raises:
        OutOfTimeError: It would be late; its release has not begun.
    """
    names, limit = [stage.name for stage in STAGES], left()
    measuring = sum(part.seconds for part in one.parts if part.name == LAST)
    counted, last = max(1.0, (one.seconds - measuring) / 2), names.index(ENDS[-1])
    with time_limit(limit - min(reserve, limit / RESERVED_SHARE)):
        outcomes = run_stages(stages_between(names[1], "fit_baselines"), config)
        # To fit to all events takes as long again.
        took = sum(outcome.seconds for outcome in outcomes)
        if took + max(1.0, took / counted) * measuring > left():
            raise OutOfTimeError
        outcomes += run_stages(stages_between("train_two_tower", names[last - 1]), config)
    return outcomes + run_stages(STAGES[last:], config)
