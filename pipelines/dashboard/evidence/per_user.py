"""What each run answered to each held-out query: rank of the held-out item by model.

A workspace keeps it in ``evaluate/per_user_<order>_<split>.parquet`` by dense rows; a bundle in
``answers-<version>.parquet`` beside it by ids. Both are read here as one lazily read table, so that
only the columns that are shown are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.candidates.blends import BLEND, BLEND_FAST
from pipelines.dashboard.query import NotFoundError
from pipelines.dashboard.runs.run import Run
from pipelines.engine.artifacts import Manifest
from pipelines.pages.wins import RANK, models_of
from pipelines.publishing.same_queries import answers_file
from pipelines.ranking.artefact import RANKED
from recsys.data.dataset import Sequences

Split = Literal["test", "validation"]
SPLITS: tuple[Split, ...] = get_args(Split)
KEY = ("user_id", "item_id", "place")
SERVED = "served"
"""Name of the only model of a bundle's answers."""
Rows = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Side:
    """A run and one of its models: one of those that are compared."""

    run: Run
    model: str


class Answers(NamedTuple):
    """Where a run's ranks lie."""

    table: Path
    models: tuple[str, ...]
    features: Path | None
    """Of build_features, whose rows the table is written in; None for a bundle."""
    order: str
    """How tied times were ordered."""

    @property
    def files(self) -> tuple[Path, ...]:
        """What a value computed from them depends on."""
        manifest = () if self.features is None else (self.features / "manifest.json",)
        return (self.table, *manifest)


def answers(run: Run, split: Split) -> Answers:
    """Find a run's ranks.

    Raises:
        NotFoundError: It has none; says which stage makes them.
    """
    if run.kind == "bundle":
        version = run.path.name.removeprefix("bundle-")
        table = answers_file(run.path.parent, version)
        if not table.exists() or split != "test":
            raise NotFoundError(
                f"bundle {version} has no {table.name} for the split {split}; a release writes it "
                "where its run measured test, and compares by it"
            )
        return Answers(table, (SERVED,), None, "")
    tables = sorted((run.path / "evaluate").glob(f"per_user_*_{split}.parquet"))
    if not tables:
        raise NotFoundError(
            f"{run.name} has no rank by user for the split {split}; run its stage evaluate: "
            f"recsys run --until evaluate -w {run.path}"
        )
    order = tables[0].stem.removeprefix("per_user_").removesuffix(f"_{split}")
    try:
        models = _models(tables[0], tables[0].stat().st_mtime_ns)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise NotFoundError(f"{tables[0]} cannot be read: {error}") from error
    return Answers(tables[0], models, run.path / "build_features", order)


@lru_cache(4096)
def _models(table: Path, changed: int) -> tuple[str, ...]:
    """Read which models a table has; kept until it changes."""
    return models_of(list(pl.read_parquet_schema(table)))


def served_model(run: Run, models: Sequence[str]) -> str:
    """Name the model whose list is served; the last one where none is."""
    choices = (run.served, RANKED, BLEND_FAST, BLEND, SERVED)
    return next((name for name in choices if name and name in models), models[-1])


def side(run: Run, split: Split, model: str | None = None) -> Side:
    """Choose a model of a run, by default the one that is served.

    Raises:
        NotFoundError: The run has no such model, or no ranks at all.
    """
    models = answers(run, split).models
    if model and model not in models:
        raise NotFoundError(f"{run.name} has no model {model!r}; it has {', '.join(models)}")
    return Side(run=run, model=model or served_model(run, models))


def queries(run: Run, split: Split, models: Sequence[str], *, lists: bool = False) -> pl.LazyFrame:
    """Read a run's answers lazily, users and items by their ids.

    Args:
        run: A workspace or a bundle.
        split: Of its held-out items.
        models: Whose ranks are read.
        lists: Read their lists, too: item rows, best first.

    Returns:
        user_id, item_id, place (events of the user before the query), ``rank_<model>`` (null where
        it is not found), ``top_k_<model>``; of a workspace user_row, item_row, and time (Unix
        seconds of the query) where there are times.
    """
    found = answers(run, split)
    if found.features is None:
        names = (*KEY, pl.col("rank").alias(f"{RANK}{SERVED}"))
        return pl.scan_parquet(found.table).select(names)
    columns = [f"{RANK}{model}" for model in models]
    columns += [f"top_k_{model}" for model in models if lists]
    ranks = pl.scan_parquet(found.table).select("user_row", "item_row", *columns)
    users = pl.scan_parquet(found.features / "vocabularies" / "users.parquet")
    items = pl.scan_parquet(found.features / "items.parquet")
    return (
        ranks.join(places(found, split).lazy(), on="user_row", how="left", maintain_order="left")
        .join(
            users.select(pl.col("row").alias("user_row"), pl.col("id").alias("user_id")),
            on="user_row",
            how="left",
            maintain_order="left",
        )
        .join(items.select("item_row", "item_id"), on="item_row", how="left", maintain_order="left")
    )


def places(found: Answers, split: Split) -> pl.DataFrame:
    """Say of each user row how many events come before its query, and when that is."""
    assert found.features is not None
    sequences = Sequences.load(found.features / "sequences" / found.order)
    ends = sequences.validation_end if split == "test" else sequences.train_end
    columns = {
        "user_row": np.arange(sequences.num_user_rows),
        "place": np.asarray(ends) - np.asarray(sequences.offsets[:-1]),
    }
    if sequences.times is not None:
        # A user without a held-out event has no query.
        last = max(0, sequences.num_events - 1)
        columns["time"] = np.asarray(sequences.times[np.minimum(ends, last)])
    return pl.DataFrame(columns)


def data_of(features: Path) -> str:
    """Read the digest of the prepared data; "" where it cannot be read."""
    try:
        manifest = Manifest.read(features)
    except ValueError:
        return ""
    return "" if manifest is None else manifest.output
