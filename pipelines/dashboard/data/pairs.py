"""One table of the queries that all sides answered: ids, rows, time, and a rank for each side.

A query is the same if the same item is held out for the same user after as many events. Ranks
beyond `DEPTH` count as not found.

Axes: M queries and held-out items, U users, S sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from features.schema import GIVEN
from pipelines.dashboard.context import Context
from pipelines.dashboard.data.answers import DEPTH, Answers, Side, Split, answers
from pipelines.dashboard.data.slices import Slices, cut_slices
from pipelines.dashboard.query import NotFoundError
from pipelines.evaluation.analysis import RANK
from pipelines.publishing.same_queries import KEY
from recsys.data.batch import Jagged, cut_offsets
from recsys.data.dataset import Sequences
from recsys.evaluation.ranking import per_user_metric

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, eq=False)
class Pairs:
    """The queries that all sides answered, those of a user next to each other."""

    sides: tuple[Side, ...]
    queries: pl.DataFrame
    """A row a query, [M]: user_id, item_id, place (events of the user before it), user_row and
    item_row (0 if `features` lacks them), time (Unix seconds or null), and rank0, rank1, ...: 1 to
    `DEPTH`, 0 if the side did not find the item."""
    num_answered: tuple[int, ...]
    """Queries that each side answered, [S]."""
    features: Path | None
    """Folder of build_features, with attributes of users and items."""
    split: Split = "test"

    def __len__(self) -> int:
        return len(self.queries)

    @cached_property
    def lengths(self) -> torch.Tensor:
        """Queries of each user, [U]."""
        return self.queries["user_id"].rle().struct.field("len").cast(pl.Int64).to_torch()

    @property
    def num_users(self) -> int:
        """Different users."""
        return len(self.lengths)

    @cached_property
    def owners(self) -> NDArray[np.int64]:
        """Place of each query's user, [M]."""
        found: NDArray[np.int64] = np.repeat(np.arange(self.num_users), self.lengths.numpy())
        return found

    def by_user(self, column: str, inside: Mask | None = None) -> Jagged:
        """Return the values of a column by user; with a mask, [M], those of its queries alone."""
        values = torch.from_numpy(self.queries[column].cast(pl.Int64).to_numpy(writable=True))
        if inside is None:
            return Jagged(values, cut_offsets(self.lengths))
        lengths = torch.from_numpy(np.bincount(self.owners[inside], minlength=self.num_users))
        return Jagged(values[torch.from_numpy(inside)], cut_offsets(lengths[lengths > 0]))

    def values(self, place: int, metric: str, inside: Mask | None = None) -> Floats:
        """Compute a side's metric of each user with a query inside."""
        found: Floats = per_user_metric(self.by_user(f"rank{place}", inside), metric).numpy()
        return found

    @cached_property
    def slices(self) -> Slices:
        """Ways to cut the queries."""
        return cut_slices(self.queries, self.by_user("item_row"), self.features)


def join_pairs(context: Context, sides: Sequence[Side]) -> Pairs:
    """Join the answers of sides; kept until a file changes."""
    files = [path for one in sides for path in answers(one.run).files]
    key = ("pairs", tuple((one.run.key, one.model) for one in sides))
    return context.tables.get(key, files, lambda: join(sides))


def join(sides: Sequence[Side]) -> Pairs:
    """Join the answers of sides by their ids."""
    try:
        known = [answers(one.run) for one in sides]
        frames = [_read(one, found) for one, found in zip(sides, known, strict=True)]
        queries = frames[0].rename({"rank": "rank0"})
        for place, frame in list(enumerate(frames))[1:]:
            queries = queries.join(frame.rename({"rank": f"rank{place}"}), on=KEY)
        features = _reference(known)
        queries = _with_rows(queries, features)
    except (OSError, ValueError, pl.exceptions.PolarsError) as error:
        raise NotFoundError(f"the ranks by user cannot be read: {error}") from error
    return Pairs(
        sides=tuple(sides),
        queries=queries.sort("user_row", "user_id", "item_row", "item_id"),
        num_answered=tuple(len(frame) for frame in frames),
        features=features,
        split=known[0].split,
    )


def _read(one: Side, found: Answers) -> pl.DataFrame:
    """Read user_id, item_id, place and rank of a side's queries."""
    table = pl.scan_parquet(found.table)

    def coded(rank: pl.Expr) -> pl.Expr:
        kept = pl.when(rank.is_between(1, DEPTH)).then(rank).otherwise(0)
        return kept.cast(pl.UInt8).alias("rank")

    if found.features is None:
        return table.select(*KEY, coded(pl.col("rank"))).collect()
    sequences = Sequences.load(found.features / "sequences" / GIVEN)
    ends = sequences.validation_end if found.split == "test" else sequences.train_end
    before = np.asarray(ends) - np.asarray(sequences.offsets[:-1])
    places = pl.LazyFrame({"user_row": np.arange(len(before)), "place": before})
    ranks = table.select("user_row", "item_row", coded(pl.col(f"{RANK}{one.model}")))
    for rows in (places, *(_rows(found.features, name).lazy() for name in ("user", "item"))):
        ranks = ranks.join(rows, on=rows.collect_schema().names()[0], how="left")
    return ranks.select(*KEY, "rank").collect()


def _rows(features: Path, name: str) -> pl.DataFrame:
    """Read the row and id of each user or item."""
    known = pl.read_parquet(features / "vocabularies" / f"{name}s.parquet")
    return known.select(pl.col("row").alias(f"{name}_row"), pl.col("id").alias(f"{name}_id"))


def _reference(known: Sequence[Answers]) -> Path | None:
    """Find prepared data of a side; a bundle that is in a workspace has that one's."""
    for one in known:
        if one.features is not None:
            return one.features
    for one in known:
        features = one.table.parent.parent / "build_features"
        if (features / "vocabularies" / "users.parquet").exists():
            return features
    return None


def _with_rows(queries: pl.DataFrame, features: Path | None) -> pl.DataFrame:
    """Add the rows of users and items, and when each query was."""
    unknown = pl.lit(None, pl.Int64)
    if features is None:
        zeros = [pl.lit(0, pl.Int64).alias(name) for name in ("user_row", "item_row")]
        return queries.with_columns(*zeros, unknown.alias("time"))
    for name in ("user", "item"):
        queries = queries.join(_rows(features, name), on=f"{name}_id", how="left")
    queries = queries.with_columns(pl.col("user_row", "item_row").fill_null(0).cast(pl.Int64))
    known = Sequences.load(features / "sequences" / GIVEN)
    rows = queries["user_row"].to_numpy()
    if known.times is None or not len(rows) or rows.min() <= 0:
        return queries.with_columns(unknown.alias("time"))
    positions = np.asarray(known.offsets)[rows] + queries["place"].to_numpy()
    if (positions >= np.asarray(known.offsets)[rows + 1]).any():
        return queries.with_columns(unknown.alias("time"))
    return queries.with_columns(pl.Series("time", np.asarray(known.times)[positions]))
