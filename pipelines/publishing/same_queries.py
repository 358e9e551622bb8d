"""The champion's and the challenger's ranks of the same held-out items.

The challenger's ranks come from its evaluation, of models fitted on the training part. The
champion's come from its own evaluation, for users with the same held-out items after as many events
(``answers-<version>.parquet`` next to the bundles), or else from its bundle, for events newer than
all that it was fitted on. Its models may know held-out parts that the challenger's lack
(`SameQueries.ahead`); a loss then says nothing. Queries that a side was fitted on are left out.

Axes: Q queries, M targets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.config.operation import ReleaseConfig
from pipelines.engine.artifacts import read_json
from recsys.data.batch import Jagged
from recsys.data.dataset import HeldOut, Sequences, ragged
from recsys.data.durable import replace_file
from serving.bundle.load import Bundle
from serving.bundle.manifest import CURRENT
from serving.bundle.users import Users
from serving.online.store import RecentEvent, Visitor
from serving.recommend import Recommender
from serving.schemas import Context, Request
from serving.surfaces import HOME

Rows = NDArray[np.int64]
KEY = ("user_id", "item_id", "place")
MAX_AHEAD = 0.01
"""Share of events that one side may be fitted on and the other not."""
SEED = 0


class SameQueries(NamedTuple):
    """Queries that both answered."""

    champion: Jagged
    """Rank of each target from 1, 0 where it is not listed, Q queries."""
    challenger: Jagged
    targets: Jagged
    """Item rows of the challenger's run."""
    num_events: Rows
    times: Rows | None
    """Unix seconds of the query, [Q]."""
    by_bundle: bool
    ahead: float
    """Share of the events up to the champion's release that its models were fitted on and the
    challenger's measured ones were not; 0 where both are of their evaluations."""

    @property
    def alike(self) -> bool:
        """True if a loss of the challenger is its own."""
        return self.ahead <= MAX_AHEAD

    def __len__(self) -> int:
        return len(self.num_events)


class RunEvents(NamedTuple):
    """The events of the challenger's run."""

    sequences: Sequences
    item_ids: list[str]
    user_ids: list[str]
    event_types: Sequence[str] = ()
    """By row."""

    @classmethod
    def load(cls, features: Path, sequences: Sequences) -> RunEvents:
        """Read the ids of the artefact of build_features."""
        described = read_json(features / "features.json")
        items = pl.read_parquet(features / "items.parquet", columns=["item_row", "item_id"])
        users = pl.read_parquet(features / "vocabularies" / "users.parquet")
        ids = (["", *items.sort("item_row")["item_id"]], ["", *users.sort("row")["id"]])
        return cls(sequences, *ids, ["", *described.get("event_types", ())])


def answers_file(bundles: Path, version: str) -> Path:
    """Return the file of the answers of a release's evaluated models."""
    return bundles / f"answers-{version}.parquet"


def build_answers(table: pl.DataFrame, row: str, run: RunEvents) -> pl.DataFrame:
    """Build a run's answers to its test queries; the rank is null if an item is not listed."""
    sequences = run.sequences
    positions = HeldOut.of(sequences, "test").positions
    users = sequences.users_of(positions)
    places = positions - np.asarray(sequences.offsets)[users]
    queries = pl.DataFrame({"user_row": users, "position": positions, "place": places})
    ranks = table.select("user_row", "item_row", pl.col(f"rank_{row}").alias("rank"))
    found = ranks.join(queries, on="user_row").sort("user_row", "item_row")
    user_rows, item_rows = found["user_row"].to_numpy(), found["item_row"].to_numpy()
    return found.with_columns(
        pl.Series("user_id", np.array(run.user_ids, object)[user_rows], pl.String),
        pl.Series("item_id", np.array(run.item_ids, object)[item_rows], pl.String),
    )


