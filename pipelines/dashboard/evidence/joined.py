"""Two to five sides on the queries that all of them answered.

A query is the same where the same item is held out for the same user behind as many events. Ranks
beyond `DEPTH` count as not found, so that each is one byte.

Axes: M queries and held-out items, S sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.dashboard.context import Context
from pipelines.dashboard.evidence.per_user import (
    KEY,
    Answers,
    Rows,
    Side,
    Split,
    answers,
    data_of,
    places,
    queries,
)
from pipelines.dashboard.query import NotFoundError
from pipelines.inputs.tensors import released_order
from pipelines.pages.wins import RANK
from recsys.data.dataset import Sequences

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
