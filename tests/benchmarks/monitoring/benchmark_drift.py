"""Alarms of `recsys monitor` on years of a synthetic shop, without drift and with planted drift.

The shop has a weekly season, growth, ten holidays a year, mixes that wander, and new items and
users each day. Without drift every alarm is a false one. Drift of each kind begins on several days
of the year; it is found if its own signals raise an alarm on its first day.
"""

from __future__ import annotations

import time
from collections import Counter
from itertools import islice

from tests.benchmarks.harness import Row, command_line, write_results
from tests.year.watched import Watched
from tests.year.world import KINDS, Drift, World, WorldConfig

OWN_SIGNALS = {
    "event_mix": {"event_types"},
    "category": {"popularity"},
    "popularity": {"popularity"},
    "ctr": {"click_rate"},
    "stops": {"events"},
}
SIZES = (0.3, 0.5)
"""Share of the events, lists, items or hours that a drift concerns."""
MONTHS = 12


class Year:
    """What a year of one seed showed."""

    def __init__(self, seed: int, days: int, planted_on: list[int]) -> None:
        self.false_days: list[int] = []
        self.raised = 0
        self.signals: Counter[str] = Counter()
        self.found: Counter[tuple[str, float]] = Counter()
        self.planted = 0
        config, watched = WorldConfig(seed=seed, days=days), Watched()
        for number, day in enumerate(islice(World(config).days(), days)):
            if number in planted_on:
                self.plant(watched, config, number)
            alarms = watched.see(day)
            self.signals.update(alarms)
            if alarms:
                self.false_days.append(number)
            judged = watched.record.days[-1].values()
            self.raised += any(one.streak == 1 for one in judged)

    def plant(self, watched: Watched, config: WorldConfig, day: int) -> None:
        """Let drift of each kind and size begin on a day."""
        self.planted += 1
        for kind in KINDS:
            for size in SIZES:
                alarms = set(watched.with_drift(config, [Drift(kind=kind, day=day, size=size)]))
                self.found[kind, size] += bool(alarms & OWN_SIGNALS[kind])


def rows_of(years: list[Year], seconds: float) -> list[Row]:
    """Sum the years up."""
    months = MONTHS * len(years)
    days = sum(len(year.false_days) for year in years)
    worst = max(len(year.false_days) for year in years) / MONTHS
    found = [
        Row(name="days with a false alarm a month", value=days / months, at_most=1.0),
        Row(name="days with a false alarm a month, worst seed", value=worst, at_most=1.0),
        Row(
            name="false alarms raised a month",
            value=sum(year.raised for year in years) / months,
            at_most=1.0,
        ),
    ]
    planted = sum(year.planted for year in years)
    for kind in KINDS:
        for size in SIZES:
            share = sum(year.found[kind, size] for year in years) / planted
            name = f"{kind}, {size:.0%} of the day: found on its first day"
            bar = 100.0 if size == max(SIZES) else None
            found.append(Row(name=name, value=100 * share, unit="%", at_least=bar))
    found.append(Row(name="seconds a day", value=seconds, unit="s"))
    return found


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--planted", type=int, nargs="+", default=[75, 140, 205, 263, 330])
    options = parser.parse_args()
    years, seconds = [], 0.0
    for seed in range(options.seeds):
        begin = time.perf_counter()
        Year(seed + 100, 90, [])
        seconds += (time.perf_counter() - begin) / 90 / options.seeds
        years.append(Year(seed, options.days, options.planted))
        print(seed, len(years[-1].false_days), dict(years[-1].signals), flush=True)
    write_results("drift", rows_of(years, seconds), notes=f"{options.seeds} years.\n")


if __name__ == "__main__":
    main()