def standard_error(answers: pl.DataFrame | None, depth: int) -> float:
    """Standard error of the users' mean discounted gain at a depth; 0 without two users."""
    if answers is None:
        return 0.0
    listed = pl.col("rank").is_between(1, depth)
    gain = pl.when(listed).then(1 / (1 + pl.col("rank")).log(2)).otherwise(0.0)
    # In an order of their own: sums round, and a bundle's digest has them.
    users = answers.group_by("user_id", maintain_order=True)
    gains = users.agg(gain.mean().alias("gain"))["gain"].to_numpy()
    return float(gains.std(ddof=1) / np.sqrt(len(gains))) if len(gains) > 1 else 0.0


def write_answers(bundles: Path, version: str, answers: pl.DataFrame) -> None:
    """Keep a release's answers for the gate of the next one; remove those of deleted bundles."""
    replace_file(answers_file(bundles, version), answers.select(*KEY, "rank").write_parquet)
    for path in bundles.glob("answers-*.parquet"):
        if not (bundles / f"bundle-{path.stem.removeprefix('answers-')}").exists():
            path.unlink()


def same_queries(
    answers: pl.DataFrame,
    run: RunEvents,
    bundles: Path,
    champion: str,
    *,
    config: ReleaseConfig,
    seed: int,
    loaded: Bundle | None = None,
) -> SameQueries:
    """Find the champion's answer to each query that it had not seen the answer of."""
    path = answers_file(bundles, champion)
    before = pl.read_parquet(path) if path.exists() else None
    stored = same_stored_queries(answers, before, run, config=config, seed=seed)
    if len(stored) >= config.min_compared:
        return stored
    recommender = Recommender.load(bundles / CURRENT, loaded=loaded)
    known = recommender.bundle.users
    queried = answers.unique("user_row", keep="first", maintain_order=True)
    queried = queried.filter(pl.Series(_is_newer(queried, run, known)))
    limit = min(config.max_compared, config.max_queried)
    queried = _of_users(queried, _drawn(queried["user_row"].to_numpy(), limit, seed))
    lists = dict(_lists(queried, run, recommender, config.depth))
    answered = answers.join(queried, on="user_row", how="semi")
    pairs = answered.select("user_id", "item_id").iter_rows()
    ranks = [lists[user_id].get(item_id) for user_id, item_id in pairs]
    answered = answered.with_columns(pl.Series("champion", ranks, dtype=pl.Int64))
    return _paired(answered, run, by_bundle=True, ahead=_ahead(run, known))


def _of_users(frame: pl.DataFrame, user_rows: Rows) -> pl.DataFrame:
    return frame.filter(pl.col("user_row").is_in(user_rows.tolist()))


def _ahead(run: RunEvents, users: Users) -> float:
    """Share of the run's events that a bundle was fitted on and the run's training part lacks."""
    sequences, newest = run.sequences, users.newest_time
    starts, ends = np.asarray(sequences.offsets[:-1]), np.asarray(sequences.offsets[1:])
    trained = np.asarray(sequences.train_end)
    if sequences.times is not None and newest is not None:
        old = np.concatenate([[0], np.cumsum(np.asarray(sequences.times) <= newest)])
        both, theirs = old[trained] - old[starts], old[ends] - old[starts]
    else:
        theirs = np.array([_num_known(users, user_id) for user_id in run.user_ids], np.int64)
        both = np.minimum(theirs, trained - starts)
    return 1 - float(both.sum()) / max(1, int(theirs.sum()))


def same_stored_queries(
    answers: pl.DataFrame,
    champion: pl.DataFrame | None,
    run: RunEvents,
    *,
    config: ReleaseConfig,
    seed: int,
) -> SameQueries:
    """Pair two evaluations' answers to the same queries, at most ``max_compared`` of them.

    A user counts if all held-out items are the same.
    """
    if champion is None:
        champion = answers.clear()
    before = champion.select(*KEY, pl.col("rank").cast(pl.Int64).alias("champion"))
    joined = answers.join(before, on=KEY)
    for frame in (answers, before):
        num_both, num = joined.group_by("user_id").len(), frame.group_by("user_id").len()
        joined = joined.join(num_both.join(num, on=["user_id", "len"]), on="user_id", how="semi")
    users = joined["user_row"].unique().to_numpy()
    return _paired(_of_users(joined, _drawn(users, config.max_compared, seed)), run)


