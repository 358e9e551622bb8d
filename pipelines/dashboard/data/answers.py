"""Rank of each held-out item by model: of one run, and of several sides on their common queries.

A workspace keeps ranks in ``evaluate/per_user_<order>_<split>.parquet`` by dense rows; a bundle in
``answers-<version>.parquet`` by ids. A query is the same if the same item is held out for the same
user after as many events. Ranks beyond `DEPTH` count as not found, so each is one byte.

Axes: M queries and held-out items, S sides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.candidates.blends import BLEND, BLEND_FAST, RANKED
from pipelines.dashboard.query import NotFoundError
from pipelines.dashboard.workspaces.run import Run
from pipelines.engine.artifacts import Manifest
from pipelines.evaluation.per_user import RANK, models_in
from pipelines.inputs.tensors import released_order
from pipelines.publishing.same_queries import KEY, answers_file
from recsys.data.dataset import Sequences

Split = Literal["test", "validation"]
SERVED = "served"
"""The only model of a bundle's answers."""
DEPTH = 100
"""Places of a list; an item ranked below is not found."""
Rows = NDArray[np.int64]
Ranks = NDArray[np.uint8]


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
    order: str
    """How tied times were ordered."""
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
        return Answers(table, (SERVED,), None, "")
    split: Split = "test"
    tables = sorted((run.path / "evaluate").glob("per_user_*_test.parquet"))
    if not tables:
        split = "validation"
        tables = sorted((run.path / "evaluate").glob("per_user_*_validation.parquet"))
    if not tables:
        raise NotFoundError(
            f"{run.name} has no rank by user; run its stage evaluate: "
            f"recsys run {run.path} --until evaluate"
        )
    order = tables[0].stem.removeprefix("per_user_").removesuffix(f"_{split}")
    try:
        models = _models(tables[0], tables[0].stat().st_mtime_ns)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise NotFoundError(f"{tables[0]} cannot be read: {error}") from error
    return Answers(tables[0], models, run.path / "build_features", order, split)


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


@dataclass(frozen=True, kw_only=True)
class Dropped:
    """Queries of one side that the others did not answer, by reason."""

    num_queries: int
    reasons: Mapping[str, int] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """Reasons in words; empty if nothing was dropped."""
        return ", ".join(f"{count:,} {reason}" for reason, count in self.reasons.items() if count)


@dataclass(frozen=True, kw_only=True, eq=False)
class Joined:
    """The queries that all sides answered, users ascending."""

    sides: tuple[Side, ...]
    user_rows: Rows
    """User of each query, [M]; those of the features that are named, else below 0."""
    item_rows: Rows
    """Held-out item, [M]."""
    places: Rows
    """Events of the user before the query, [M]."""
    times: Rows | None
    """Unix seconds of the query, [M]."""
    ranks: tuple[Ranks, ...]
    """Ranks by each side, [S] of [M]: 1 to `DEPTH`, 0 if the item is not found."""
    features: Path | None
    """Folder of build_features, with attributes of users and items."""
    order: str
    split: Split = "test"
    dropped: tuple[Dropped, ...]
    """Queries that each side lost, [S]."""

    def __len__(self) -> int:
        return len(self.user_rows)

    @cached_property
    def starts(self) -> Rows:
        """Place of each user's first query, [U]."""
        changes = np.flatnonzero(np.diff(self.user_rows)) + 1
        starts: Rows = np.concatenate([[0], changes]) if len(self) else changes
        return starts

    @property
    def num_users(self) -> int:
        """Different users."""
        return len(self.starts)


def join(sides: Sequence[Side]) -> Joined:
    """Join the ranks of sides, by rows if their prepared data are equal, else by ids."""
    try:
        known = [answers(one.run) for one in sides]
        if (frame := _joined_by_rows(sides, known)) is not None:
            return _joined(sides, known, frame, [Dropped(num_queries=len(frame))] * len(sides))
        frames = [_by_ids(one, found) for one, found in zip(sides, known, strict=True)]
    except (OSError, ValueError, pl.exceptions.PolarsError) as error:
        raise NotFoundError(f"the ranks by user cannot be read: {error}") from error
    both = frames[0].rename({"rank": "rank0"})
    for place, frame in list(enumerate(frames))[1:]:
        both = both.join(frame.rename({"rank": f"rank{place}"}), on=KEY)
    return _joined(sides, known, both, [_dropped(frame, frames, both) for frame in frames])


def _coded(rank: pl.Expr) -> pl.Expr:
    return pl.when(rank.is_between(1, DEPTH)).then(rank).otherwise(0).cast(pl.UInt8).alias("rank")


def _joined_by_rows(sides: Sequence[Side], known: Sequence[Answers]) -> pl.DataFrame | None:
    """Put ranks next to each other if all tables list the same rows of the same data."""
    digests = {
        ("" if one.features is None else data_digest(one.features), one.order, one.split)
        for one in known
    }
    if len(digests) > 1 or "" in {digest for digest, _, _ in digests}:
        return None
    full: pl.DataFrame | None = None
    for place, (one, found) in enumerate(zip(sides, known, strict=True)):
        rank = _coded(pl.col(f"{RANK}{one.model}")).alias(f"rank{place}")
        frame = pl.scan_parquet(found.table).select("user_row", "item_row", rank).collect()
        if full is None:
            full = frame
        elif frame[:, :2].equals(full[:, :2]):
            full = full.hstack([frame[f"rank{place}"]])
        else:
            return None
    return full


