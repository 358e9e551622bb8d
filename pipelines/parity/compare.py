"""What differs between a list's record and its recomputation, and which code computes it.

Differences are found in the order in which a list is made, so that the first one of a request is
the cause of those behind it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pipelines.parity.batch import ByBatch
from pipelines.parity.log import Document
from pipelines.parity.past import History
from serving.online.store import RecentEvent

RESOLVED = "serving.configuration.resolve.Resolver.resolve"
HYDRATE = "serving.query.hydrate"
USERS = "serving.bundle.users.Users.features"
BATCH = "pipelines.parity.batch.batch_features"
CANDIDATES = "recsys.retrieval.blend.candidate_features_one.OneQueryFeatures.candidates"
SLATE = "serving.arrangement.Arranger.arrange"
TIES = "recsys.retrieval.blend.one, serving.ranking: order of equal scores"
RANKER = "recsys.models.ranker.model.Ranker.score_candidates"
BLEND = "recsys.retrieval.blend.one.OneQueryBlend.merge"
FUSION = "serving.ranking.by_reciprocal_rank"
FUSED = f"{BLEND}, {FUSION}"


class Found(NamedTuple):
    """One difference of one request."""

    what: str
    path: str
    """Module and function that compute it."""
    size: float = 1.0
    """How large: of a score or feature, seconds of a time, else how many."""


@dataclass
class Difference:
    """A kind of difference of many requests."""

    what: str
    path: str
    count: int = 0
    """Requests that have it."""
    first: int = 0
    """Those of them in which nothing before it differs: where it is the cause."""
    largest: float = 0.0
    example: str = ""
    """Id of a request, of one in which it is the first if there is any."""

    def add(self, found: Found, request_id: str, *, is_first: bool) -> None:
        """Count it for one request."""
        if not self.example or (is_first and not self.first):
            self.example = request_id
        self.count += 1
        self.first += is_first
        self.largest = max(self.largest, abs(found.size))


class Differences:
    """All kinds of them."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str], Difference] = {}

    def add(self, request_id: str, found: Sequence[Found]) -> None:
        """Count those of one request, in the order in which the list is made."""
        seen: set[tuple[str, str]] = set()
        for place, one in enumerate(found):
            key = (one.what, one.path)
            kind = self._kinds.setdefault(key, Difference(*key))
            if key not in seen:
                kind.add(one, request_id, is_first=place == 0)
            seen.add(key)

    def kinds(self) -> list[Difference]:
        """List the kinds, causes first."""
        return sorted(self._kinds.values(), key=lambda one: (-one.first, -one.count, one.what))


def differences_of(
    logged: Document,
    online: Document,
    *,
    history: History | None,
    reader: str,
    batch: ByBatch | None,
    read: tuple[Sequence[int], Sequence[int] | None],
    candidate_names: Sequence[str],
) -> Iterator[Found]:
    """Compare a record with that of the same list, made once more.

    Args:
        online: Of the recomputation, with its features.
        history: What the event log says of the visitor; None where nobody was looked up.
        reader: The code that wrote the event log.
        batch: What the batch definitions say; None for a list that has no history.
        read: Items and times that models were given.
        candidate_names: Of the ranker's features.
    """
    for name in ("experiment", "rules"):
        if logged.get(name) != online.get(name):
            yield Found(f"{name} in force", RESOLVED)
    if history is not None:
        yield from _of_events(history, reader)
    if logged.get("forgotten_ms") != online.get("forgotten_ms"):
        yield Found("when the user was forgotten", "serving.online.store.OnlineStore.forget")
    if (moment := _gap(logged.get("unix_time"), online.get("unix_time"))) is not None:
        yield Found("moment of the features", "serving.query.moment_of", moment)
    was, features = logged.get("features"), online["features"]
    if was is not None:
        yield from _of_query(was, features)
    if batch is not None:
        yield from _against_batch(batch, online, features["query"], read)
    if was is not None:
        yield from _of_sources(was, features, logged, online)
        yield from _of_ranker(was, features, logged, online, candidate_names)
    yield from _of_list(logged, online)


