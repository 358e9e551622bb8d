"""Strangers' data: logs cut from the registry's sets and drawn worlds, under names of their own.

A set is developed on, or held out: measured once, at the end. Of a set of the registry the former
leave each user's last event out altogether, so that no look at them is a look at a test split; the
latter are of other users and keep it, so each run of one is a line of the ledger.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from pipelines.datasets.fetch import fetch
from pipelines.datasets.registry import find_dataset
from tests.benchmarks.strangers.worlds import RepeatWorld, log_of


class Log(NamedTuple):
    """A stranger's files before they are named."""

    events: pl.DataFrame
    """``user``, ``item`` and what else there is (``time`` in unix seconds, ``order``, ``stars``),
    each user's events together and in order."""
    items: pl.DataFrame | None = None
    """``item``, ``title`` and ``labels`` with | between them."""


@dataclass(frozen=True, kw_only=True)
class StrangersSet:
    """A stranger's log and what the stranger calls its columns."""

    has: str
    """What a reader should know of it."""
    make: Callable[[], Log]
    names: Mapping[str, str] = field(default_factory=dict)
    """The files' column names by ours."""
    source: str = "drawn"
    """Of the registry; a held-out set's test split is looked at."""
    held_out: bool = False
    repeats: bool = False
    """Whether users take items again, so that the next event is judged too, old items or new."""


