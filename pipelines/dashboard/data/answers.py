"""Files with the rank of each held-out item by model, and the models of a run.

A workspace keeps ranks in ``evaluate/per_user_<order>_<split>.parquet`` by dense rows; a bundle in
``answers-<version>.parquet`` by ids.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import polars as pl

from features.schema import GIVEN
from pipelines.candidates.blends import BLEND, BLEND_FAST, RANKED
from pipelines.config.operation import TIMED
from pipelines.dashboard.context import Context
from pipelines.dashboard.query import NotFoundError
from pipelines.dashboard.workspaces.files import read_or_empty
from pipelines.dashboard.workspaces.run import Run
from pipelines.engine.decisions import LOG, decision_on
from pipelines.engine.formats import duration, size
from pipelines.evaluation.analysis import ANALYSIS, Analysis, models_in
from pipelines.publishing.same_queries import answers_file

COSTS = {
    "seconds": "training",
    "peak_memory": "memory of training",
    "bundle_bytes": "size of the bundle",
    "list_ms": "time of a list",
}


class Measures(NamedTuple):
    """Measures of one side; unknown ones are absent."""

    beyond_accuracy: Mapping[str, float] = {}
    """By measure, such as coverage@10."""
    costs: Mapping[str, float | None] = {}
    """By the names of `COSTS`: seconds and bytes of all stages, of the bundle, median of a list."""


def cost_words(name: str, value: float) -> str:
    """Format a cost with its unit."""
    if name == "seconds":
        return duration(value)
    return f"{value:.1f} ms" if name == "list_ms" else size(value)


def read_measures(context: Context, side: Side) -> Measures:
    """Read a side's measures; missing and broken files leave them out."""
    run, bundle = side.run, None
    measured: Side | None = side
    if run.kind == "bundle":
        bundle, maker = run.path, context.stores.maker(run)
        # A workspace that released another bundle since then measured that one.
        if maker is None or maker.bundles[:1] != tuple(run.bundles[:1]) or maker.served is None:
            measured = None
        else:
            measured = Side(run=maker, model=maker.served)
    else:
        made = (one for one in context.stores.bundles() if one.made_by == run.key)
        newest = {*run.bundles[:1]}
        bundle = next((one.path for one in made if newest & {*one.bundles}), None)
    files = [run.path / "manifest.json"]
    files += [] if bundle is None else [bundle, bundle.parent / LOG]
    files += [] if measured is None else [measured.run.path / "evaluate" / ANALYSIS]

    def read() -> Measures:
        costs: dict[str, float | None] = {"seconds": run.seconds, "peak_memory": run.peak_memory}
        if bundle is not None:
            costs |= _bundle_costs(bundle)
        lists = {} if measured is None else _beyond_accuracy(measured)
        return Measures(lists, costs)

    return context.cache.get(("measures", run.key, side.model), files, read)


def _beyond_accuracy(side: Side) -> Mapping[str, float]:
    try:
        found = answers(side.run)
        analysis = Analysis.load(side.run.path / "evaluate").orders[GIVEN][found.split]
        model = analysis.models[side.model]
    except (OSError, ValueError, KeyError, TypeError, NotFoundError):
        return {}
    return {name: value for name, value in model.beyond_accuracy.items() if math.isfinite(value)}


def _bundle_costs(bundle: Path) -> dict[str, float | None]:
    """Read the size of a bundle, and the time of a list that the gate measured."""
    costs: dict[str, float | None] = {}
    files = read_or_empty(bundle / "manifest.json").get("files")
    if isinstance(files, dict):
        costs["bundle_bytes"] = sum(
            one.get("size", 0) for one in files.values() if isinstance(one, dict)
        )
    try:
        written = decision_on(bundle.parent, bundle.name.removeprefix("bundle-"), None)
    except (OSError, ValueError):
        return costs
    for verdict in () if written is None else written.decision.verdicts:
        if verdict.get("name") == TIMED and verdict.get("value") is not None:
            costs["list_ms"] = float(verdict["value"])
    return costs


Split = Literal["test", "validation"]
SERVED = "served"
"""The only model of a bundle's answers."""
DEPTH = 100
"""Places of a list; an item ranked below is not found."""
LISTED = 20
"""Places of a list that are kept."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """A run and one of its models: one of those that are compared."""

    run: Run
    model: str


class Answers(NamedTuple):
    """Files with a run's ranks."""

    table: Path
    models: tuple[str, ...]
    features: Path | None
    """Folder of build_features, whose rows the table is written in; None for a bundle."""
    split: Split = "test"

    @property
    def files(self) -> tuple[Path, ...]:
        """Files that a value computed from them depends on."""
        manifest = () if self.features is None else (self.features / "manifest.json",)
        return (self.table, *manifest)


def answers(run: Run) -> Answers:
    """Find a run's ranks on test, else on validation."""
    if run.kind == "bundle":
        version = run.path.name.removeprefix("bundle-")
        table = answers_file(run.path.parent, version)
        if not table.exists():
            raise NotFoundError(
                f"bundle {version} has no {table.name}; a release writes it if its run measured "
                "test, and compares by it"
            )
        return Answers(table, (SERVED,), None)
    splits: tuple[Split, ...] = ("test", "validation")
    for split in splits:
        for table in sorted((run.path / "evaluate").glob(f"per_user_{GIVEN}_{split}.parquet")):
            try:
                models = _models(table, table.stat().st_mtime_ns)
            except (OSError, pl.exceptions.PolarsError) as error:
                raise NotFoundError(f"{table} cannot be read: {error}") from error
            return Answers(table, models, run.path / "build_features", split)
    raise NotFoundError(
        f"{run.name} has no rank by user; run its stage evaluate: "
        f"recsys run {run.path} --until evaluate"
    )


@lru_cache(4096)
def _models(table: Path, changed: int) -> tuple[str, ...]:
    """Read which models a table has; kept until it changes."""
    return models_in(list(pl.read_parquet_schema(table)))


def has_ranks(run: Run, at_least: int = 1) -> bool:
    """Return whether a run keeps ranks by user, of at least that many models."""
    try:
        return len(answers(run).models) >= at_least
    except NotFoundError:
        return False


def served_model(run: Run, models: Sequence[str]) -> str:
    """Return the model whose list is served; the last one if none is."""
    choices = (run.served, RANKED, BLEND_FAST, BLEND, SERVED)
    return next((name for name in choices if name and name in models), models[-1])


def side(run: Run, model: str | None = None) -> Side:
    """Choose a model of a run, by default the one that is served."""
    models = answers(run).models
    if model and model not in models:
        raise NotFoundError(f"{run.name} has no model {model!r}; it has {', '.join(models)}")
    return Side(run=run, model=model or served_model(run, models))
