"""One trial: settings fitted on train and measured on validation, in a folder of its own.

The test split is not looked at.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pipelines.backtest.prepare import ORDER
from pipelines.inputs.tensors import read_inputs
from recsys.data.batch import Jagged
from recsys.evaluation.ranking import per_user_metric
from recsys.fitting.blend import SourceLists, known_demand
from recsys.fitting.catalogue import SPECS
from recsys.fitting.queries import ModelInputs, rank_queries
from recsys.fitting.spec import device_named
from recsys.replay.experiment import Recipe, RecipeFitter, lists_of_source
from recsys.training.loop import TrainingDiverged

VALUES = "values.npy"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Task of one trial, on any machine."""

    number: int
    workspace: str
    """Folder of the stages that prepare the arrays."""
    out: str
    recipe: Recipe
    row: str
    """Model that is measured; the blend of all if it is none of the recipe's."""
    metric: str
    seed: int
    device: str

    @property
    def folder(self) -> Path:
        """Folder of this trial."""
        return Path(self.out) / f"{self.number:03d}"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of a trial; a failed one has no metric but an error."""

    number: int
    values: dict[str, Any]
    metric: float | None
    seconds: float
    error: str | None = None


def run_trial(trial: Trial) -> tuple[int, float | None, float, str | None]:
    """Fit and measure; return number, metric, seconds and error."""
    begin = time.perf_counter()
    try:
        values = measured(trial)
    except (ValueError, TrainingDiverged) as error:
        return trial.number, None, time.perf_counter() - begin, " ".join(str(error).split())
    trial.folder.mkdir(parents=True, exist_ok=True)
    np.save(trial.folder / VALUES, values, allow_pickle=False)
    return trial.number, float(np.nanmean(values)), time.perf_counter() - begin, None


def measured(trial: Trial) -> NDArray[np.float64]:
    """Measure every validation query, [Q]; NaN without a target."""
    recipe, device = trial.recipe, device_named(trial.device)
    experiment = RecipeFitter(
        recipe=recipe,
        inputs=inputs_in(trial.workspace),
        seed=trial.seed,
        device=device,
        checkpoints=trial.folder / "checkpoints",
    )
    queries = experiment.queries("validation")
    if trial.row in recipe.models:
        source = experiment.fit(SPECS[trial.row]).source
        ranks = rank_queries(source, queries, device).ranks
        return per_user_metric(Jagged(ranks, queries.targets().offsets), trial.metric).numpy()
    lists = {
        name: lists_of_source(experiment.fit(SPECS[name]).source, queries, device)
        for name in recipe.models
    }
    examples = SourceLists.of_queries(
        lists,
        queries,
        experiment.inputs.item_counts("train"),
        trial.seed,
        known_demand(experiment.inputs, "train"),
    )
    drawn = torch.from_numpy(queries.held_out.drawn(recipe.blend.max_queries, trial.seed))
    blend = recipe.fitted_blend(examples, drawn, device).blend
    return blend.measured(examples, trial.metric, by_half=True, device=device).numpy()


@lru_cache(maxsize=1)
def inputs_in(workspace: str) -> ModelInputs:
    """Read the prepared arrays, once a process."""
    folder = Path(workspace)
    return read_inputs(folder / "build_features", folder / "embed_items", ORDER)


def read_values(trial: Trial) -> NDArray[np.float64]:
    """Read a finished trial's metric of every validation query, [Q]."""
    values: NDArray[np.float64] = np.load(trial.folder / VALUES, allow_pickle=False)
    return values
