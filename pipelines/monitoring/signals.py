"""What is measured of a day: each signal's value, and its score on a scale where deviations add."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from typing import Literal, NamedTuple

import numpy as np
import polars as pl

from pipelines.config.daily import MonitoringConfig
from pipelines.monitoring.served import ServedDay
from pipelines.monitoring.sketch import MAX_USERS, UNKNOWN, Sketch
from pipelines.monitoring.two_sample import two_sample
from pipelines.monitoring.vectors import Numbers, Rows, ServedVectors
from recsys.evaluation.drift import (
    Tail,
    effective_number,
    mean_shift,
    mix_distance,
    stability_index,
)

Group = Literal["volume", "events", "items", "vectors", "features", "online"]
DISTANCE_FLOOR = 0.02
INDEX_FLOOR = 0.005
DISTANCE_NOISE = 0.1
CATALOGUE_NOISE = 0.02
"""Of what changes with the bundle alone, relative."""
HEAD_ITEMS = 200
KNOWN_BY_RUN = ("category", "item.", "user.")
"""Tables, or how their names begin, of what a run's catalogue and users say."""
MAX_COLUMNS = 12
MIN_LISTS = 30
MIN_USERS = 20
"""Known users of a day whose vectors are compared."""
MIN_PAIRS = 50
"""Events of known users and items that agreement is measured by."""


class Measured(NamedTuple):
    """A signal of a day."""

    value: float
    """As people read it."""
    score: float
    """On the scale of its band."""
    noise: float
    """Standard error of the score by the day's counts, as far as that is known."""


@dataclass(frozen=True, kw_only=True)
class Signal:
    """What is watched."""

    name: str
    title: str
    group: Group
    kind: Literal["count", "share", "ratio", "distance", "index", "auc", "number"]
    tail: Tail = "both"
    drift: bool = True
    """Whether an alarm says that models are of another time: a retrain may help."""

    def value_at(self, score: float) -> float:
        """Give the value of a score, for bands; ends of open bands stay infinite."""
        if not np.isfinite(score):
            return score
        if self.kind in ("count", "ratio"):
            return exp(min(score, 700.0))
        if self.kind in ("share", "auc"):
            return 1 / (1 + exp(-max(min(score, 700.0), -700.0)))
        if self.kind in ("distance", "index"):
            floor = DISTANCE_FLOOR if self.kind == "distance" else INDEX_FLOOR
            size = exp(min(score, 50.0))
            return sqrt(max(0.0, size**2 - floor**2)) if self.kind == "distance" else size - floor
        return score


SIGNALS = {
    one.name: one
    for one in (
        Signal(name="events", title="events", group="volume", kind="count", drift=False),
        Signal(name="users", title="active users", group="volume", kind="count", drift=False),
        Signal(name="events_per_user", title="events per user", group="events", kind="ratio"),
        Signal(
            name="event_types",
            title="mix of event types",
            group="events",
            kind="distance",
            tail="high",
        ),
        Signal(
            name="domains", title="mix of domains", group="events", kind="distance", tail="high"
        ),
        Signal(
            name="values",
            title="distribution of values",
            group="events",
            kind="distance",
            tail="high",
        ),
        Signal(name="mean_value", title="mean value", group="events", kind="ratio"),
        Signal(
            name="categories",
            title="mix of categories",
            group="items",
            kind="distance",
            tail="high",
        ),
        Signal(
            name="popularity",
            title="popularity of items",
            group="items",
            kind="distance",
            tail="high",
        ),
        Signal(
            name="effective_items",
            title="effective number of items",
            group="items",
            kind="ratio",
        ),
        Signal(
            name="new_items", title="events on items new to the window", group="items", kind="share"
        ),
        Signal(name="new_users", title="users new to the window", group="events", kind="share"),
        Signal(
            name="item_vectors",
            title="item vectors of the events",
            group="vectors",
            kind="distance",
            tail="high",
        ),
        Signal(
            name="user_vectors",
            title="vectors of active users",
            group="vectors",
            kind="distance",
            tail="high",
        ),
        Signal(
            name="agreement",
            title="agreement of user and item vectors",
            group="vectors",
            kind="number",
        ),
        Signal(name="codes", title="usage of codes", group="vectors", kind="distance", tail="high"),
        Signal(
            name="effective_codes",
            title="effective number of codes in the catalogue",
            group="vectors",
            kind="ratio",
        ),
        Signal(
            name="two_sample",
            title="classifier two-sample test",
            group="features",
            kind="auc",
            tail="high",
        ),
        Signal(name="lists", title="served lists", group="online", kind="count", drift=False),
        Signal(name="click_rate", title="lists with a click", group="online", kind="share"),
        Signal(
            name="fallback_share",
            title="lists from a fallback",
            group="online",
            kind="share",
            drift=False,
        ),
        Signal(
            name="degraded_share",
            title="degraded lists",
            group="online",
            kind="share",
            drift=False,
        ),
    )
}


