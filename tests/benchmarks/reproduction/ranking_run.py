"""Run a recipe with one seed: every model, the blends, and what is served of them, refitted.

Axes: U queries, k list length.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from recsys.fitting.queries import RankedQueries
from tests.benchmarks.recipes.fit import Experiment, FittedSource
from tests.benchmarks.recipes.prepared import Prepared
from tests.benchmarks.recipes.ranking_run import RankingRun, experiment_in
from tests.benchmarks.recipes.run import (
    LEDGER,
    MeasuredSplit,
    RunSettings,
    finished_result,
    load_ranked,
    note_test_look,
    read_json,
)
from tests.benchmarks.reproduction.fitters import FITTERS

REFIT = "_refit"
"""Behind the name of a model that was refitted."""


def run_once(prepared: Prepared, directory: Path, settings: RunSettings) -> dict[str, Any]:
    """Fit and measure every row of the recipe, or read what an earlier call left.

    Args:
        prepared: The arrays and the recipe.
        directory: Folder of all runs; this one's is below it.
        settings: Order, seed, splits.
    """
    folder = directory / settings.name
    if (done := finished_result(folder, prepared, settings)) is not None:
        return done
    folder.mkdir(parents=True, exist_ok=True)
    if "test" in settings.splits:
        note_test_look(directory / LEDGER, prepared, settings)
    run = RankingRun(experiment_in(folder, prepared, settings), folder, settings, fit_by_name)
    rows = run.rows()
    if "test" in settings.splits:
        rows |= refitted_rows(run)
    return run.finish(rows, invalid_ids=invalid_ids(run))


def fit_by_name(experiment: Experiment, name: str) -> FittedSource:
    """Fit a model of a recipe."""
    return FITTERS[name](experiment)


def invalid_ids(run: RankingRun) -> float | None:
    """Say what share of the generative model's lists has no semantic ID."""
    path, codes = run.folder / "generative.npz", run.experiment.prepared.codes
    if codes is None or not path.exists():
        return None
    ranked = load_ranked(path)
    rows = [ranked[split].lists.item_rows.flatten() for split in run.settings.splits]
    listed = torch.cat(rows)
    listed = listed[listed != -1]
    inside = (listed > 0) & (listed < len(codes.codes))
    valid = inside & (codes.codes[listed.where(inside, 0)] >= 0).all(1)
    return float((~valid).double().mean()) if len(listed) else None


def refitted_rows(run: RankingRun) -> dict[str, dict[str, Any]]:
    """Refit models with the validation events and measure test alone, as what is served is.

    Each trained model takes as many passes as were best on validation, and the blend has the
    weights that were learned on what the models before listed for validation.
    """
    recipe, settings = run.experiment.recipe, replace(run.settings, splits=("test",))
    names = recipe.refitted()
    rows: dict[str, dict[str, Any]] = {}
    checkpoints = run.experiment.checkpoints
    refitted = replace(
        run.experiment,
        chosen_steps=chosen_steps(run.folder, names),
        checkpoints=checkpoints and checkpoints / "refit",
    )
    later = RankingRun(refitted, run.folder, settings, fit_by_name)
    for name in names:
        rows[name + REFIT] = later.model_row(name, row=name + REFIT)
    row = "blend_refit"
    if row in recipe.rows:
        rows[row] = later.finished(row) or refitted_blend(run, later, recipe.parts(row))
    return rows


def chosen_steps(folder: Path, names: Sequence[str]) -> dict[str, int]:
    """Read how many steps validation chose for each model that is trained by steps."""
    trainings = {name: read_json(folder / f"{name}.json")["row"]["training"] for name in names}
    return {name: one["best_step"] for name, one in trainings.items() if one is not None}


def refitted_blend(run: RankingRun, later: RankingRun, parts: Sequence[str]) -> dict[str, Any]:
    """Merge the lists of the refitted models by the weights of the models before."""
    begin = time.perf_counter()
    blend, _ = run.fitted_blend(parts)
    ranked: dict[MeasuredSplit, RankedQueries] = {
        "test": later.merged(blend, later.lists(parts, "test", REFIT))
    }
    return later.keep("blend_refit", ranked, begin, {})
