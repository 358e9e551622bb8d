"""Signals of a day: each has a value, and a score on a scale on which deviations add."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from math import exp, log, sqrt
from typing import NamedTuple

import numpy as np
import polars as pl

from pipelines.config.operation import MonitoringConfig
from pipelines.monitoring.days import ServedDay
from pipelines.monitoring.sketch import MAX_USERS, UNKNOWN, Sketch
from pipelines.monitoring.vectors import Numbers, ServedVectors
from recsys.evaluation.drift import (
    Tail,
    effective_number,
    mean_shift,
    mix_distance,
    stability_index,
    two_sample_auc,
)

FREQUENT_LEVELS = 12
"""Categories of a column that the regression reads, those most frequent in the window."""
MIN_EXAMPLES = 50


def two_sample(day: pl.DataFrame, window: pl.DataFrame, max_examples: int) -> Measurement | None:
    """Score how well a regression tells the day from its window; None for too few events."""
    if min(day.height, window.height) < MIN_EXAMPLES:
        return None
    day = day.head(max_examples)
    window = window.sample(min(max_examples, window.height), seed=0)
    both = pl.concat([day, window], how="diagonal_relaxed")
    x = encode_events(both, window)
    folds = np.array([zlib.crc32(one.encode()) & 1 for one in both["user_id"].to_list()])
    size = day.height
    area = two_sample_auc(x[:size], x[size:], folds[:size], folds[size:])
    if not np.isfinite(area):
        return None
    area = min(max(area, 1e-3), 1 - 1e-3)
    users = min(day["user_id"].n_unique(), window["user_id"].n_unique())
    return Measurement(area, log(area / (1 - area)), 1 / sqrt(users))


def encode_levels(column: pl.Series, window: pl.Series) -> list[np.ndarray]:
    """Encode each frequent value as 0 or 1; unknown values, as of new users, as the usual share."""
    known = window.filter(window != UNKNOWN)
    if known.is_empty():
        return []
    counts = known.value_counts(sort=True, name="count").head(FREQUENT_LEVELS)
    unknown = (column == UNKNOWN).fill_null(value=True).to_numpy()
    return [
        np.where(unknown, count / len(known), (column == level).fill_null(value=False).to_numpy())
        for level, count in counts.iter_rows()
    ]


def encode_events(rows: pl.DataFrame, window: pl.DataFrame) -> np.ndarray:
    """Encode events as numbers, [E, F]: hour of the day, value, and 0 or 1 for each category."""
    seconds = rows["event_time"].dt.epoch("s").fill_null(0).to_numpy() % 86_400
    angle = 2 * np.pi * seconds / 86_400
    value = rows["value"].fill_null(0.0).fill_nan(0.0).to_numpy()
    columns = [
        np.sin(angle),
        np.cos(angle),
        np.sign(value) * np.log1p(np.abs(value)),
        (rows["value"].is_not_null()).to_numpy().astype(float),
    ]
    skipped = {"user_id", "item_id", "hour", "value_bin"}
    for name, kind in rows.schema.items():
        if kind != pl.String() or name in skipped or name not in window.columns:
            continue
        columns += encode_levels(rows[name], window[name])
    return np.stack(columns, axis=1)


DISTANCE_FLOOR = 0.02
INDEX_FLOOR = 0.005
DISTANCE_NOISE = 0.1
CATALOGUE_NOISE = 0.02
HEAD_ITEMS = 200
KNOWN_BY_RUN = ("category", "item.", "user.")
"""Tables, or how their names begin, of what a run's catalogue and users say."""
MAX_COLUMNS = 12
MIN_LISTS = 30
MIN_USERS = 20
"""Known users of a day whose vectors are compared."""
MIN_PAIRS = 50
"""Events of known users and items that agreement is measured by."""


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
    """``count``, ``share``, ``ratio``, ``distance``, ``index``, ``auc`` or ``number``."""
    tail: Tail = "both"
    drift: bool = True
    """True if an alarm means drift, so that retraining may help."""

    def value_at(self, score: float) -> float:
        """Convert a score of a band back to a value; ends of open bands stay infinite."""
        if not np.isfinite(score) or self.kind == "number":
            return score
        if self.kind in ("share", "auc"):
            return 1 / (1 + exp(-max(min(score, 700.0), -700.0)))
        if self.kind == "distance":
            return sqrt(max(0.0, exp(min(score, 50.0)) ** 2 - DISTANCE_FLOOR**2))
        if self.kind == "index":
            return exp(min(score, 50.0)) - INDEX_FLOOR
        return exp(min(score, 700.0))


HIGH: Tail = "high"
BOTH: Tail = "both"
SIGNALS = {
    row[0]: Signal(*row)
    for row in (
        ("events", "events", "volume", "count", BOTH, False),
        ("users", "active users", "volume", "count", BOTH, False),
        ("events_per_user", "events per user", "events", "ratio", BOTH, True),
        ("event_types", "mix of event types", "events", "distance", HIGH, True),
        ("domains", "mix of domains", "events", "distance", HIGH, True),
        ("values", "distribution of values", "events", "distance", HIGH, True),
        ("mean_value", "mean value", "events", "ratio", BOTH, True),
        ("categories", "mix of categories", "items", "distance", HIGH, True),
        ("popularity", "popularity of items", "items", "distance", HIGH, True),
        ("effective_items", "effective number of items", "items", "ratio", BOTH, True),
        ("new_items", "events on items new to the window", "items", "share", BOTH, True),
        ("new_users", "users new to the window", "events", "share", BOTH, True),
        ("item_vectors", "item vectors of the events", "vectors", "distance", HIGH, True),
        ("user_vectors", "vectors of active users", "vectors", "distance", HIGH, True),
        ("agreement", "agreement of user and item vectors", "vectors", "number", BOTH, True),
        ("codes", "usage of codes", "vectors", "distance", HIGH, True),
        ("effective_codes", "effective number of codes", "vectors", "ratio", BOTH, True),
        ("two_sample", "classifier two-sample test", "features", "auc", HIGH, True),
        ("lists", "served lists", "online", "count", BOTH, False),
        ("click_rate", "lists with a click", "online", "share", BOTH, True),
        ("fallback_share", "lists from a fallback", "online", "share", BOTH, False),
        ("degraded_share", "degraded lists", "online", "share", BOTH, False),
    )
}