def signal_of(name: str) -> Signal:
    """Describe a signal; those of features are named after their column."""
    if name in SIGNALS:
        return SIGNALS[name]
    title = f"distribution of {name.replace('.', ' ').replace('_', ' ')}"
    return Signal(name=name, title=title, group="features", kind="index", tail="high")


def count(number: float) -> Measured:
    """Score a count by its logarithm."""
    return Measured(number, log(number + 0.5), 1 / sqrt(number + 0.5))


def share(part: float, whole: float) -> Measured:
    """Score a share by its log odds."""
    odds = (part + 0.5) / (whole - part + 0.5)
    return Measured(part / whole, log(odds), sqrt(1 / (part + 0.5) + 1 / (whole - part + 0.5)))


def ratio(value: float, noise: float) -> Measured:
    """Score a positive number by its logarithm."""
    return Measured(value, log(value), noise)


def distance(value: float, size: float) -> Measured:
    """Score a distance by its logarithm.

    Args:
        size: Users of the day relative to those of a usual one: a smaller sample lies farther off
            by chance, and its distance counts for less.
    """
    damped = value * min(1.0, sqrt(size))
    return Measured(value, log(sqrt(damped**2 + DISTANCE_FLOOR**2)), DISTANCE_NOISE)


def index(value: float, size: float) -> Measured:
    """Score a stability index likewise; by chance it grows with the inverse of the sample."""
    return Measured(value, log(value * min(1.0, size) + INDEX_FLOOR), 2 * DISTANCE_NOISE)


class Window(NamedTuple):
    """A day beside the reference window, counts of both by table."""

    day: Sketch
    tables: Mapping[str, tuple[pl.Series, Numbers, Numbers]]
    """Keys, counts of the day, counts of the window."""
    size: float
    """Users of the day relative to the window's mean."""
    num_days: int
    sample: pl.DataFrame
    """Events of the window."""

    def counts(self, table: str) -> tuple[Numbers, Numbers]:
        """Give the counts of the day and of the window; no rows where nothing is known.

        What the newest run does not know of items and users is left out: new ones are unknown
        until the next run, which is no drift of what they are.
        """
        if table not in self.tables or self.tables[table][0].to_list() == [UNKNOWN]:
            return np.zeros(0), np.zeros(0)
        keys, today, before = self.tables[table]
        if not table.startswith(KNOWN_BY_RUN):
            return today, before
        known = (keys != UNKNOWN).to_numpy()
        return today[known], before[known]


def window_of(day: Sketch, reference: Sequence[Sketch]) -> Window:
    """Pool the reference and lay the day beside it."""
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
    samples = pl.concat([one.sample for one in reference], how="diagonal_relaxed")
    keys, now, before = tables["total"]
    users = (keys == "users").to_numpy()
    usual = float(before[users].sum()) / len(reference)
    size = float(now[users].sum()) / usual if usual else 1.0
    return Window(day, tables, size, len(reference), samples)


def measure(
    day: Sketch,
    reference: Sequence[Sketch],
    vectors: ServedVectors | None,
    served: ServedDay | None,
    config: MonitoringConfig,
) -> dict[str, Measured]:
    """Measure every signal that the day and its reference window allow.

    Args:
        reference: Days before it that have events; too few of them leave distances out.
    """
    found = {"events": count(day.total("events")), "users": count(day.total("users"))}
    if served is not None:
        found |= online_signals(served)
    if day.total("events") < config.min_events:
        return found
    found["events_per_user"] = events_per_user(day)
    if (valued := day.total("valued")) >= 20 and day.total("value") > 0:
        mean = day.total("value") / valued
        spread = max(0.0, day.total("value_squares") / valued - mean**2)
        found["mean_value"] = ratio(mean, sqrt(spread / valued) / mean)
    if 2 * len(reference) < config.reference_days:
        return found
    window = window_of(day, reference)
    found |= mix_signals(window) | item_signals(window) | feature_signals(window)
    if vectors is not None:
        found |= vector_signals(window, vectors)
    tested = two_sample(window.day.sample, window.sample, config.max_examples)
    if tested is not None:
        found["two_sample"] = Measured(tested.value, tested.score, tested.noise)
    return {name: one for name, one in found.items() if np.isfinite(one.score)}


def events_per_user(day: Sketch) -> Measured:
    """Measure how much an active user does."""
    per_user = day.counts.filter(pl.col("table") == "user")["count"].to_numpy()
    mean = day.total("events") / day.total("users")
    noise = float(per_user.std()) / mean / sqrt(len(per_user)) if len(per_user) else 1.0
    return ratio(mean, noise)


def mix_signals(window: Window) -> dict[str, Measured]:
    """Compare mixes of few categories."""
    found = {}
    names = {
        "event_types": "event_type",
        "domains": "domain",
        "categories": "category",
    }
    for name, table in names.items():
        today, before = window.counts(table)
        if len(today):
            found[name] = distance(mix_distance(today, before), window.size)
    keys, today, before = window.tables["value"]
    valued = (keys != "none").to_numpy()
    if valued.any() and today[valued].sum() >= 20:
        found["values"] = distance(mix_distance(today[valued], before[valued]), window.size)
    return found