def cut(
    source: str,
    *,
    part: tuple[int, int],
    keep: tuple[str, ...] = (),
    texts: bool = False,
    whole: bool = False,
) -> Log:
    """Cut users out of a set of the registry.

    Args:
        source: Its name.
        part: Takes users whose place, in an order drawn once for all cuts, is from the first to
            before the second thousandth, so that two cuts share no user.
        keep: Columns beside user and item: ``time``, ``order`` or ``stars``.
        texts: Whether there is a catalogue.
        whole: Whether each user's last event, the literature's test, stays.
    """
    found = fetch(find_dataset(source))
    events = pl.read_parquet(_path(found.table("events")))
    order = "sequence_index" if "sequence_index" in events.columns else "event_time"
    events = events.with_row_index("row").sort("user_id", order, "row")
    users = events["user_id"].unique().sort()
    drawn = np.random.default_rng(20_26).permutation(len(users))
    first, end = (share * len(users) // 1000 for share in part)
    events = events.filter(
        pl.col("user_id").is_in(users.gather(np.sort(drawn[first:end])).implode())
    )
    if not whole:
        events = events.filter(pl.int_range(pl.len()).reverse().over("user_id") > 0)
    columns = {
        "time": lambda: pl.col("event_time").dt.epoch("s"),
        "order": lambda: pl.int_range(pl.len()).over("user_id"),
        "stars": lambda: pl.col("value"),
    }
    events = events.select(
        user="user_id", item="item_id", **{name: columns[name]() for name in keep}
    )
    if not texts:
        return Log(events)
    items = pl.read_parquet(_path(found.table("items")))
    labels = pl.col("categories").list.join("|")
    return Log(events, items.select(item="item_id", title="title", labels=labels))


def fiction() -> Log:
    """IFDB: plays and wishes of nineteen years; 42% of the items have texts."""
    folder = Path(os.environ.get("RECSYS_DATA_MIRROR", "")) / "ifdb"
    events = pl.read_parquet(folder / "events.parquet").sort("user", "time", maintain_order=True)
    items = pl.read_parquet(folder / "items.parquet")
    return Log(
        events.select("user", "item", "time", "kind"),
        items.select("item", "title", "description", labels="categories"),
    )


def _path(table: object) -> str:
    assert table is not None
    return str(table)


def drawn(world: RepeatWorld) -> Log:
    """Draw a world with repeats."""
    return Log(log_of(world))


MUSIC = RepeatWorld(
    seed=31, num_users=900, num_items=3_000, num_scenes=30, mean_events=110.0,
    repeat_share=0.6, memory=25.0, follow_share=0.4, session_length=8.0,
)  # fmt: skip
CHECK_INS = RepeatWorld(
    seed=32, num_users=1_500, num_items=4_000, num_scenes=120, mean_events=35.0,
    repeat_share=0.35, memory=8.0, follow_share=0.5, session_length=4.0, drift=0.3,
)  # fmt: skip
GROCERIES = RepeatWorld(
    seed=41, num_users=1_200, num_items=2_000, num_scenes=25, mean_events=80.0,
    repeat_share=0.75, memory=40.0, follow_share=0.3, session_length=10.0, drift=0.5, num_days=90,
)  # fmt: skip
WORLDS = {"music": MUSIC, "check-ins": CHECK_INS, "groceries-held-out": GROCERIES}
"""By the name of their set."""
SHOP = {"user": "customer", "item": "sku", "time": "ts", "title": "product_name"}
FILMS = {"user": "viewer", "item": "movie", "order": "step", "title": "title", "labels": "genres"}
FRENCH = {"user": "client", "item": "produit", "time": "date", "order": "position"}

SETS: dict[str, StrangersSet] = {
    "ratings-25k": StrangersSet(
        has="ratings with stars and times, no texts",
        make=partial(cut, "movielens-100k", part=(0, 250), keep=("time", "stars")),
        names={"user": "uid", "item": "film_id", "time": "unix_time", "stars": "score"},
        source="movielens-100k",
    ),
    "films-dated": StrangersSet(
        has="ratings of six months with times, titles and genres",
        make=partial(cut, "movielens-100k", part=(0, 1000), keep=("time",), texts=True),
        names={"user": "viewer", "item": "movie", "time": "rated_at", "labels": "genres"},
        source="movielens-100k",
    ),
    "fiction": StrangersSet(
        has="plays and wishes of nineteen years, with descriptions",
        make=fiction,
        names={"user": "customer", "item": "sku", "time": "when", "kind": "what"},
    ),
    "films-100k": StrangersSet(
        has="ratings in order with titles and genres, no times",
        make=partial(cut, "movielens-1m", part=(0, 100), keep=("order",), texts=True),
        names=FILMS,
        source="movielens-1m",
    ),
    "beauty-ids": StrangersSet(
        has="short histories with days, ids alone",
        make=partial(cut, "amazon-beauty", part=(0, 250), keep=("time",)),
        names=FRENCH,
        source="amazon-beauty",
    ),
    "toys-titles": StrangersSet(
        has="short histories in order, with titles",
        make=partial(cut, "amazon-toys", part=(0, 300), keep=("order",), texts=True),
        names=SHOP | {"order": "sequence", "labels": "tags"},
        source="amazon-toys",
    ),
    "sports-ids": StrangersSet(
        has="short histories with days, ids alone, few events an item",
        make=partial(cut, "amazon-sports", part=(0, 250), keep=("time",)),
        names=FRENCH,
        source="amazon-sports",
    ),
    "music": StrangersSet(
        has="drawn: long histories with times, six plays of ten are repeats",
        make=partial(drawn, MUSIC),
        names={"user": "listener_id", "item": "track_id", "time": "timestamp"},
        repeats=True,
    ),
    "check-ins": StrangersSet(
        has="drawn: times, a third are repeats, where one goes next depends on where one is",
        make=partial(drawn, CHECK_INS),
        names={"user": "member_id", "item": "content_id", "time": "created_at"},
        repeats=True,
    ),
    "films-held-out": StrangersSet(
        has="ratings in order with titles and genres, no times",
        make=partial(cut, "movielens-1m", part=(800, 900), keep=("order",), texts=True, whole=True),
        names=FILMS,
        source="movielens-1m",
        held_out=True,
    ),
    "sports-titles-held-out": StrangersSet(
        has="short histories with days and titles",
        make=partial(
            cut, "amazon-sports", part=(750, 1000), keep=("time",), texts=True, whole=True
        ),
        names=SHOP | {"labels": "department"},
        source="amazon-sports",
        held_out=True,
    ),
    "beauty-ids-held-out": StrangersSet(
        has="short histories in order, ids alone",
        make=partial(cut, "amazon-beauty", part=(700, 1000), keep=("order",), whole=True),
        names=FRENCH,
        source="amazon-beauty",
        held_out=True,
    ),
    "groceries-held-out": StrangersSet(
        has="drawn: times, three of four are repeats",
        make=partial(drawn, GROCERIES),
        names={"user": "kunde", "item": "artikel", "time": "zeit"},
        held_out=True,
        repeats=True,
    ),
    "films-1m-held-out": StrangersSet(
        has="a million ratings in order, ids alone",
        make=partial(cut, "movielens-1m", part=(0, 1000), keep=("order",), whole=True),
        names=FILMS,
        source="movielens-1m",
        held_out=True,
    ),
}
"""By name."""


@dataclass(frozen=True)
class Parted:
    """A log of which some events are kept back."""

    given: pl.DataFrame
    """The events that a stranger has."""
    history: dict[str, list[str]]
    """The items of each user in them, in order."""
    target: dict[str, str]
    """The item of each user that is right."""

    def new_targets(self) -> dict[str, str]:
        """Keep the targets that the user's history does not hold."""
        return {u: i for u, i in self.target.items() if i not in set(self.history[u])}


MOMENT = 0.9
"""Quantile of the times after which everything is kept back."""


def without_last(events: pl.DataFrame) -> Parted:
    """Keep back the last event of each user who has at least two."""
    back = pl.int_range(pl.len()).reverse().over("user")
    history = lists_of(events)
    target = {user: items[-1] for user, items in history.items() if len(items) > 1}
    history = {user: history[user][:-1] for user in target}
    return Parted(events.filter(back > 0), history, target)


def before_moment(events: pl.DataFrame) -> Parted:
    """Keep back what comes after the moment; users on both sides are asked for their first."""
    events = events.sort("time", maintain_order=True)
    at = events["time"].quantile(MOMENT)
    given = events.filter(pl.col("time") <= at)
    history, target = lists_of(given), dict[str, str]()
    for user, item in events.filter(pl.col("time") > at).select("user", "item").iter_rows():
        if user in history and item not in history[user]:
            target.setdefault(user, item)
    return Parted(given, history, target)


def lists_of(events: pl.DataFrame) -> dict[str, list[str]]:
    """List each user's items in order."""
    lists: dict[str, list[str]] = {}
    for user, item in events.select("user", "item").iter_rows():
        lists.setdefault(user, []).append(item)
    return lists


def named_files(
    given: pl.DataFrame, items: pl.DataFrame | None, names: Mapping[str, str]
) -> dict[str, pl.DataFrame]:
    """Name the columns of the events and of the catalogue as the stranger does."""
    tables = {"log.csv": given} | ({} if items is None else {"catalogue.csv": items})
    return {
        file: table.rename({ours: names.get(ours, ours) for ours in table.columns})
        for file, table in tables.items()
    }
