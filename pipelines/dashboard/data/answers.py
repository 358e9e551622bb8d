"""Files with the rank of each held-out item by model, and the models of a run.

A workspace keeps ranks in ``evaluate/per_user_<order>_<split>.parquet`` by dense rows; a bundle in
``answers-<version>.parquet`` by ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import polars as pl

from features.schema import GIVEN
from pipelines.candidates.blends import BLEND, BLEND_FAST, RANKED
from pipelines.dashboard.query import NotFoundError
from pipelines.dashboard.workspaces.run import Run
from pipelines.evaluation.per_user import models_in
from pipelines.publishing.same_queries import answers_file

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
