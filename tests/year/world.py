"""A small shop, day by day: weekly season, growth, holidays, and drift planted on a chosen day.

    for date, events, items in world_days(seed=0, days=365):
        ...

Users belong to groups that like categories; items and users join as days pass. The same seed gives
the same days, however many, and whatever drift is planted later.

Axes: E events of a day, N items, U users, G groups, C categories.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import numpy as np
import polars as pl
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Rows = NDArray[np.int64]

KINDS = ("event_mix", "category", "popularity", "ctr", "stops")
"""Of drift; the last is an input that stops: the day has no events."""
EVENT_TYPES = ("view", "click", "like", "purchase")
TYPE_SHARES = np.array([0.62, 0.25, 0.08, 0.05])
WEEK = np.array([1.0, 0.97, 0.96, 1.0, 1.1, 1.3, 1.2])
"""Volume of Monday to Sunday."""
MOST_DAYS = 800


@dataclass(frozen=True, kw_only=True)
class Drift:
    """What changes for good on a day."""

    kind: str
    day: int
    """Counted from 0."""
    size: float = 0.3
    """Share of the events, lists, items or users that it concerns."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {KINDS}, got {self.kind!r}")


@dataclass(frozen=True, kw_only=True)
class WorldConfig:
    """How large the shop is and how it moves."""

    seed: int = 0
    days: int = 365
    users: int = 1_500
    """At the first day; 0.2% join each day."""
    items: int = 400
    """At the first day; 0.2% join each day."""
    events: int = 2_000
    """Of a usual first day."""
    first_day: date = date(2026, 1, 5)
    growth: float = 0.001
    """Of the volume, a day."""
    holidays: int = 10
    """Holidays a year: one day each of more and other events."""
    noise: float = 0.05
    """Of a day's volume and mixes, as a standard deviation of logarithms."""
    num_groups: int = 8
    num_categories: int = 12


@dataclass(frozen=True, kw_only=True)
class WorldDay:
    """One day."""

    date: date
    events: pl.DataFrame
    """user_id, item_id, event_time, event_type, value, domain, session_id."""
    items: pl.DataFrame
    """The catalogue as of the day: item_id, title, categories, brand, price, domain,
    available_from."""
    served: pl.DataFrame
    """Lists that were served, as recsys data export writes them, a row an item."""
    clicks: pl.DataFrame
    """Events on those lists, with request_id and slot."""


def world_days(
    seed: int = 0,
    days: int = 365,
    users: int = 1_500,
    items: int = 400,
    *,
    events: int = 2_000,
    first_day: date = date(2026, 1, 5),
    drift: Sequence[Drift] = (),
) -> Iterator[tuple[date, pl.DataFrame, pl.DataFrame]]:
    """Give each day's date, events and catalogue."""
    config = WorldConfig(
        seed=seed, days=days, users=users, items=items, events=events, first_day=first_day
    )
    for day in World(config, drift).days():
        yield day.date, day.events, day.items