def _gap(was: float | None, now: float | None) -> float | None:
    """Give how far two numbers are apart; None where they are the same."""
    if was == now:
        return None
    return 1.0 if was is None or now is None else float(abs(now - was))


def _of_events(history: History, reader: str) -> Iterator[Found]:
    """Compare the events that a list was made of with those that had arrived."""
    logged, events = history.logged, history.events
    if logged == events:
        return
    items, others = [[one.item_id for one in side] for side in (logged, events)]
    missing, extra = Counter(map(_key, events)), Counter(map(_key, logged))
    lacking, surplus = (missing - extra).total(), (extra - missing).total()
    if items == others:
        kinds = sum(a.event_type != b.event_type for a, b in zip(logged, events, strict=True))
        apart = max(abs(a.time_ms - b.time_ms) for a, b in zip(logged, events, strict=True))
        if kinds:
            yield Found("history: types of events", reader, kinds)
        if apart:
            yield Found("history: times of events", reader, apart / 1_000)
    elif Counter(items) == Counter(others) and not (lacking or surplus):
        yield Found("history: order of events", reader)
    elif [one.time_ms for one in logged] == [one.time_ms for one in events]:
        changed = sum(a != b for a, b in zip(items, others, strict=True))
        yield Found("history: items of events", reader, changed)
    elif Counter(items) == Counter(others):
        yield Found("history: times of events", reader, _furthest(logged, events))
    else:
        if lacking:
            yield Found("history: events that the list was made without", reader, lacking)
        if surplus:
            yield Found("history: events that the event log lacks", reader, surplus)


def _key(event: RecentEvent) -> tuple[str, int]:
    return event.item_id, event.time_ms


def _furthest(logged: Sequence[RecentEvent], events: Sequence[RecentEvent]) -> float:
    pairs = zip(sorted(logged), sorted(events), strict=True)
    return max(abs(was.time_ms - now.time_ms) for was, now in pairs) / 1_000


def _of_query(was: Document, now: Document) -> Iterator[Found]:
    """Compare the features of the visitor and of the moment."""
    yield from _of_features(was["query"], now["query"], "")
    if was["history"] != now["history"]:
        size = abs(was["history"][0] - now["history"][0]) or 1
        yield Found("history that models read", HYDRATE, size)


def _of_features(was: Mapping[str, int], now: Mapping[str, int], suffix: str) -> Iterator[Found]:
    for name in sorted(was.keys() | now.keys()):
        size = _gap(was.get(name), now.get(name))
        if size is not None:
            yield Found(f"feature {name}{suffix}", _path_of(name, batch=bool(suffix)), size)


def _path_of(feature: str, *, batch: bool) -> str:
    kind, _, name = feature.partition(".")
    if kind == "context":
        side = "expression" if batch else "value"
        return f"features.point_in_time.{name.upper()}.{side}"
    return USERS if name else HYDRATE


def _against_batch(
    batch: ByBatch,
    online: Document,
    features: Mapping[str, int],
    read: tuple[Sequence[int], Sequence[int] | None],
) -> Iterator[Found]:
    """Compare the online path with the batch definitions."""
    if (moment := _gap(online.get("unix_time"), batch.moment)) is not None:
        yield Found("moment of the features, batch", BATCH, moment)
    rows, times = read
    number = len(rows)
    if list(rows) != list(batch.item_rows[len(batch.item_rows) - number :]):
        yield Found("history that models read, batch", BATCH)
    elif times is not None and batch.times is not None:
        apart = np.abs(np.subtract(times, batch.times[len(batch.times) - number :]))
        if apart.any():
            yield Found("times that models read, batch", BATCH, float(apart.max()))
    yield from _of_features(features, batch.features, ", batch")


