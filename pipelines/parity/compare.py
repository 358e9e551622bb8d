"""Differences between a list's record and its recomputation, and the code that computes each.

Differences are found in the order in which a list is made, so that the first one of a request is
the cause of the later ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from pipelines.parity.batch import ByBatch
from pipelines.parity.log import Document, History
from recsys.data.top_k import TopK
from recsys.retrieval.blend.candidate_features import feature_names
from serving.bundle.load import Bundle
from serving.online.store import RecentEvent
from serving.recommend import Made

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


class DifferenceCounts:
    """All kinds of differences."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str], Difference] = {}

    def add(self, request_id: str, found: Sequence[ListDifference]) -> None:
        """Count those of one request, in the order in which the list is made."""
        seen: set[tuple[str, str]] = set()
        for place, one in enumerate(found):
            key = (one.what, one.path)
            if key in seen:
                continue
            seen.add(key)
            kind = self._kinds.setdefault(key, Difference(*key))
            if not kind.example or (place == 0 and not kind.first):
                kind.example = request_id
            kind.count += 1
            kind.first += place == 0
            kind.largest = max(kind.largest, abs(one.size))

    def kinds(self) -> list[Difference]:
        """List the kinds, causes first."""
        return sorted(self._kinds.values(), key=lambda one: (-one.first, -one.count, one.what))


def compare_records(
    logged: Document,
    online: Document,
    *,
    history: History | None,
    reader: str,
    batch: ByBatch | None,
    read: tuple[Sequence[int], Sequence[int] | None],
    candidate_names: Sequence[str],
) -> Iterator[ListDifference]:
    """Compare a record with that of the same list, made once more.

    Args:
        history: What the event log says of the visitor; None without a user.
        batch: What the batch definitions say; None for a list that has no history.
    """
    for name in ("experiment", "rules"):
        if logged.get(name) != online.get(name):
            yield ListDifference(f"{name} in force", RESOLVED)
    if history is not None:
        yield from _compare_events(history, reader)
    if logged.get("forgotten_ms") != online.get("forgotten_ms"):
        yield ListDifference(
            "when the user was forgotten", "serving.online.store.OnlineStore.forget"
        )
    if (moment := _gap(logged.get("unix_time"), online.get("unix_time"))) is not None:
        yield ListDifference("moment of the features", "serving.query.settle_moment", moment)
    was, features = logged.get("features"), online["features"]
    if was is not None:
        yield from _compare_features(was["query"], features["query"], "")
        if was["history"] != features["history"]:
            size = abs(was["history"][0] - features["history"][0]) or 1
            yield ListDifference("history that models read", HYDRATE, size)
    if batch is not None:
        yield from _against_batch(batch, online, features["query"], read)
    if was is not None:
        yield from _compare_sources(was, features, logged, online)
        yield from _compare_ranker(was, features, logged, online, candidate_names)
    yield from _compare_lists(logged, online)


def _gap(was: float | None, now: float | None) -> float | None:
    """Return the distance of two numbers; None if they are equal."""
    if was == now:
        return None
    return 1.0 if was is None or now is None else float(abs(now - was))


def _compare_events(history: History, reader: str) -> Iterator[ListDifference]:
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
            yield ListDifference("history: types of events", reader, kinds)
        if apart:
            yield ListDifference("history: times of events", reader, apart / 1_000)
    elif Counter(items) == Counter(others) and not (lacking or surplus):
        yield ListDifference("history: order of events", reader)
    elif [one.time_ms for one in logged] == [one.time_ms for one in events]:
        changed = sum(a != b for a, b in zip(items, others, strict=True))
        yield ListDifference("history: items of events", reader, changed)
    elif Counter(items) == Counter(others):
        yield ListDifference("history: times of events", reader, _furthest(logged, events))
    else:
        if lacking:
            yield ListDifference("history: events that the list was made without", reader, lacking)
        if surplus:
            yield ListDifference("history: events that the event log lacks", reader, surplus)


def _key(event: RecentEvent) -> tuple[str, int]:
    return event.item_id, event.time_ms


def _furthest(logged: Sequence[RecentEvent], events: Sequence[RecentEvent]) -> float:
    pairs = zip(sorted(logged), sorted(events), strict=True)
    return max(abs(was.time_ms - now.time_ms) for was, now in pairs) / 1_000


def _compare_features(
    was: Mapping[str, int], now: Mapping[str, int], suffix: str
) -> Iterator[ListDifference]:
    for name in sorted(was.keys() | now.keys()):
        size = _gap(was.get(name), now.get(name))
        if size is not None:
            yield ListDifference(f"feature {name}{suffix}", _path(name, batch=bool(suffix)), size)


def _path(feature: str, *, batch: bool) -> str:
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
) -> Iterator[ListDifference]:
    """Compare the online path with the batch definitions."""
    if (moment := _gap(online.get("unix_time"), batch.moment)) is not None:
        yield ListDifference("moment of the features, batch", BATCH, moment)
    rows, times = read
    number = len(rows)
    if list(rows) != list(batch.item_rows[len(batch.item_rows) - number :]):
        yield ListDifference("history that models read, batch", BATCH)
    elif times is not None and batch.times is not None:
        apart = np.abs(np.subtract(times, batch.times[len(batch.times) - number :]))
        if apart.any():
            yield ListDifference("times that models read, batch", BATCH, float(apart.max()))
    yield from _compare_features(features, batch.features, ", batch")