class World:
    """The shop; ``days`` begins anew each time."""

    def __init__(self, config: WorldConfig, drift: Sequence[Drift] = ()) -> None:
        self.config, self.drift = config, tuple(drift)
        self._rng = np.random.default_rng([config.seed, 1])
        rng, groups, categories = self._rng, config.num_groups, config.num_categories
        self._taste = rng.normal(0.0, 1.0, (groups, categories))
        self._weekend = rng.normal(0.0, 0.15, categories)
        self._weekend_types = np.array([0.0, -0.05, 0.05, 0.1])
        # So many are drawn that a longer world begins with the days of a shorter one.
        longest = max(MOST_DAYS, config.days) + 1
        most_items = round(config.items * (1 + 0.002 * longest)) + 1
        most_users = round(config.users * (1 + 0.002 * longest)) + 1
        self._categories = rng.integers(0, categories, most_items)
        self._popularity = rng.gumbel(size=most_items) * 0.6
        self._prices = np.round(np.exp(rng.normal(3.0, 0.5, most_items)), 2)
        self._groups = rng.integers(0, groups, most_users)
        self._activity = np.exp(rng.normal(0, 0.7, most_users))
        self._items = self._item_table()
        self._users = pl.Series([f"u{row:06d}" for row in range(most_users)])
        count = round(config.holidays * longest / 365)
        self._holidays = set(rng.choice(longest, count, replace=False).tolist())

    def _item_table(self) -> pl.DataFrame:
        config, count = self.config, len(self._categories)
        joined = np.maximum(
            0, np.ceil((np.arange(count) - config.items + 1) / (0.002 * config.items))
        ).astype(int)
        return pl.DataFrame(
            {
                "item_id": [f"i{row:05d}" for row in range(count)],
                "title": [
                    f"{'small' if row % 2 else 'large'} thing {row} of kind {kind}"
                    for row, kind in enumerate(self._categories)
                ],
                "categories": [[f"kind {kind}"] for kind in self._categories],
                "brand": [f"brand {row % 20}" for row in range(count)],
                "price": self._prices,
                "domain": [("home", "garden", "toys")[kind % 3] for kind in self._categories],
                "available_from": [
                    config.first_day + timedelta(days=int(day)) for day in joined.tolist()
                ],
            }
        )

    def size(self, kind: str, day: int) -> float:
        """Give the size of a kind of drift on a day; 0 before it."""
        return max(
            (one.size for one in self.drift if one.kind == kind and day >= one.day), default=0
        )

    def days(self) -> Iterator[WorldDay]:
        """Give the days in order."""
        config = self.config
        tilt = np.zeros(config.num_categories)
        trend = np.zeros(len(self._categories))
        for day in range(config.days):
            rng = np.random.default_rng([config.seed, 2, day])
            tilt = 0.7 * tilt + rng.normal(0, config.noise, len(tilt))
            trend = 0.98 * trend + rng.normal(0, config.noise, len(trend))
            yield self._day(day, tilt, trend, rng)

    def _day(self, day: int, tilt: Numbers, trend: Numbers, rng: np.random.Generator) -> WorldDay:
        config, today = self.config, self.config.first_day + timedelta(days=day)
        num_items = round(config.items * (1 + 0.002 * day))
        num_users = round(config.users * (1 + 0.002 * day))
        is_holiday = day in self._holidays
        weekend = today.weekday() >= 5
        volume = config.events * (1 + config.growth) ** day * WEEK[today.weekday()]
        volume *= np.exp(rng.normal(0, config.noise)) * (1.25 if is_holiday else 1.0)
        tilt = tilt + weekend * self._weekend
        if is_holiday:
            tilt = tilt + rng.normal(0, 0.15, len(tilt))
        users = self._active(num_users, volume, rng)
        items = self._chosen(users, num_items, tilt, trend[:num_items], day, rng)
        events = self._events(today, users, items, weekend, day, rng)
        served, clicks = self._served(today, num_users, num_items, volume / 2, day, rng)
        if self.size("stops", day):
            events = events.clear()
        return WorldDay(
            date=today,
            events=events,
            items=self._items.head(num_items),
            served=served,
            clicks=clicks,
        )

    def _active(self, count: int, volume: float, rng: np.random.Generator) -> Rows:
        """Draw the user of each event, those of a user in a row, [E]."""
        weights = self._activity[:count]
        num_active = min(count, max(1, rng.poisson(volume / 4)))
        keys = rng.exponential(size=count) / np.maximum(weights, 1e-12)
        active = np.argpartition(keys, num_active - 1)[:num_active]
        return np.repeat(np.sort(active), 1 + rng.poisson(3, num_active))

    def _chosen(
        self,
        users: Rows,
        num_items: int,
        tilt: Numbers,
        trend: Numbers,
        day: int,
        rng: np.random.Generator,
    ) -> Rows:
        """Draw the item of each event, [E]."""
        kinds = self._categories[:num_items]
        weights = np.exp(self._popularity[:num_items] + trend + tilt[kinds])
        items = np.zeros(len(users), np.int64)
        for group in range(self.config.num_groups):
            own = self._groups[users] == group
            likes = weights * np.exp(self._taste[group, kinds])
            items[own] = np.searchsorted(np.cumsum(likes) / likes.sum(), rng.random(own.sum()))
        forced = rng.random(len(users))
        if size := self.size("category", day):
            of_kind = np.flatnonzero(kinds == 0)
            items = np.where(forced < size, rng.choice(of_kind, len(users)), items)
        if size := self.size("popularity", day):
            few = np.random.default_rng([self.config.seed, 3]).choice(num_items, 5, replace=False)
            items = np.where(forced < size, rng.choice(few, len(users)), items)
        return np.minimum(items, num_items - 1)

    def _events(
        self,
        today: date,
        users: Rows,
        items: Rows,
        weekend: bool,
        day: int,
        rng: np.random.Generator,
    ) -> pl.DataFrame:
        shares = TYPE_SHARES * np.exp(rng.normal(0, self.config.noise, 4))
        shares = shares * np.exp(weekend * self._weekend_types)
        shares /= shares.sum()
        if size := self.size("event_mix", day):
            shares = (1 - size) * shares + size * np.array([0.0, 1.0, 0.0, 0.0])
        kinds = rng.choice(4, len(users), p=shares)
        starts = np.concatenate([[True], np.diff(users) != 0])
        session = np.cumsum(starts) - 1
        hours = rng.choice(24, session[-1] + 1, p=HOURS / HOURS.sum()) + rng.random(session[-1] + 1)
        rng.random(len(hours))
        gaps = rng.exponential(120.0, len(users))
        elapsed = np.cumsum(gaps) - np.cumsum(gaps)[np.flatnonzero(starts)][session]
        seconds = np.minimum(hours[session] * 3_600 + elapsed, 86_399)
        midnight = datetime.combine(today, datetime.min.time(), UTC)
        values = np.round(self._prices[items] * np.exp(rng.normal(0, 0.1, len(items))), 2)
        frame = pl.DataFrame(
            {
                "user_id": self._users.gather(users),
                "item_id": self._items["item_id"].gather(items),
                "event_time": (int(midnight.timestamp() * 1e6) + (seconds * 1e6)).astype(np.int64),
                "event_type": pl.Series(EVENT_TYPES).gather(kinds),
                "value": values,
                "domain": self._items["domain"].gather(items),
                "session_id": [f"s{day}-{number}" for number in session.tolist()],
            }
        )
        return frame.with_columns(
            pl.col("event_time").cast(pl.Datetime("us", "UTC")),
            pl.when(pl.col("event_type") == "purchase").then("value").alias("value"),
        ).sort("event_time", "user_id", "item_id")

    def _served(
        self,
        today: date,
        num_users: int,
        num_items: int,
        volume: float,
        day: int,
        rng: np.random.Generator,
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Give the day's served lists of five items, and the clicks on them."""
        count = max(1, rng.poisson(volume))
        midnight = int(datetime.combine(today, datetime.min.time(), UTC).timestamp() * 1e3)
        times = np.sort(midnight + rng.integers(0, 86_399_000, count))
        ids = [f"{time:012x}{number:020x}" for number, time in enumerate(times.tolist())]
        users = rng.integers(0, num_users, count)
        fallback = rng.random(count) < 0.03
        degraded = rng.random(count) < 0.02
        lists = pl.DataFrame(
            {
                "request_id": ids,
                "received_time": times,
                "user_id": self._users.gather(users),
                "surface": ["home"] * count,
                "bundle": ["world"] * count,
                "fallback": pl.Series(["popularity"]).gather(np.zeros(count, int)),
                "degraded": degraded,
            }
        ).with_columns(
            pl.col("received_time").cast(pl.Datetime("ms", "UTC")),
            pl.when(pl.Series(fallback)).then("fallback").alias("fallback"),
            pl.when("degraded").then(pl.lit("user_unknown")).alias("degraded"),
        )
        items = rng.integers(0, num_items, 5 * count)
        served = lists.select(pl.all().repeat_by(5).explode(empty_as_null=True)).with_columns(
            item_id=self._items["item_id"].gather(items),
            slot=pl.Series(np.tile(np.arange(5), count)),
            source=pl.lit("blend"),
        )
        rate = 0.25 * (1 - self.size("ctr", day)) * np.exp(rng.normal(0, self.config.noise / 2))
        clicked = np.flatnonzero(rng.random(count) < rate)
        slots = rng.integers(0, 5, len(clicked))
        clicks = lists[clicked].select(
            "user_id",
            pl.Series("item_id", self._items["item_id"].gather(items[5 * clicked + slots])),
            (pl.col("received_time") + pl.duration(seconds=30)).alias("event_time"),
            pl.lit("click").alias("event_type"),
            "request_id",
            pl.Series("slot", slots),
            "received_time",
        )
        return served, clicks


HOURS = 1.2 + np.sin((np.arange(24) - 13) / 24 * 2 * np.pi)
"""How many sessions begin in each hour."""