def _by_ids(one: Side, found: Answers) -> pl.DataFrame:
    """Read user_id, item_id, place (events of the user before the query) and rank."""
    table = pl.scan_parquet(found.table)
    if found.features is None:
        return table.select(*KEY, _coded(pl.col("rank"))).collect()
    users = pl.scan_parquet(found.features / "vocabularies" / "users.parquet")
    items = pl.scan_parquet(found.features / "items.parquet").select("item_row", "item_id")
    ids = users.select(pl.col("row").alias("user_row"), pl.col("id").alias("user_id"))
    ranks = table.select("user_row", "item_row", _coded(pl.col(f"{RANK}{one.model}")))
    for other, key in (
        (_places(found).lazy(), "user_row"),
        (ids, "user_row"),
        (items, "item_row"),
    ):
        ranks = ranks.join(other, on=key, how="left", maintain_order="left")
    return ranks.select(*KEY, "rank").collect()


def _places(found: Answers) -> pl.DataFrame:
    """Count the events before each user row's query."""
    assert found.features is not None
    sequences = Sequences.load(found.features / "sequences" / found.order)
    ends = sequences.validation_end if found.split == "test" else sequences.train_end
    before = np.asarray(ends) - np.asarray(sequences.offsets[:-1])
    return pl.DataFrame({"user_row": np.arange(sequences.num_user_rows), "place": before})


def data_digest(features: Path) -> str:
    """Read the digest of the prepared data; "" if it cannot be read."""
    try:
        manifest = Manifest.read(features)
    except ValueError:
        return ""
    return "" if manifest is None else manifest.output


def _dropped(frame: pl.DataFrame, frames: Sequence[pl.DataFrame], both: pl.DataFrame) -> Dropped:
    if frame.height == both.height:
        return Dropped(num_queries=frame.height)
    lost = frame.join(both, on=KEY, how="anti")
    known, same = lost, lost
    for other in frames:
        known = known.join(other, on="user_id", how="semi")
        same = same.join(other, on=["user_id", "item_id"], how="semi")
    reasons = {
        "of users that are not in all": lost.height - known.height,
        "with another held-out item": known.height - same.height,
        "after another number of events": same.height,
    }
    return Dropped(num_queries=frame.height, reasons=reasons)


def _joined(
    sides: Sequence[Side],
    known: Sequence[Answers],
    frame: pl.DataFrame,
    dropped: Sequence[Dropped],
) -> Joined:
    """Order queries by user, and number users and items by the features of the first that has."""
    reference = next(_references(known), None)
    features, order = (None, "") if reference is None else (reference.features, reference.order)
    if "user_row" not in frame.columns:
        frame = _numbered(frame, features)
    elif reference is not None:
        before = _places(reference)["place"].to_numpy()
        frame = frame.with_columns(place=before[frame["user_row"].to_numpy()])
    if not frame["user_row"].is_sorted():
        frame = frame.sort("user_row", "item_row")
    user_rows, places = frame["user_row"].to_numpy(), frame["place"].to_numpy()
    times = None if features is None else _times(features / "sequences" / order, user_rows, places)
    return Joined(
        sides=tuple(sides),
        user_rows=user_rows,
        item_rows=frame["item_row"].to_numpy(writable=True),
        places=places,
        times=times,
        ranks=tuple(frame[f"rank{place}"].to_numpy() for place in range(len(sides))),
        features=features,
        order=order,
        split=known[0].split,
        dropped=tuple(dropped),
    )


def _times(sequences: Path, user_rows: Rows, places: Rows) -> Rows | None:
    """Read when each query was; None if there are no times, or not all of the events."""
    known = Sequences.load(sequences)
    if known.times is None or not len(user_rows) or user_rows.min() <= 0:
        return None
    if user_rows.max() >= known.num_user_rows:
        return None
    positions = np.asarray(known.offsets)[user_rows] + places
    if (positions >= np.asarray(known.offsets)[user_rows + 1]).any():
        return None
    times: Rows = np.asarray(known.times)[positions]
    return times


def _references(known: Sequence[Answers]) -> Iterator[Answers]:
    """List the sides with prepared data; a bundle that is in a workspace has that one's."""
    yield from (one for one in known if one.features is not None)
    for one in known:
        features = one.table.parent.parent / "build_features"
        if one.features is None and (features / "vocabularies" / "users.parquet").exists():
            yield one._replace(features=features, order=released_order(features))


def _numbered(frame: pl.DataFrame, features: Path | None) -> pl.DataFrame:
    """Number ids by rows; what the features do not know has numbers below 0."""
    for name in ("user", "item"):
        ids, row = f"{name}_id", f"{name}_row"
        frame = frame.with_columns((-pl.col(ids).rank("dense").cast(pl.Int64)).alias(row))
        if features is not None:
            known = pl.read_parquet(features / "vocabularies" / f"{name}s.parquet")
            known = known.select(pl.col("id").alias(ids), pl.col("row").alias("known"))
            frame = frame.join(known, on=ids, how="left")
            frame = frame.with_columns(pl.coalesce("known", row).alias(row)).drop("known")
    return frame