def _compare_sources(
    was: Document, now: Document, logged: Document, online: Document
) -> Iterator[ListDifference]:
    """Compare each source's rank of each item and its part of the score."""
    mine, theirs = _by_item(was, logged), _by_item(now, online)
    nothing = (0, 0.0)
    for source in sorted({*was.get("sources", ()), *now.get("sources", ())}):
        pairs = [
            (mine[one].get(source, nothing), theirs[one].get(source, nothing))
            for one in mine.keys() & theirs.keys()
        ]
        if rank := max((abs(one[0] - other[0]) for one, other in pairs), default=0):
            yield ListDifference(f"rank in source {source}", f"serving.sources: {source}", rank)
        if part := max((abs(one[1] - other[1]) for one, other in pairs), default=0.0):
            yield ListDifference(f"score from source {source}", FUSED, part)


def _by_item(snapshot: Document, record: Document) -> dict[str, dict[str, tuple[int, float]]]:
    """Look up ranks and parts by item and source."""
    columns = (record.get("items", ()), snapshot.get("ranks", ()), snapshot.get("parts", ()))
    return {
        item["item_id"]: dict(zip(snapshot["sources"], zip(ranks, parts, strict=True), strict=True))
        for item, ranks, parts in zip(*columns, strict=False)
    }


def _compare_ranker(
    was: Document, now: Document, logged: Document, online: Document, names: Sequence[str]
) -> Iterator[ListDifference]:
    """Compare the ranker's features of the items that both lists have."""
    mine, theirs = (
        {
            item["item_id"]: values
            for item, values in zip(record.get("items", ()), found.get("ranker", ()), strict=False)
            if values is not None
        }
        for found, record in ((was, logged), (now, online))
    )
    if bool(mine) != bool(theirs):
        yield ListDifference("whether the ranker ordered the list", RANKER)
        return
    largest: dict[str, float] = {}
    for item_id in mine.keys() & theirs.keys():
        for name, one, other in zip(names, mine[item_id], theirs[item_id], strict=True):
            if one != other:
                largest[name] = max(largest.get(name, 0.0), abs(one - other))
    for name, size in largest.items():
        yield ListDifference(f"ranker's feature {name}", CANDIDATES, size)


def _compare_lists(logged: Document, online: Document) -> Iterator[ListDifference]:
    """Compare the shown lists: items, order, scores, sources, propensities, rules, notes."""
    was, now = logged.get("items", []), online.get("items", [])
    mine, theirs = [{item["item_id"]: item for item in side} for side in (was, now)]
    both = mine.keys() & theirs.keys()
    if apart := max((abs(mine[one]["score"] - theirs[one]["score"]) for one in both), default=0.0):
        yield ListDifference("score", RANKER if logged.get("ranker") else FUSED, apart)
    if mine.keys() != theirs.keys():
        changed = len(mine.keys() ^ theirs.keys())
        yield ListDifference("items", "serving.recommend.Recommender.make", changed)
    elif list(mine) != list(theirs):
        equal = [item["score"] for item in was] == [item["score"] for item in now]
        moved = sum(one != other for one, other in zip(mine, theirs, strict=True))
        yield ListDifference(
            *(("order of equal scores", TIES) if equal else ("order", SLATE)), moved
        )
    for name, path in ITEM_FIELDS.items():
        pairs = [(mine[one].get(name), theirs[one].get(name)) for one in both]
        if other := [(one, two) for one, two in pairs if one != two]:
            gaps = [_gap(*pair) or 0.0 for pair in other] if name == "propensity" else [len(other)]
            yield ListDifference(f"{name} of an item", path, max(gaps))
    for name in ("degraded", "fallback", "adapter", "ranker"):
        if logged.get(name) != online.get(name):
            yield ListDifference(f"{name} of the list", "serving.recommend.Recommender.make")


def models_read(rows: Any, times: Any) -> tuple[Sequence[int], Sequence[int] | None]:
    """Convert a query's history to plain numbers."""
    return rows.tolist(), None if times is None else times.tolist()


PATH = "recsys.retrieval.blend.candidate_features.CandidateBuilder.candidates"
TOLERANCE = 1e-3
ILL_CONDITIONED = "linear.z_score"
"""It divides by the spread of scores that may be equal but for rounding; the scores themselves,
``linear.history``, are compared."""


def candidate_differences(bundle: Bundle, made: Made) -> Iterator[ListDifference]:
    """Build the candidates of a list by the batched form, and name the features that differ."""
    scored = None if made.ranked is None else made.ranked.scored
    if scored is None or bundle.ranker is None:
        return
    builder = bundle.ranker.builder
    length = made.query.surface.num_candidates
    lists = {
        name: TopK(
            *(torch.from_numpy(part[:length].copy())[None] for part in made.candidates[name])
        )
        for name in builder.blend.sources
        if name in made.candidates
    }
    with torch.inference_mode():
        history = made.query.features["history"]
        batch = builder.candidates(lists, history, bundle.item_counts)
    rows = batch.item_rows[0]
    number = int((rows > 0).sum())
    if rows[:number].tolist() != scored.item_rows.tolist():
        yield ListDifference("candidates of the ranker, batch", PATH)
        return
    one, many = scored.features.numpy(), batch.features[0, :number].numpy()
    apart = np.abs(one - many)
    beyond = (apart > TOLERANCE * np.maximum(1, np.abs(many))).any(0)
    names = feature_names(builder.blend.sources)
    beyond[names.index(ILL_CONDITIONED)] = False
    for column in np.flatnonzero(beyond).tolist():
        yield ListDifference(
            f"ranker's feature {names[column]}, batch", PATH, float(apart[:, column].max())
        )