def _of_sources(
    was: Document, now: Document, logged: Document, online: Document
) -> Iterator[Found]:
    """Compare each source's rank of each item and what it added to the score."""
    mine, theirs = _by_item(was, logged), _by_item(now, online)
    for source in sorted({*was.get("sources", ()), *now.get("sources", ())}):
        ranks, parts = [], []
        for item_id in mine.keys() & theirs.keys():
            one, other = mine[item_id].get(source, (0, 0.0)), theirs[item_id].get(source, (0, 0.0))
            ranks.append(abs(one[0] - other[0]))
            parts.append(abs(one[1] - other[1]))
        if any(ranks):
            yield Found(f"rank in source {source}", f"serving.sources: {source}", max(ranks))
        if any(parts):
            yield Found(f"score from source {source}", FUSED, max(parts))


def _by_item(snapshot: Document, record: Document) -> dict[str, dict[str, tuple[int, float]]]:
    """Look up ranks and parts by item and source."""
    return {
        item["item_id"]: {
            source: (rank, part)
            for source, rank, part in zip(snapshot["sources"], ranks, parts, strict=True)
        }
        for item, ranks, parts in zip(
            record.get("items", ()),
            snapshot.get("ranks", ()),
            snapshot.get("parts", ()),
            strict=False,
        )
    }


def _of_ranker(
    was: Document, now: Document, logged: Document, online: Document, names: Sequence[str]
) -> Iterator[Found]:
    """Compare the ranker's features of the items that both lists have."""
    sides = [
        {
            item["item_id"]: values
            for item, values in zip(record.get("items", ()), found.get("ranker", ()), strict=False)
            if values is not None
        }
        for found, record in ((was, logged), (now, online))
    ]
    if not sides[0] and not sides[1]:
        return
    if not sides[0] or not sides[1]:
        yield Found("whether the ranker ordered the list", RANKER)
        return
    largest: dict[str, float] = {}
    for item_id in sides[0].keys() & sides[1].keys():
        for name, one, other in zip(names, sides[0][item_id], sides[1][item_id], strict=True):
            if one != other:
                largest[name] = max(largest.get(name, 0.0), abs(one - other))
    for name, size in largest.items():
        yield Found(f"ranker's feature {name}", CANDIDATES, size)


def _of_list(logged: Document, online: Document) -> Iterator[Found]:
    """Compare what was shown: items, order, scores, sources, chances, rules, notes."""
    was, now = logged.get("items", []), online.get("items", [])
    mine, theirs = [{item["item_id"]: item for item in side} for side in (was, now)]
    apart = [abs(mine[one]["score"] - theirs[one]["score"]) for one in mine.keys() & theirs.keys()]
    if any(apart):
        path = RANKER if logged.get("ranker") else FUSED
        yield Found("score", path, max(apart))
    if mine.keys() != theirs.keys():
        changed = len(mine.keys() ^ theirs.keys())
        yield Found("items", "serving.recommend.Recommender.make", changed)
    elif list(mine) != list(theirs):
        equal = [item["score"] for item in was] == [item["score"] for item in now]
        moved = sum(one != other for one, other in zip(mine, theirs, strict=True))
        yield Found(*(("order of equal scores", TIES) if equal else ("order", SLATE)), moved)
    for name, path in (
        ("source", "serving.ranking.Ranked.leading"),
        ("propensity", "recsys.reranking.exploration"),
        ("rules", "serving.arrangement"),
    ):
        other = [
            one
            for one in mine.keys() & theirs.keys()
            if mine[one].get(name) != theirs[one].get(name)
        ]
        if other:
            yield Found(f"{name} of an item", path, _largest(mine, theirs, other, name))
    for name in ("degraded", "fallback", "adapter", "ranker"):
        if logged.get(name) != online.get(name):
            yield Found(f"{name} of the list", "serving.recommend.Recommender.make")


def _largest(
    mine: Mapping[str, Any], theirs: Mapping[str, Any], items: Sequence[str], name: str
) -> float:
    if name != "propensity":
        return float(len(items))
    sizes = (_gap(mine[one].get(name), theirs[one].get(name)) for one in items)
    return max(size for size in sizes if size is not None)


def models_read(rows: Any, times: Any) -> tuple[Sequence[int], Sequence[int] | None]:
    """Give a query's history as plain numbers."""
    return rows.tolist(), None if times is None else times.tolist()
