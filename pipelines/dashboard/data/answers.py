"""What each run answered to each held-out query: rank of the held-out item by model.

A workspace keeps it in ``evaluate/per_user_<order>_<split>.parquet`` by dense rows; a bundle in
``answers-<version>.parquet`` beside it by ids. Both are read here as one lazily read table, so that
only the columns that are shown are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.candidates.blends import BLEND, BLEND_FAST
from pipelines.dashboard.context import Context
from pipelines.dashboard.query import NotFoundError
from pipelines.dashboard.workspaces.run import Run
from pipelines.engine.artifacts import Manifest
from pipelines.inputs.tensors import released_order
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


DEPTH = 100
"""Places of a list; what is ranked below is not found."""
Ranks = NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class Dropped:
    """Queries of one side that the others did not answer, by reason."""

    num_queries: int
    """Before."""
    other_users: int
    """Their user is not in every other side."""
    other_items: int
    """Another item is held out."""
    other_histories: int
    """The same item behind another number of events."""

    @property
    def words(self) -> str:
        """Say it; empty where nothing was dropped."""
        reasons = {
            "of users that are not in all": self.other_users,
            "with another held-out item": self.other_items,
            "behind another number of events": self.other_histories,
        }
        parts = [f"{count:,} {reason}" for reason, count in reasons.items() if count]
        return ", ".join(parts)


@dataclass(frozen=True, kw_only=True, eq=False)
class Joined:
    """The queries that all sides answered, users ascending."""

    sides: tuple[Side, ...]
    user_rows: Rows
    """[M]; of `features` where there are some, else any numbers."""
    item_rows: Rows
    places: Rows
    times: Rows | None
    ranks: tuple[Ranks, ...]
    """Of each side, [S] of [M]: 1 to `DEPTH`, 0 where the item is not found."""
    features: Path | None
    """Of build_features: where attributes of users and items are read."""
    order: str
    dropped: tuple[Dropped, ...]
    """Of each side, [S]."""

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


def joined(context: Context, sides: Sequence[Side], split: Split) -> Joined:
    """Join sides on their same queries; kept until a file changes."""
    found = [answers(one.run, split) for one in sides]
    files = [path for one in found for path in one.files]
    key = ("joined", split, tuple((one.run.key, one.model) for one in sides))
    return context.tables.get(key, files, lambda: join(tuple(sides), split))


def join(sides: tuple[Side, ...], split: Split) -> Joined:
    """Read and join.

    Sides of the same prepared data are joined by rows, others by ids.

    Raises:
        NotFoundError: A table is gone or cannot be read.
    """
    try:
        frames = [_ranks(one, split) for one in sides]
        known = [answers(one.run, split) for one in sides]
        alike = frames[0].select("user_row", "item_row") if _same_rows(known) else None
        if alike is not None and all(frame[:, :2].equals(alike) for frame in frames[1:]):
            full = frames[0].hstack([frame["rank"].alias(f"rank{s}") for s, frame in _rest(frames)])
            dropped = tuple(_nothing(len(frame)) for frame in frames)
            return _laid_out(sides, split, full.rename({"rank": "rank0"}), dropped)
        by_ids = [
            queries(one.run, split, [one.model]).select(*KEY, _coded(one.model)).collect()
            for one in sides
        ]
    except (OSError, ValueError, pl.exceptions.PolarsError) as error:
        raise NotFoundError(f"the ranks by user cannot be read: {error}") from error
    both = by_ids[0].rename({"rank": "rank0"})
    for place, frame in _rest(by_ids):
        both = both.join(frame.rename({"rank": f"rank{place}"}), on=KEY)
    dropped = tuple(_dropped(frame, by_ids, both) for frame in by_ids)
    return _laid_out(sides, split, both, dropped)


def _rest(frames: Sequence[pl.DataFrame]) -> list[tuple[int, pl.DataFrame]]:
    return list(enumerate(frames))[1:]


def _coded(model: str) -> pl.Expr:
    rank = pl.col(f"{RANK}{model}")
    return pl.when(rank.is_between(1, DEPTH)).then(rank).otherwise(0).cast(pl.UInt8).alias("rank")


def _ranks(one: Side, split: Split) -> pl.DataFrame:
    """Read user_row, item_row and rank; nothing but the height of a bundle's answers."""
    found = answers(one.run, split)
    table = pl.scan_parquet(found.table)
    if found.features is None:
        return table.select(pl.len()).collect()
    return table.select("user_row", "item_row", _coded(one.model)).collect()


