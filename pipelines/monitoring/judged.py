"""Each signal's days so far: values, bands learned from the days before, alarms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from features.reading.scan import naming
from pipelines.config.operation import MIN_PAST, PAST_DAYS, MonitoringConfig
from pipelines.monitoring.signals import SIGNALS, Measurement
from recsys.data.durable import replace_file
from recsys.evaluation.drift import Past, usual_band

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