def find_signal(name: str) -> Signal:
    """Describe a signal; those of features are named after their column."""
    if name in SIGNALS:
        return SIGNALS[name]
    title = f"distribution of {name.replace('.', ' ').replace('_', ' ')}"
    return Signal(name, title, "features", "index", HIGH)


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


def index(value: float, size: float) -> Measurement:
    """Score a stability index likewise; by chance it grows with the inverse of the sample."""
    return Measurement(value, log(value * min(1.0, size) + INDEX_FLOOR), 2 * DISTANCE_NOISE)


class ReferenceWindow(NamedTuple):
    """A day and the reference window, counts of both by table."""

    tables: Mapping[str, tuple[pl.Series, Numbers, Numbers]]
    """Keys, counts of the day, counts of the window."""
    size: float
    """Users of the day relative to the window's mean."""
    sample: pl.DataFrame
    """Events of the window."""

    def counts(self, table: str) -> tuple[Numbers, Numbers]:
        """Return the counts of the day and of the window; empty if nothing is known.

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
    samples = pl.concat([one.sample for one in reference], how="diagonal_relaxed")
    keys, now, before = tables["total"]
    users = (keys == "users").to_numpy()
    usual = float(before[users].sum()) / len(reference)
    size = float(now[users].sum()) / usual if usual else 1.0
    return ReferenceWindow(tables, size, samples)


def measure(
    day: Sketch,
    reference: Sequence[Sketch],
    vectors: ServedVectors | None,
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
    if (valued := day.total("valued")) >= 20 and day.total("value") > 0:
        mean = day.total("value") / valued
        spread = max(0.0, day.total("value_squares") / valued - mean**2)
        found["mean_value"] = ratio(mean, sqrt(spread / valued) / mean)
    if 2 * len(reference) < config.reference_days:
        return found
    window = build_window(day, reference)
    found |= mix_signals(window) | item_signals(window) | feature_signals(window)
    if vectors is not None:
        found |= vector_signals(window, vectors)
    if tested := two_sample(day.sample, window.sample, config.max_examples):
        found["two_sample"] = tested
    return {name: one for name, one in found.items() if np.isfinite(one.score)}


def mix_signals(window: ReferenceWindow) -> dict[str, Measurement]:
    """Compare mixes of few categories."""
    found = {}
    names = {"event_types": "event_type", "domains": "domain", "categories": "category"}
    for name, table in names.items():
        today, before = window.counts(table)
        if len(today):
            found[name] = distance(mix_distance(today, before), window.size)
    keys, today, before = window.tables["value"]
    valued = (keys != "none").to_numpy()
    if valued.any() and today[valued].sum() >= 20:
        found["values"] = distance(mix_distance(today[valued], before[valued]), window.size)
    return found


def item_signals(window: ReferenceWindow) -> dict[str, Measurement]:
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


def feature_signals(window: ReferenceWindow) -> dict[str, Measurement]:
    """Compare features by the population stability index."""
    names = [name for name in window.tables if name.startswith(("item.", "user."))]
    found = {}
    for table in ["hour", *names[:MAX_COLUMNS]]:
        today, before = window.counts(table)
        if len(today):
            found[table] = index(stability_index(today, before), window.size)
    return found


def vector_signals(window: ReferenceWindow, vectors: ServedVectors) -> dict[str, Measurement]:
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
            own, all_codes = vectors.codes[rows[known], 0], vectors.codes[:, 0]
            used, number = own >= 0, int(all_codes.max(initial=0)) + 1
            now, then = (
                np.bincount(own[used], weights=counts[known][used], minlength=number).astype(float)
                for counts in (today, before)
            )
            found["codes"] = distance(mix_distance(now, then), window.size)
            usage = np.bincount(all_codes[all_codes >= 0], minlength=number).astype(float)
            if np.isfinite(effective := effective_number(usage)):
                found["effective_codes"] = ratio(effective, CATALOGUE_NOISE)
    keys, today, before = window.tables["user"]
    keys, today, before = keys.head(MAX_USERS), today[:MAX_USERS], before[:MAX_USERS]
    of_users = vectors.user_vectors(keys)
    known = np.abs(of_users).sum(axis=1) > 0
    if (today[known] > 0).sum() >= MIN_USERS and (before[known] > 0).sum() >= MIN_USERS:
        moved = mean_shift(of_users[known], today[known], of_users[known], before[known])
        found["user_vectors"] = distance(moved, window.size)
    return found


def measure_agreement(day: Sketch, vectors: ServedVectors) -> Measurement | None:
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
    return Measurement(value, value, error)


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
