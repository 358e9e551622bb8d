"""Run a recipe with one seed: every model, the blends, and what is served of them, refitted.

A finished row is not made again. Lists stay in the run's folder, and blends are learned on them.

Axes: U queries, k list length.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from recsys.evaluation.ranking import distinct_targets, list_ranks
from recsys.fitting.blend import ProfileBlend, fit_blend
from recsys.fitting.queries import RankedQueries, rank_queries
from recsys.fitting.source_lists import SourceLists, known_demand
from recsys.fitting.spec import device_named
from tests.benchmarks.recipes.fit import Experiment
from tests.benchmarks.recipes.prepared import Prepared
from tests.benchmarks.recipes.recipe import BLENDS
from tests.benchmarks.recipes.run import (
    LEDGER,
    RESULT,
    MeasuredSplit,
    RunSettings,
    described,
    finished_result,
    finished_row,
    load_ranked,
    metrics_of,
    note_test_look,
    read_json,
    write_json,
    write_row,
)
from tests.benchmarks.reproduction.fitters import FITTERS

REFIT = "_refit"
"""Behind the name of a model that was refitted."""
NUM_KEPT = 100
"""Places of a blended list that are kept; metrics read 50."""


def experiment_in(folder: Path, prepared: Prepared, settings: RunSettings) -> Experiment:
    """Describe an experiment that keeps its checkpoints in a run's folder."""
    return Experiment(
        prepared=prepared,
        inputs=prepared.inputs(settings.order),
        seed=settings.seed,
        device=device_named(settings.device),
        checkpoints=folder / "checkpoints",
        shows_progress=settings.shows_progress,
    )


@dataclass(frozen=True)
class RankingRun:
    """One seed of one order, with the folder that its rows are kept in."""

    experiment: Experiment
    folder: Path
    settings: RunSettings

    def rows(self) -> dict[str, Any]:
        """Make the rows of the recipe's models and blends."""
        recipe = self.experiment.recipe
        rows = {name: self.model_row(name) for name in recipe.models()}
        blends = [name for name in BLENDS if name in recipe.rows]
        return rows | {name: self.blend_row(name) for name in blends}

    def finish(self, rows: Mapping[str, Any], **more: Any) -> dict[str, Any]:
        """Write the result of a run."""
        recipe = self.experiment.recipe
        result = {
            **described(self.experiment.prepared, self.settings),
            "seconds": round(sum(row["seconds"] for row in rows.values()), 1),
            **more,
            "rows": {name: row for name, row in rows.items() if name in recipe.rows},
        }
        write_json(self.folder / RESULT, result)
        shutil.rmtree(self.folder / "checkpoints", ignore_errors=True)
        return result

    def finished(self, row: str) -> dict[str, Any] | None:
        """Read a row that was measured before."""
        return finished_row(self.folder, row, self.experiment.prepared, self.settings)

    def keep(
        self,
        row: str,
        ranked: Mapping[MeasuredSplit, RankedQueries],
        begin: float,
        about: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Measure and write a row that was begun at a time; return its metrics."""
        metrics: dict[str, Any] = {
            **about,
            "seconds": round(time.perf_counter() - begin, 2),
            **{
                split: metrics_of(one.ranks, self.experiment.queries(split).targets())
                for split, one in ranked.items()
            },
        }
        description = described(self.experiment.prepared, self.settings)
        write_row(self.folder, row, metrics, ranked, description)
        return metrics

    def model_row(self, name: str, row: str | None = None) -> dict[str, Any]:
        """Fit one model and rank by it.

        Args:
            name: Of the model.
            row: What files and metrics are called, if not by the model's name.
        """
        row = row or name
        if (done := self.finished(row)) is not None:
            return done
        experiment, begin = self.experiment, time.perf_counter()
        fitted = FITTERS[name](experiment)
        about = {
            "fit_seconds": round(time.perf_counter() - begin, 2),
            "training": None if fitted.training is None else asdict(fitted.training),
        }
        ranked = {
            split: rank_queries(fitted.source, experiment.queries(split), experiment.device)
            for split in self.settings.splits
        }
        return self.keep(row, ranked, begin, about)

    def lists(self, models: Sequence[str], split: MeasuredSplit, suffix: str = "") -> SourceLists:
        """Read what models listed for a split."""
        lists = {
            model: load_ranked(self.folder / f"{model}{suffix}.npz")[split].lists
            for model in models
        }
        experiment = self.experiment
        return SourceLists.of_queries(
            lists,
            experiment.queries(split),
            experiment.item_counts(),
            experiment.seed,
            known_demand(experiment.fitted_on, "train"),
        )

    def fitted_blend(self, parts: Sequence[str]) -> tuple[ProfileBlend, dict[str, Any]]:
        """Choose on validation how the lists of models are merged."""
        experiment, lists = self.experiment, self.lists(parts, "validation")
        recipe = experiment.recipe
        held_out = experiment.queries("validation").held_out
        drawn = torch.from_numpy(held_out.drawn(recipe.blend.max_queries, experiment.seed))
        weights = {name: recipe.fusion_weights.get(name, 1.0) for name in lists.lists}
        return fit_blend(
            lists.of(drawn, tuple(lists.lists)),
            recipe.blend,
            weights,
            recipe.metric,
            experiment.device,
        )[:2]

    def blend_row(self, name: str) -> dict[str, Any]:
        """Merge the lists of each split: validation's halves each by weights of the other."""
        if (done := self.finished(name)) is not None:
            return done
        if "validation" not in self.settings.splits:
            raise ValueError("a blend is learned on validation; measure that split too")
        begin, parts = time.perf_counter(), self.experiment.recipe.parts(name)
        blend, document = self.fitted_blend(parts)
        blend.served.save(self.folder / name)
        about = {part: document[part] for part in ("served", "reason", "weights", "shares")}
        about["fit_seconds"] = round(time.perf_counter() - begin, 2)
        ranked = {
            split: self.merged(blend, self.lists(parts, split), by_half=split == "validation")
            for split in self.settings.splits
        }
        return self.keep(name, ranked, begin, about)

    def merged(
        self, blend: ProfileBlend, lists: SourceLists, *, by_half: bool = False
    ) -> RankedQueries:
        """Merge lists and rank the targets in what is kept of them."""
        top = blend.merged(lists, NUM_KEPT, by_half=by_half, device=self.experiment.device)
        return RankedQueries(top, list_ranks(top.item_rows, distinct_targets(lists.targets)).values)


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
    run = RankingRun(experiment_in(folder, prepared, settings), folder, settings)
    rows = run.rows()
    if "test" in settings.splits:
        rows |= refitted_rows(run)
    return run.finish(rows, invalid_ids=invalid_ids(run))


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
    later = RankingRun(refitted, run.folder, settings)
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