def _same_rows(known: Sequence[Answers]) -> bool:
    """Whether all tables number users and items alike."""
    digests = set()
    for one in known:
        if one.features is None:
            return False
        digests.add((data_of(one.features), one.order))
    return len(digests) == 1 and "" not in {digest for digest, _ in digests}


def _nothing(num_queries: int) -> Dropped:
    return Dropped(num_queries=num_queries, other_users=0, other_items=0, other_histories=0)


def _dropped(
    frame: pl.DataFrame, all_of_them: Sequence[pl.DataFrame], both: pl.DataFrame
) -> Dropped:
    if frame.height == both.height:
        return _nothing(frame.height)
    lost = frame.join(both, on=KEY, how="anti")
    known, same = lost, lost
    for other in all_of_them:
        known = known.join(other, on="user_id", how="semi")
        same = same.join(other, on=["user_id", "item_id"], how="semi")
    return Dropped(
        num_queries=frame.height,
        other_users=lost.height - known.height,
        other_items=known.height - same.height,
        other_histories=same.height,
    )


def _laid_out(
    sides: tuple[Side, ...], split: Split, frame: pl.DataFrame, dropped: tuple[Dropped, ...]
) -> Joined:
    """Order queries by user, and number users and items by the features of the first that has."""
    reference = next(iter(_references(sides, split)), None)
    features, order = (None, "") if reference is None else (reference.features, reference.order)
    if "user_row" not in frame.columns:
        frame = _numbered(frame, features)
    elif reference is not None:
        known = places(reference, split)["place"].to_numpy()
        frame = frame.with_columns(place=known[frame["user_row"].to_numpy()])
    if not frame["user_row"].is_sorted():
        frame = frame.sort("user_row", "item_row")
    user_rows, before = frame["user_row"].to_numpy(), frame["place"].to_numpy()
    return Joined(
        sides=sides,
        user_rows=user_rows,
        item_rows=frame["item_row"].to_numpy(writable=True),
        places=before,
        times=None
        if features is None
        else _times(features / "sequences" / order, user_rows, before),
        ranks=tuple(frame[f"rank{place}"].to_numpy() for place in range(len(sides))),
        features=features,
        order=order,
        dropped=dropped,
    )


def _times(sequences: Path, user_rows: Rows, before: Rows) -> Rows | None:
    """Read when each query was; None where there are no times, or not all of the events."""
    known = Sequences.load(sequences)
    if known.times is None or not len(user_rows) or user_rows.min() <= 0:
        return None
    if user_rows.max() >= known.num_user_rows:
        return None
    positions = np.asarray(known.offsets)[user_rows] + before
    if (positions >= np.asarray(known.offsets)[user_rows + 1]).any():
        return None
    times: Rows = np.asarray(known.times)[positions]
    return times


def _references(sides: Sequence[Side], split: Split) -> list[Answers]:
    """List the sides with prepared data; a bundle that lies in a workspace has that one's."""
    found = [answers(one.run, split) for one in sides]
    whole = [one for one in found if one.features is not None]
    for one in found:
        features = one.table.parent.parent / "build_features"
        if one.features is None and (features / "vocabularies" / "users.parquet").exists():
            whole.append(one._replace(features=features, order=released_order(features)))
    return whole


def _numbered(frame: pl.DataFrame, features: Path | None) -> pl.DataFrame:
    """Number ids by rows; what the features do not know has numbers below 0."""
    for name in ("user", "item"):
        ids, row = pl.col(f"{name}_id"), f"{name}_row"
        frame = frame.with_columns((-ids.rank("dense").cast(pl.Int64)).alias(row))
        if features is not None:
            path = features / "vocabularies" / f"{name}s.parquet"
            known = pl.read_parquet(path).select(pl.col("id").alias(ids.meta.output_name()), "row")
            frame = frame.join(known, on=ids.meta.output_name(), how="left").with_columns(
                pl.coalesce("row", row).alias(row)
            )
            frame = frame.drop("row")
    return frame
