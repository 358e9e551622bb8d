"""Run a recipe with one seed: every model, the blends, and what is served of them, refitted.

Axes: none; lists stay in the run's folder.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from recsys.evaluation.ranking import list_ranks
from recsys.reproduction.fitting import Experiment
from recsys.reproduction.prepared import Prepared
from recsys.reproduction.ranking import Ranked
from recsys.reproduction.recipe import BLENDS
from recsys.reproduction.run import (
    LEDGER,
    RESULT,
    MeasuredSplit,
    RunSettings,
    blended_in_parts,
    described,
    device_named,
    finished_row,
    invalid_ids,
    keep_row,
    learned_on_validation,
    measured_blend,
    measured_model,
    metrics_by_split,
    note_test_look,
    read_json,
    read_result,
    source_lists,
    write_json,
)

AGAIN = "_refit"
"""Behind the name of a model that was fitted again."""


def run_once(prepared: Prepared, directory: Path, settings: RunSettings) -> dict[str, Any]:
    """Fit and measure every row of the recipe, or read what an earlier call left.

    With ``settings.only`` the other rows, and the result, are left to other calls.

    Args:
        prepared: The arrays and the recipe.
        directory: Folder of all runs; this one's is below it.
        settings: Order, seed, splits.
    """
    folder, recipe = directory / settings.name, prepared.recipe
    done = read_result(folder / RESULT, prepared)
    if done is not None and set(settings.splits) <= set(done["splits"]):
        return done
    folder.mkdir(parents=True, exist_ok=True)
    experiment = Experiment(
        prepared=prepared,
        sequences=prepared.order(settings.order),
        seed=settings.seed,
        device=device_named(settings.device),
        checkpoints=folder / "checkpoints",
        shows_progress=settings.shows_progress,
    )
    if "test" in settings.splits:
        note_test_look(directory / LEDGER, prepared, settings)
    rows: dict[str, dict[str, Any]] = {}
    for name in recipe.models():
        if does(settings, name):
            rows[name] = measured_model(experiment, name, folder, settings)
    for name in BLENDS:
        if name in recipe.rows and does(settings, name):
            rows[name] = measured_blend(experiment, name, folder, settings)
    if "test" in settings.splits:
        rows |= refitted_rows(experiment, folder, settings)
    result = {
        **described(prepared, settings),
        "seconds": round(sum(row["seconds"] for row in rows.values()), 1),
        "invalid_ids": invalid_ids(folder, prepared.codes, settings.splits),
        "rows": {name: row for name, row in rows.items() if name in recipe.rows},
    }
    if not settings.only:
        write_json(folder / RESULT, result)
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return result


def does(settings: RunSettings, row: str) -> bool:
    """Say whether this call is to make a row."""
    return not settings.only or row in settings.only


def refitted_rows(
    experiment: Experiment, folder: Path, settings: RunSettings
) -> dict[str, dict[str, Any]]:
    """Fit models again with the validation events and measure test alone, as what is served is.

    Each trained model takes as many passes as were best on validation, and the blend has the
    weights that were learned on what the models before listed for validation.
    """
    recipe, on_test = experiment.recipe, replace(settings, splits=("test",))
    names = [name for name in recipe.refitted() if does(settings, name + AGAIN)]
    rows: dict[str, dict[str, Any]] = {}
    checkpoints = None if experiment.checkpoints is None else experiment.checkpoints / "refit"
    again = replace(experiment, chosen_steps=chosen_steps(folder, names), checkpoints=checkpoints)
    for name in names:
        rows[name + AGAIN] = measured_model(again, name, folder, on_test, row=name + AGAIN)
    if "blend_refit" in recipe.rows and does(settings, "blend_refit"):
        rows["blend_refit"] = refitted_blend(experiment, again, folder, on_test)
    return rows


def chosen_steps(folder: Path, names: Sequence[str]) -> dict[str, int]:
    """Read how many steps validation chose for each model that is trained by steps."""
    found = {}
    for name in names:
        training = read_json(folder / f"{name}.json")["row"]["training"]
        if training is not None:
            found[name] = training["best_step"]
    return found


def refitted_blend(
    experiment: Experiment, again: Experiment, folder: Path, settings: RunSettings
) -> dict[str, Any]:
    """Merge the lists of the models that were fitted again."""
    prepared = experiment.prepared
    done = finished_row(folder, "blend_refit", prepared, settings)
    if done is not None:
        return done
    begin = time.perf_counter()
    parts = experiment.recipe.parts("blend_refit")
    blend = learned_on_validation(experiment, source_lists(folder, parts, "validation"))
    asked = again.question("test")
    merged = blended_in_parts(
        blend,
        source_lists(folder, parts, "test", AGAIN),
        asked.history_lengths(),
        again.item_counts(),
        again.device,
    )
    ranks = list_ranks(merged.item_rows, asked.held_out.targets).values
    found: Mapping[MeasuredSplit, Ranked] = {"test": Ranked(merged, ranks)}
    numbers = {
        "seconds": round(time.perf_counter() - begin, 2),
        **metrics_by_split(experiment, found),
    }
    keep_row(folder, "blend_refit", numbers, found, described(prepared, settings))
    return numbers
