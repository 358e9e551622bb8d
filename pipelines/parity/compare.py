"""Differences between a list's record and its recomputation.

Differences are found in the order in which a list is made, so that the first one of a request is
the cause of the later ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pipelines.parity.log import Document, History

ITEM_FIELDS = ("source", "propensity", "rules")
LIST_FIELDS = ("degraded", "fallback", "adapter", "ranker")
NamedDifference = tuple[str, float]
"""What differs, and by how much: 1 unless it is a number or a number of events or items."""


def compare_records(
    logged: Document, online: Document, history: History | None
) -> Iterator[NamedDifference]:
    """Compare a record with that of the same list, made once more.

    Args:
        history: What the event log says of the visitor; None without a user.
    """
    has_features = "features" in logged
    was, now = (_facts(one, has_features) for one in (logged, online))
    yield from _differing(was, now, ("experiment", "rules"))
    if history is not None:
        yield from _compare_events(history)
    inputs = [name for name in {**was, **now} if name not in (*LIST_FIELDS, "experiment", "rules")]
    yield from _differing(was, now, inputs)
    yield from _compare_items(logged, online)
    yield from _differing(was, now, LIST_FIELDS)


def _facts(document: Document, has_features: bool) -> dict[str, Any]:
    """List what a record says of the list as a whole, by the name of a difference."""
    features = document["features"] if has_features else {"query": {}, "history": None}
    return {
        **{name: document.get(name) for name in ("experiment", "rules", *LIST_FIELDS)},
        "when the user was forgotten": document.get("forgotten_ms"),
        "moment of the features": document.get("unix_time"),
        **{f"feature {name}": value for name, value in sorted(features["query"].items())},
        "history that models read": features["history"],
    }


def _differing(
    was: Mapping[str, Any], now: Mapping[str, Any], names: Iterable[str]
) -> Iterator[NamedDifference]:
    """List the names whose values differ, with the distance of numbers."""
    for name in names:
        before, after = was.get(name), now.get(name)
        if before != after:
            apart = 1.0
            if isinstance(before, int | float) and isinstance(after, int | float):
                apart = float(abs(after - before))
            yield name, apart


def _compare_events(history: History) -> Iterator[NamedDifference]:
    """Compare the events that a list was made of with those that had arrived."""
    logged, events = history.logged, history.events
    if [one.item_id for one in logged] == [one.item_id for one in events]:
        both = list(zip(logged, events, strict=True))
        if kinds := sum(one.event_type != other.event_type for one, other in both):
            yield "history: types of events", kinds
        if apart := max((abs(one.time_ms - other.time_ms) for one, other in both), default=0):
            yield "history: times of events", apart / 1_000
        return
    read, known = (Counter((one.item_id, one.time_ms) for one in side) for side in (logged, events))
    if lacking := (known - read).total():
        yield "history: events that the list was made without", lacking
    if surplus := (read - known).total():
        yield "history: events that the event log lacks", surplus
    if read == known:
        yield "history: order of events", 1.0


def _compare_items(logged: Document, online: Document) -> Iterator[NamedDifference]:
    """Compare the shown items: scores, items, order, sources, propensities, rules."""
    was, now = (
        {item["item_id"]: item for item in one.get("items", [])} for one in (logged, online)
    )
    both = [name for name in was if name in now]
    if apart := max((abs(was[one]["score"] - now[one]["score"]) for one in both), default=0.0):
        yield "score", apart
    if was.keys() != now.keys():
        yield "items", len(was.keys() ^ now.keys())
    elif moved := sum(one != other for one, other in zip(was, now, strict=True)):
        scores = ([item["score"] for item in side.values()] for side in (was, now))
        yield "order of equal scores" if next(scores) == next(scores) else "order", moved
    for name in ITEM_FIELDS:
        if other := sum(was[one].get(name) != now[one].get(name) for one in both):
            yield f"{name} of an item", other
