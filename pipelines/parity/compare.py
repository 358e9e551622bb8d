"""Differences between a list's record and its recomputation, and the code that computes each.

Differences are found in the order in which a list is made, so that the first one of a request is
the cause of the later ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipelines.parity.batch import ByBatch
from pipelines.parity.log import Document, History
from serving.query import Query

RESOLVED = "serving.configuration.resolve.Resolver.resolve"
HYDRATE = "serving.query.hydrate"
STORE = "serving.online.store.OnlineStore.visitor"
FORGET = "serving.online.store.OnlineStore.forget"
USERS = "serving.bundle.users.Users.features"
BATCH = "pipelines.parity.batch.batch_features"
MAKE = "serving.recommend.Recommender.make"
SLATE = "serving.arrangement.Arranger.arrange"
TIES = "recsys.retrieval.blend.one, serving.ranking: order of equal scores"
RANKER = "recsys.models.ranker.model.Ranker.score_candidates"
FUSED = "recsys.retrieval.blend.one.OneQueryBlend.merge, serving.ranking.by_reciprocal_rank"
ITEM_FIELDS = {
    "source": "serving.ranking.RankedItems.leading",
    "propensity": "recsys.reranking.exploration",
    "rules": "serving.arrangement",
}
"""Fields of a listed item, with the code that computes each."""


class ListDifference(NamedTuple):
    """One difference of one request."""

    what: str
    path: str
    """Module and function that compute it."""
    size: float = 1.0


@dataclass
class Difference:
    """A kind of difference of many requests."""

    what: str
    path: str
    count: int = 0
    """Requests that have it."""
    first: int = 0
    """Requests in which nothing before it differs: it is the cause."""
    largest: float = 0.0
    example: str = ""
    """Id of a request, if possible of one in which it is the first."""


def count_differences(
    kinds: dict[str, Difference], request_id: str, found: Sequence[ListDifference]
) -> None:
    """Add the differences of one request, in the order in which the list is made, to all kinds."""
    for place, one in enumerate(found):
        kind = kinds.setdefault(one.what, Difference(one.what, one.path))
        if not kind.example or (place == 0 and not kind.first):
            kind.example = request_id
        kind.count += 1
        kind.first += place == 0
        kind.largest = max(kind.largest, abs(one.size))


def compare_records(
    logged: Document,
    online: Document,
    history: History | None,
    batch: ByBatch | None,
    query: Query,
) -> Iterator[ListDifference]:
    """Compare a record with that of the same list, made once more.

    Args:
        history: What the event log says of the visitor; None without a user.
        batch: What the batch definitions say; None for a list that has no history.
        query: What the models read in the recomputation.
    """
    for name in ("experiment", "rules"):
        if logged.get(name) != online.get(name):
            yield ListDifference(f"{name} in force", RESOLVED)
    if history is not None:
        yield from _compare_events(history)
    if logged.get("forgotten_ms") != online.get("forgotten_ms"):
        yield ListDifference("when the user was forgotten", FORGET)
    if moment := _gap(logged.get("unix_time"), online.get("unix_time")):
        yield ListDifference("moment of the features", "serving.query.settle_moment", moment)
    was, features = logged.get("features"), online["features"]
    if was is not None:
        yield from _compare_features(was["query"], features["query"], "")
        if was["history"] != features["history"]:
            size = abs(was["history"][0] - features["history"][0]) or 1
            yield ListDifference("history that models read", HYDRATE, size)
    if batch is not None:
        yield from _against_batch(batch, online, features["query"], query)
    yield from _compare_lists(logged, online)


def _gap(was: float | None, now: float | None) -> float:
    """Return the distance of two numbers; 0 if they are equal."""
    if was == now:
        return 0.0
    return 1.0 if was is None or now is None else float(abs(now - was))


def _compare_events(history: History) -> Iterator[ListDifference]:
    """Compare the events that a list was made of with those that had arrived."""
    logged, events = history.logged, history.events
    items, others = ([one.item_id for one in side] for side in (logged, events))
    times, arrived = ([one.time_ms for one in side] for side in (logged, events))
    if items == others:
        kinds = sum(a.event_type != b.event_type for a, b in zip(logged, events, strict=True))
        apart = max((abs(a - b) for a, b in zip(times, arrived, strict=True)), default=0)
        if kinds:
            yield ListDifference("history: types of events", STORE, kinds)
        if apart:
            yield ListDifference("history: times of events", STORE, apart / 1_000)
        return
    if times == arrived:
        changed = sum(a != b for a, b in zip(items, others, strict=True))
        yield ListDifference("history: items of events", STORE, changed)
        return
    read, known = (
        Counter(zip(items, times, strict=True)),
        Counter(zip(others, arrived, strict=True)),
    )
    if lacking := (known - read).total():
        yield ListDifference("history: events that the list was made without", STORE, lacking)
    if surplus := (read - known).total():
        yield ListDifference("history: events that the event log lacks", STORE, surplus)
    if not lacking and not surplus:
        yield ListDifference("history: order of events", STORE)


def _compare_features(
    was: Mapping[str, int], now: Mapping[str, int], suffix: str
) -> Iterator[ListDifference]:
    for name in sorted(was.keys() | now.keys()):
        if size := _gap(was.get(name), now.get(name)):
            kind, _, column = name.partition(".")
            path = USERS if column else HYDRATE
            if kind == "context":
                side = "expression" if suffix else "value"
                path = f"features.point_in_time.{column.upper()}.{side}"
            yield ListDifference(f"feature {name}{suffix}", path, size)


def _against_batch(
    batch: ByBatch, online: Document, features: Mapping[str, int], query: Query
) -> Iterator[ListDifference]:
    """Compare the online path with the batch definitions."""
    if moment := _gap(online.get("unix_time"), batch.moment):
        yield ListDifference("moment of the features, batch", BATCH, moment)
    begin = len(batch.item_rows) - len(query.history)
    if query.history.tolist() != list(batch.item_rows[begin:]):
        yield ListDifference("history that models read, batch", BATCH)
    elif query.times is not None and batch.times is not None:
        apart = np.abs(np.subtract(query.times, batch.times[begin:]))
        if apart.any():
            yield ListDifference("times that models read, batch", BATCH, float(apart.max()))
    yield from _compare_features(features, batch.features, ", batch")


def _compare_lists(logged: Document, online: Document) -> Iterator[ListDifference]:
    """Compare the shown lists: items, order, scores, sources, propensities, rules, notes."""
    was, now = logged.get("items", []), online.get("items", [])
    mine, theirs = [{item["item_id"]: item for item in side} for side in (was, now)]
    both = mine.keys() & theirs.keys()
    if apart := max((abs(mine[one]["score"] - theirs[one]["score"]) for one in both), default=0.0):
        yield ListDifference("score", RANKER if logged.get("ranker") else FUSED, apart)
    if mine.keys() != theirs.keys():
        yield ListDifference("items", MAKE, len(mine.keys() ^ theirs.keys()))
    elif list(mine) != list(theirs):
        equal = [item["score"] for item in was] == [item["score"] for item in now]
        moved = sum(one != other for one, other in zip(mine, theirs, strict=True))
        what = ("order of equal scores", TIES) if equal else ("order", SLATE)
        yield ListDifference(*what, moved)
    for name, path in ITEM_FIELDS.items():
        if other := sum(mine[one].get(name) != theirs[one].get(name) for one in both):
            yield ListDifference(f"{name} of an item", path, other)
    for name in ("degraded", "fallback", "adapter", "ranker"):
        if logged.get(name) != online.get(name):
            yield ListDifference(f"{name} of the list", MAKE)