def item_signals(window: Window) -> dict[str, Measured]:
    """Measure which items events are of."""
    _, today, before = window.tables["item"]
    head = np.argsort(-before, kind="stable")[:HEAD_ITEMS]

    def headed(counts: Numbers) -> Numbers:
        return np.append(counts[head], counts.sum() - counts[head].sum())

    found = {"popularity": distance(mix_distance(headed(today), headed(before)), window.size)}
    effective = effective_number(today)
    if np.isfinite(effective):
        found["effective_items"] = ratio(effective, 2 / sqrt(today.sum()))
    found["new_items"] = share(today[before == 0].sum(), today.sum())
    _, users, users_before = window.tables["user"]
    active = users > 0
    found["new_users"] = share(float((active & (users_before == 0)).sum()), float(active.sum()))
    return found


def feature_signals(window: Window) -> dict[str, Measured]:
    """Compare features by the population stability index."""
    names = [name for name in window.tables if name.startswith(("item.", "user."))]
    found = {}
    for table in ["hour", *names[:MAX_COLUMNS]]:
        today, before = window.counts(table)
        if len(today):
            found[table] = index(stability_index(today, before), window.size)
    return found


def vector_signals(window: Window, vectors: ServedVectors) -> dict[str, Measured]:
    """Measure the day in the space of the served bundle, the window by the same vectors."""
    found = {}
    keys, today, before = window.tables["item"]
    rows = vectors.item_rows(keys)
    known = rows >= 0
    if today[known].sum() and before[known].sum():
        of_items = vectors.item_vectors[rows[known]]
        moved = mean_shift(of_items, today[known], of_items, before[known])
        found["item_vectors"] = distance(moved, window.size)
        if vectors.codes is not None:
            counts = today[known], before[known]
            found |= code_signals(vectors.codes[:, 0], rows[known], *counts, window.size)
    keys, today, before = window.tables["user"]
    keys, today, before = keys.head(MAX_USERS), today[:MAX_USERS], before[:MAX_USERS]
    of_users = vectors.user_vectors(keys)
    known = np.abs(of_users).sum(axis=1) > 0
    if (today[known] > 0).sum() >= MIN_USERS and (before[known] > 0).sum() >= MIN_USERS:
        moved = mean_shift(of_users[known], today[known], of_users[known], before[known])
        found["user_vectors"] = distance(moved, window.size)
    return found


def code_signals(
    codes: Rows, rows: Rows, today: Numbers, before: Numbers, size: float
) -> dict[str, Measured]:
    """Measure which codes the events' items have, and how evenly the catalogue uses them.

    Args:
        codes: First codes by item row, -1 without.
        rows: Item rows of the counts that follow.
    """
    number = int(codes.max(initial=0)) + 1
    own = codes[rows]
    used = own >= 0
    now: Numbers = np.bincount(own[used], weights=today[used], minlength=number).astype(float)
    then: Numbers = np.bincount(own[used], weights=before[used], minlength=number).astype(float)
    found = {"codes": distance(mix_distance(now, then), size)}
    effective = effective_number(np.bincount(codes[codes >= 0], minlength=number).astype(float))
    if np.isfinite(effective):
        found["effective_codes"] = ratio(effective, CATALOGUE_NOISE)
    return found


def agreement_of(day: Sketch, vectors: ServedVectors) -> Measured | None:
    """Correlation of users' vectors with those of the items of their events, means taken off.

    An index of another tower than the queries' brings it to 0. None for too few known pairs.
    """
    if day.sample.height < MIN_PAIRS:
        return None
    rows = vectors.item_rows(day.sample["item_id"])
    users = vectors.user_vectors(day.sample["user_id"])
    known = (rows >= 0) & (np.abs(users).sum(axis=1) > 0)
    if known.sum() < MIN_PAIRS:
        return None
    items, users = vectors.item_vectors[rows[known]], users[known]
    items, users = items - items.mean(axis=0), users - users.mean(axis=0)
    lengths = sqrt((items**2).sum() * (users**2).sum())
    if lengths <= 0:
        return None
    products = (users * items).sum(axis=1)
    value = float(products.sum() / lengths)
    error = float(products.std()) * sqrt(len(products)) / lengths
    return Measured(value, value, error)


def online_signals(served: ServedDay) -> dict[str, Measured]:
    """Measure what was served and clicked."""
    found = {"lists": count(served.num_lists)}
    if served.num_lists < MIN_LISTS:
        return found
    found["click_rate"] = share(served.num_clicked, served.num_lists)
    if served.num_fallback is not None:
        found["fallback_share"] = share(served.num_fallback, served.num_lists)
    if served.num_degraded is not None:
        found["degraded_share"] = share(served.num_degraded, served.num_lists)
    return found
