"""Signals of a day: each has a value, and a score on a scale on which deviations add."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log, sqrt
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.config.operation import MonitoringConfig
from pipelines.monitoring.days import EventCounts, ServedDay
from recsys.evaluation.drift import Tail, mix_distance

Numbers = NDArray[np.float64]
DISTANCE_FLOOR = 0.02
DISTANCE_NOISE = 0.1
HEAD_ITEMS = 200
MIN_LISTS = 30


class Measurement(NamedTuple):
    """A signal of a day."""

    value: float
    score: float
    """On the scale of its band."""
    noise: float
    """Standard error of the score by the day's counts, as far as that is known."""


class Signal(NamedTuple):
    """A number that is watched by day."""

    name: str
    title: str
    group: str
    kind: str
    """``count``, ``share`` or ``distance``."""
    drift: bool
    """True if an alarm means drift, so that retraining may help."""

    @property
    def tail(self) -> Tail:
        """A distance raises an alarm only if it is large."""
        return "high" if self.kind == "distance" else "both"

    def value_at(self, score: float) -> float:
        """Convert a score of a band back to a value; ends of open bands stay infinite."""
        if not np.isfinite(score):
            return score
        if self.kind == "share":
            return 1 / (1 + exp(-max(min(score, 700.0), -700.0)))
        if self.kind == "distance":
            return sqrt(max(0.0, exp(min(score, 50.0)) ** 2 - DISTANCE_FLOOR**2))
        return exp(min(score, 700.0))


SIGNALS = {
    row[0]: Signal(*row)
    for row in (
        ("events", "events", "volume", "count", False),
        ("users", "active users", "volume", "count", False),
        ("event_types", "mix of event types", "events", "distance", True),
        ("popularity", "popularity of items", "items", "distance", True),
        ("new_items", "events on items new to the window", "items", "share", True),
        ("lists", "served lists", "online", "count", False),
        ("click_rate", "lists with a click", "online", "share", True),
        ("fallback_share", "lists from a fallback", "online", "share", False),
    )
}


def count(number: float) -> Measurement:
    """Score a count by its logarithm."""
    return Measurement(number, log(number + 0.5), 1 / sqrt(number + 0.5))


def share(part: float, whole: float) -> Measurement:
    """Score a share by its log odds."""
    odds = (part + 0.5) / (whole - part + 0.5)
    return Measurement(part / whole, log(odds), sqrt(1 / (part + 0.5) + 1 / (whole - part + 0.5)))


def distance(value: float, size: float) -> Measurement:
    """Score a distance by its logarithm; a day of few users is damped by its relative size."""
    damped = value * min(1.0, sqrt(size))
    return Measurement(value, log(sqrt(damped**2 + DISTANCE_FLOOR**2)), DISTANCE_NOISE)


def measure(
    day: EventCounts,
    reference: Sequence[EventCounts],
    served: ServedDay | None,
    config: MonitoringConfig,
) -> dict[str, Measurement]:
    """Measure every signal that the day and its reference window allow."""
    found = {"events": count(day.events), "users": count(day.users)}
    if served is not None:
        found["lists"] = count(served.num_lists)
        if served.num_lists >= MIN_LISTS:
            found["click_rate"] = share(served.num_clicked, served.num_lists)
            if served.num_fallback is not None:
                found["fallback_share"] = share(served.num_fallback, served.num_lists)
    if day.events < config.min_events or 2 * len(reference) < config.reference_days:
        return found
    usual = sum(one.users for one in reference) / len(reference)
    size = day.users / usual if usual else 1.0
    types, items = (_joined(day, reference, table) for table in ("event_type", "item"))
    # Events without a type have no mix of types.
    if len(types[0]) > 1:
        found["event_types"] = distance(mix_distance(*types), size)
    today, before = items
    head = np.argsort(-before, kind="stable")[:HEAD_ITEMS]
    found["popularity"] = distance(
        mix_distance(_with_rest(today, head), _with_rest(before, head)), size
    )
    found["new_items"] = share(float(today[before == 0].sum()), float(today.sum()))
    return {name: one for name, one in found.items() if np.isfinite(one.score)}


def _joined(
    day: EventCounts, reference: Sequence[EventCounts], table: str
) -> tuple[Numbers, Numbers]:
    """Return the counts of each key on the day and in the window."""
    pooled = pl.concat([one.tables[table] for one in reference]).group_by("key")
    joined = day.tables[table].join(
        pooled.agg(pl.col("count").sum().alias("before")), on="key", how="full", coalesce=True
    )
    counts = joined.sort("key").select(pl.col("count", "before").fill_null(0.0))
    return counts["count"].to_numpy(), counts["before"].to_numpy()


def _with_rest(counts: Numbers, head: NDArray[np.int64]) -> Numbers:
    return np.append(counts[head], counts.sum() - counts[head].sum())