def _drawn(user_rows: Rows, limit: int, seed: int) -> Rows:
    """Draw at most ``limit`` users by the seed, ascending."""
    ordered = np.sort(user_rows)
    if len(ordered) <= limit:
        return ordered
    rng = np.random.default_rng([seed, limit])
    return np.sort(rng.choice(ordered, limit, replace=False))


def _is_newer(queries: pl.DataFrame, run: RunEvents, users: Users) -> NDArray[np.bool_]:
    """Mark queries whose first target is newer than all events of a bundle, [Q]."""
    positions, newest = queries["position"].to_numpy(), users.newest_time
    times = run.sequences.times
    if (times is None) != (users.times is None):
        return np.zeros(len(positions), np.bool_)
    if times is not None:
        newer: NDArray[np.bool_] = np.asarray(times)[positions] > (newest or 0)
        return newer
    known = [_num_known(users, user_id) for user_id in queries["user_id"]]
    return np.asarray(np.array(known, np.int64) <= queries["place"].to_numpy())


def _num_known(users: Users, user_id: str) -> int:
    return len(users.history(users.row_of(user_id) or 0))


def _lists(
    queries: pl.DataFrame, run: RunEvents, recommender: Recommender, depth: int
) -> Iterator[tuple[str, Mapping[str, int]]]:
    """Iterate over users with the rank of each item of the champion's list.

    What the bundle does not know of the user's events reaches it as a visitor's live events do.
    """
    sequences, users = run.sequences, recommender.bundle.users
    for user_id, position, place in queries.select("user_id", "position", "place").iter_rows():
        begin = max(position - place, position - HOME.max_history)
        moment = None
        if sequences.times is None:
            begin = max(begin, position - place + _num_known(users, user_id))
            seconds = [0] * (position - begin)
        else:
            # Those that the bundle knows too are recognised by their times.
            seconds = np.asarray(sequences.times[begin:position]).tolist()
            moment = max(0, int(sequences.times[position]))
        names = [""] * (position - begin)
        if sequences.event_types is not None:
            names = [run.event_types[row] for row in sequences.event_types[begin:position].tolist()]
        events = [
            RecentEvent(run.item_ids[row], name, 1_000 * second)
            for row, name, second in zip(
                sequences.item_rows[begin:position].tolist(), names, seconds, strict=True
            )
        ]
        request = Request(user_id=user_id, k=depth, context=Context(unix_time=moment))
        made = recommender.make(request, visitor=Visitor(events=events), seed=SEED)
        items = made.reply.items
        yield user_id, {item.item_id: rank for rank, item in enumerate(items, start=1)}


def _paired(
    found: pl.DataFrame, run: RunEvents, *, by_bundle: bool = False, ahead: float = 0.0
) -> SameQueries:
    """Collect both ranks by query, users ascending."""
    found = found.sort("user_row", "item_row")
    queries = found.group_by("user_row", maintain_order=True).agg(
        pl.col("position").first(), pl.col("place").first(), pl.len().alias("targets")
    )
    lengths = queries["targets"].to_numpy().astype(np.int64)

    def ragged_column(name: str) -> Jagged:
        return ragged(found[name].fill_null(0).to_numpy().astype(np.int64), lengths)

    times = run.sequences.times
    return SameQueries(
        champion=ragged_column("champion"),
        challenger=ragged_column("rank"),
        targets=ragged_column("item_row"),
        num_events=queries["place"].to_numpy().astype(np.int64),
        times=None if times is None else np.asarray(times)[queries["position"].to_numpy()],
        by_bundle=by_bundle,
        ahead=ahead,
    )
