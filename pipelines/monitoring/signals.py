"""Signals of a day: each has a value, and a score on a scale on which deviations add.

Bands are learned from the days before, and tell which values are alarms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from math import exp, log, sqrt
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from features.reading.scan import naming
from pipelines.config.operation import MIN_PAST, PAST_DAYS, MonitoringConfig
from pipelines.monitoring.days import EventCounts, ServedDay
from recsys.data.durable import replace_file
from recsys.evaluation.drift import Past, Tail, mix_distance, usual_band

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


DAYS_A_MONTH = 30.4
NUMBERS = ("value", "score", "noise", "low", "high", "residual")
JUDGED = pl.Schema(
    {
        "date": pl.Date(),
        "signal": pl.String(),
        **dict.fromkeys(NUMBERS, pl.Float64()),
        "streak": pl.Int64(),
        "num_past": pl.Int64(),
    }
)
"""``low`` and ``high`` are values, not scores; an open end is infinite."""


class SignalDay(NamedTuple):
    """One signal on one day."""

    value: float
    score: float
    noise: float
    low: float
    high: float
    residual: float
    streak: int
    """Days of alarm in a row up to this one; 0 is no alarm."""
    num_past: int


@dataclass(kw_only=True)
class SignalRecord:
    """All days in order, without gaps in the calendar."""

    first: date | None = None
    days: list[dict[str, SignalDay]] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path) -> SignalRecord:
        """Read it, without signals of earlier versions; empty if there is none."""
        if not path.exists():
            return cls()
        try:
            with naming(path):
                rows = pl.read_parquet(path, columns=JUDGED.names())
        except ValueError as error:
            raise ValueError(
                f"{error}; or delete {path.parent}: the next recsys monitor measures all days again"
            ) from error
        rows = rows.filter(pl.col("signal").is_in(list(SIGNALS)))
        if rows.is_empty():
            return cls()
        first, last = rows["date"].min(), rows["date"].max()
        assert isinstance(first, date)
        assert isinstance(last, date)
        days: list[dict[str, SignalDay]] = [{} for _ in range((last - first).days + 1)]
        for day, name, *values in rows.iter_rows():
            days[(day - first).days][name] = SignalDay(*values)
        return cls(first=first, days=days)

    def save(self, path: Path) -> None:
        replace_file(path, self.table().write_parquet)

    def table(self) -> pl.DataFrame:
        """Build its table."""
        rows = [
            (self.date_of(place), name, *judged)
            for place, day in enumerate(self.days)
            for name, judged in day.items()
        ]
        return pl.DataFrame(rows, schema=JUDGED, orient="row")

    def date_of(self, place: int) -> date:
        assert self.first is not None
        return self.first + timedelta(days=place)

    def judge(
        self, place: int, measured: Mapping[str, Measurement], config: MonitoringConfig
    ) -> None:
        """Judge a day by the days before it, and keep it in its place."""
        pasts = {name: self._past(name, place) for name in measured}
        ready = sum(int((~np.isnan(past.residuals)).sum()) >= MIN_PAST for past in pasts.values())
        chance = config.false_alarms_a_month / (DAYS_A_MONTH * max(1, ready))
        weekday = self.date_of(place).weekday()
        found = {}
        for name, one in measured.items():
            signal = SIGNALS[name]
            band = usual_band(pasts[name], weekday, one.noise, signal.tail, chance)
            is_ready = band.num_past >= MIN_PAST
            is_alarm = is_ready and not band.low <= one.score <= band.high
            before = int(pasts[name].streaks[-1]) if place else 0
            low, high = (band.low, band.high) if is_ready else (-np.inf, np.inf)
            found[name] = SignalDay(
                *one,
                low=signal.value_at(low),
                high=signal.value_at(high),
                residual=one.score - band.base,
                streak=before + 1 if is_alarm else 0,
                num_past=band.num_past,
            )
        self.days[place:] = [found]

    def _past(self, name: str, place: int) -> Past:
        begin = max(0, place - PAST_DAYS)
        rows = [day.get(name) for day in self.days[begin:place]]
        nan = np.nan
        none = SignalDay(nan, nan, nan, nan, nan, nan, streak=0, num_past=0)
        past = [one or none for one in rows]
        return Past(
            scores=np.array([one.score for one in past], np.float64),
            residuals=np.array([one.residual for one in past], np.float64),
            noise=np.array([one.noise for one in past], np.float64),
            streaks=np.array([one.streak for one in past], np.int64),
            weekdays=(self.date_of(begin).weekday() + np.arange(len(rows))) % 7,
        )
