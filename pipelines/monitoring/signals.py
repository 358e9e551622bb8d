"""Signals of a day: each has a value, and a score on a scale on which deviations add."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, log, sqrt
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.config.operation import MonitoringConfig
from pipelines.monitoring.days import ServedDay
from pipelines.monitoring.sketch import UNKNOWN, Sketch
from recsys.evaluation.drift import Tail, effective_number, mix_distance

Numbers = NDArray[np.float64]
DISTANCE_FLOOR = 0.02
DISTANCE_NOISE = 0.1
HEAD_ITEMS = 200
KNOWN_BY_RUN = ("category", "item.", "user.")
"""Tables, or how their names begin, of what a run's catalogue and users say."""
MAX_COLUMNS = 12
MIN_LISTS = 30
MIN_VALUED = 20


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
    """``count``, ``share``, ``ratio`` or ``distance``."""
    drift: bool = True
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
        ("events_per_user", "events per user", "events", "ratio", True),
        ("event_types", "mix of event types", "events", "distance", True),
        ("domains", "mix of domains", "events", "distance", True),
        ("values", "distribution of values", "events", "distance", True),
        ("mean_value", "mean value", "events", "ratio", True),
        ("categories", "mix of categories", "items", "distance", True),
        ("popularity", "popularity of items", "items", "distance", True),
        ("effective_items", "effective number of items", "items", "ratio", True),
        ("new_items", "events on items new to the window", "items", "share", True),
        ("new_users", "users new to the window", "events", "share", True),
        ("lists", "served lists", "online", "count", False),
        ("click_rate", "lists with a click", "online", "share", True),
        ("fallback_share", "lists from a fallback", "online", "share", False),
        ("degraded_share", "degraded lists", "online", "share", False),
    )
}
MIXES = {
    "event_type": "event_types",
    "domain": "domains",
    "category": "categories",
    "value": "values",
    "item": "popularity",
}
"""Signal of each table of counts; a column's signal has the name of its table."""


def find_signal(name: str) -> Signal:
    """Describe a signal; those of features are named after their column."""
    if name in SIGNALS:
        return SIGNALS[name]
    title = f"distribution of {name.replace('.', ' ').replace('_', ' ')}"
    return Signal(name, title, "features", "distance")


def count(number: float) -> Measurement:
    """Score a count by its logarithm."""
    return Measurement(number, log(number + 0.5), 1 / sqrt(number + 0.5))


def share(part: float, whole: float) -> Measurement:
    """Score a share by its log odds."""
    odds = (part + 0.5) / (whole - part + 0.5)
    return Measurement(part / whole, log(odds), sqrt(1 / (part + 0.5) + 1 / (whole - part + 0.5)))


def ratio(value: float, noise: float) -> Measurement:
    """Score a positive number by its logarithm."""
    return Measurement(value, log(value), noise)


def distance(value: float, size: float) -> Measurement:
    """Score a distance by its logarithm."""
    damped = value * min(1.0, sqrt(size))
    return Measurement(value, log(sqrt(damped**2 + DISTANCE_FLOOR**2)), DISTANCE_NOISE)


class ReferenceWindow(NamedTuple):
    """A day and the reference window, counts of both by table."""

    tables: Mapping[str, tuple[pl.Series, Numbers, Numbers]]
    """Keys, counts of the day, counts of the window."""
    size: float
    """Users of the day relative to the window's mean."""

    def counts(self, table: str) -> tuple[Numbers, Numbers]:
        """Return the counts of the day and of the window; empty if nothing is known.

        Items and users that the newest run does not know are left out: they are unknown until the
        next run, and that is no drift. Events without a value have no part in its distribution.
        """
        keys, today, before = self.tables[table]
        if keys.to_list() == [UNKNOWN]:
            return np.zeros(0), np.zeros(0)
        if table == "item":
            head = np.argsort(-before, kind="stable")[:HEAD_ITEMS]
            return _with_rest(today, head), _with_rest(before, head)
        if table.startswith(KNOWN_BY_RUN) or table == "value":
            known = (keys != ("none" if table == "value" else UNKNOWN)).to_numpy()
            today, before = today[known], before[known]
        is_few = table == "value" and today.sum() < MIN_VALUED
        return (np.zeros(0), np.zeros(0)) if is_few else (today, before)


