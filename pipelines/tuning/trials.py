"""One trial: a recipe fitted on train and measured on validation, in a folder of its own.

The test split is not looked at.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import (
    FIRST_COMPLETED,
    Future,
    ProcessPoolExecutor,
    as_completed,
    wait,
)
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from features.parallel import num_cores
from pipelines.backtest.arrays import ORDER
from recsys.data.batch import Jagged
from recsys.evaluation.ranking import per_user_metric
from recsys.fitting.training import device_named
from recsys.reproduction.fit import Experiment
from recsys.reproduction.prepared import Prepared
from recsys.reproduction.ranking_run import run_once
from recsys.reproduction.recipe import Recipe
from recsys.reproduction.run import RunSettings, load_ranked
from recsys.training.loop import TrainingDiverged

Part = TypeVar("Part")
Result = TypeVar("Result")
SPLIT: Literal["validation"] = "validation"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What one trial is to do, wherever it runs."""

    number: int
    arrays: str
    """Folder of the prepared arrays."""
    out: str
    """Folder of all trials."""
    recipe: Recipe
    row: str
    metric: str
    seed: int
    device: str

    @property
    def folder(self) -> Path:
        """Of this trial's lists and metrics."""
        return Path(self.out) / f"{self.number:03d}"

    def settings(self) -> RunSettings:
        """Describe its run."""
        return RunSettings(
            order=ORDER, seed=self.seed, splits=(SPLIT,), device=self.device, why="recsys tune"
        )


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a trial gave; a failed one has no metric and says why."""

    number: int
    values: dict[str, Any]
    metric: float | None
    seconds: float
    error: str | None = None

    def line(self) -> str:
        """Write it as a line of the journal."""
        return json.dumps(asdict(self)) + "\n"


def run_trial(trial: Trial) -> tuple[int, float | None, float, str | None]:
    """Fit and measure."""
    begin = time.perf_counter()
    try:
        result = run_once(arrays(trial.arrays, trial.recipe), trial.folder, trial.settings())
    except (ValueError, TrainingDiverged) as error:
        return trial.number, None, time.perf_counter() - begin, " ".join(str(error).split())
    metric = float(result["rows"][trial.row][SPLIT][trial.metric])
    return trial.number, metric, time.perf_counter() - begin, None


def arrays(folder: str, recipe: Recipe) -> Prepared:
    """Read the arrays, once a process, with a recipe."""
    return replace(_loaded(folder), recipe=recipe)


@lru_cache(maxsize=1)
def _loaded(folder: str) -> Prepared:
    return Prepared.load(Path(folder))


def by_query(trial: Trial) -> Tensor:
    """Read a finished trial's metric of every validation query, [Q]."""
    prepared = arrays(trial.arrays, trial.recipe)
    experiment = Experiment(
        prepared=prepared,
        inputs=prepared.inputs(ORDER),
        seed=trial.seed,
        device=device_named("cpu"),
    )
    path = trial.folder / trial.settings().name / f"{trial.row}.npz"
    ranks = load_ranked(path)[SPLIT].ranks
    targets = experiment.queries(SPLIT).targets()
    return per_user_metric(Jagged(ranks, targets.offsets), trial.metric)


class Processes:
    """Runs tasks in processes of this machine; yields results as tasks end, in any order."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs

    def __call__(
        self, function: Callable[[Part], Result], tasks: Iterable[Part], /
    ) -> Iterator[Result]:
        if self._jobs == 1:
            yield from map(function, tasks)
            return
        threads = max(1, num_cores() // self._jobs)
        pending: set[Future[Result]] = set()
        with ProcessPoolExecutor(
            self._jobs,
            mp_context=get_context("spawn"),
            initializer=torch.set_num_threads,
            initargs=(threads,),
        ) as pool:
            for task in tasks:
                pending.add(pool.submit(function, task))
                if len(pending) == self._jobs:
                    done, pending = wait(pending, return_when=FIRST_COMPLETED)
                    yield from (one.result() for one in done)
            yield from (one.result() for one in as_completed(pending))