def _with_rest(counts: Numbers, head: NDArray[np.int64]) -> Numbers:
    return np.append(counts[head], counts.sum() - counts[head].sum())


def build_window(day: Sketch, reference: Sequence[Sketch]) -> ReferenceWindow:
    """Pool the reference and join the day to it."""
    pooled = pl.concat([one.counts for one in reference]).group_by("table", "key")
    joined = day.counts.join(
        pooled.agg(pl.col("count").sum().alias("before")),
        on=["table", "key"],
        how="full",
        coalesce=True,
    ).with_columns(pl.col("count", "before").fill_null(0.0))
    tables = {
        str(name): (part["key"], part["count"].to_numpy(), part["before"].to_numpy())
        for (name,), part in joined.sort("table", "key").partition_by("table", as_dict=True).items()
    }
    usual = sum(one.total("users") for one in reference) / len(reference)
    return ReferenceWindow(tables, day.total("users") / usual if usual else 1.0)


def measure(
    day: Sketch,
    reference: Sequence[Sketch],
    served: ServedDay | None,
    config: MonitoringConfig,
) -> dict[str, Measurement]:
    """Measure every signal that the day and its reference window allow."""
    found = {"events": count(day.total("events")), "users": count(day.total("users"))}
    if served is not None:
        found |= online_signals(served)
    if day.total("events") < config.min_events:
        return found
    per_user = day.counts.filter(pl.col("table") == "user")["count"].to_numpy()
    mean = day.total("events") / day.total("users")
    noise = float(per_user.std()) / mean / sqrt(len(per_user)) if len(per_user) else 1.0
    found["events_per_user"] = ratio(mean, noise)
    if (valued := day.total("valued")) >= MIN_VALUED and day.total("value") > 0:
        mean = day.total("value") / valued
        spread = max(0.0, day.total("value_squares") / valued - mean**2)
        found["mean_value"] = ratio(mean, sqrt(spread / valued) / mean)
    if 2 * len(reference) >= config.reference_days:
        found |= compare_with_window(build_window(day, reference))
    return {name: one for name, one in found.items() if np.isfinite(one.score)}


def compare_with_window(window: ReferenceWindow) -> dict[str, Measurement]:
    """Compare the mix of every table, and count new items and users."""
    columns = [name for name in window.tables if name.startswith(("item.", "user."))]
    found = {}
    for table in [*MIXES, "hour", *columns[:MAX_COLUMNS]]:
        today, before = window.counts(table) if table in window.tables else (np.zeros(0),) * 2
        if len(today):
            found[MIXES.get(table, table)] = distance(mix_distance(today, before), window.size)
    _, today, before = window.tables["item"]
    if np.isfinite(effective := effective_number(today)):
        found["effective_items"] = ratio(effective, 2 / sqrt(today.sum()))
    found["new_items"] = share(today[before == 0].sum(), today.sum())
    _, users, users_before = window.tables["user"]
    active = users > 0
    found["new_users"] = share(float((active & (users_before == 0)).sum()), float(active.sum()))
    return found


def online_signals(served: ServedDay) -> dict[str, Measurement]:
    """Measure served lists and clicks."""
    found = {"lists": count(served.num_lists)}
    if served.num_lists < MIN_LISTS:
        return found
    found["click_rate"] = share(served.num_clicked, served.num_lists)
    for name, part in (("fallback", served.num_fallback), ("degraded", served.num_degraded)):
        if part is not None:
            found[f"{name}_share"] = share(part, served.num_lists)
    return found
