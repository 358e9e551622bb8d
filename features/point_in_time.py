"""Point-in-time features, known strictly before an event, in batch and for one request.

Each feature has two definitions that a test holds equal: a Polars expression for whole tables, and
a function of a running state for one request.
All are categories: row 0 means unknown.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

import polars as pl

SECONDS_PER_HOUR = 3600
HOURS_SINCE_EDGES = (1, 6, 24, 72, 168, 720, 2160, 8760)
NUM_EVENTS_EDGES = (1, 2, 3, 5, 10, 20, 50, 100, 500)


@dataclass
class UserState:
    """Running state of one user's events, oldest first.

    Events at the latest time are held back, because they are not strictly before a label at that
    same time.
    """

    num_before: int = 0
    """Events strictly before ``latest_time``."""
    num_latest: int = 0
    """Events at ``latest_time``."""
    latest_time: int | None = None
    """Unix seconds."""
    time_before: int | None = None
    """The last time before ``latest_time``."""

    def update(self, event_time: int) -> None:
        """Add an event; times must not fall."""
        if self.latest_time is not None and event_time < self.latest_time:
            raise ValueError(
                f"event at {event_time} after one at {self.latest_time}; add events oldest first"
            )
        if event_time == self.latest_time:
            self.num_latest += 1
            return
        self.num_before += self.num_latest
        self.num_latest = 1
        self.time_before, self.latest_time = self.latest_time, event_time

    def num_until(self, now: int) -> int:
        """Count the events strictly before ``now``."""
        tied = self.latest_time is not None and self.latest_time >= now
        return self.num_before + (0 if tied else self.num_latest)

    def last_time(self, now: int) -> int | None:
        """Return the latest event time strictly before ``now``."""
        tied = self.latest_time is not None and self.latest_time >= now
        return self.time_before if tied else self.latest_time


@dataclass(frozen=True, kw_only=True)
class Feature:
    """One categorical feature as of a moment."""

    name: str
    cardinality: int
    """Number of categories, row 0 (unknown) included."""
    needs_time: bool
    default: int
    """Category where nothing is known of the user."""
    expression: pl.Expr
    """Batch: over rows ordered by user and time, with columns user_row and event_time (seconds)."""
    value: Callable[[UserState, int], int]
    """Request: category from the user's state as of ``now`` (unix seconds)."""


def _bucket(value: pl.Expr, edges: tuple[int, ...]) -> pl.Expr:
    """Count the edges that the value reaches.

    A search computes the value once; a sum of comparisons would once an edge.
    """
    return pl.lit(pl.Series(edges, dtype=pl.Int64)).search_sorted(value, "right").cast(pl.Int64)


def _time() -> pl.Expr:
    return pl.col("event_time")


def _new_tie() -> pl.Expr:
    """Mark rows whose user or time differs from the row before."""
    user = pl.col("user_row")
    return ((user != user.shift()) | (_time() != _time().shift())).fill_null(value=True)


def _first_of_user() -> pl.Expr:
    user = pl.col("user_row")
    return (user != user.shift()).fill_null(value=True)


def _place() -> pl.Expr:
    return pl.int_range(pl.len(), dtype=pl.Int64)


def _num_events() -> pl.Expr:
    tie_start = pl.when(_new_tie()).then(_place()).forward_fill()
    user_start = pl.when(_first_of_user()).then(_place()).forward_fill()
    return tie_start - user_start


def _seconds_since() -> pl.Expr:
    """Seconds since the last strictly earlier event; negative where there is none."""
    never = pl.lit(2**62, pl.Int64)
    earlier = pl.when(_first_of_user()).then(never).when(_new_tie()).then(_time().shift())
    return _time() - earlier.forward_fill()


def _hours_since(state: UserState, now: int) -> int:
    last = state.last_time(now)
    if last is None:
        return 0
    return 1 + bisect_right(HOURS_SINCE_EDGES, (now - last) // SECONDS_PER_HOUR)


HOUR_OF_DAY = Feature(
    name="hour_of_day",
    cardinality=25,
    needs_time=True,
    default=0,
    expression=_time() // SECONDS_PER_HOUR % 24 + 1,
    value=lambda _, now: now // SECONDS_PER_HOUR % 24 + 1,
)
DAY_OF_WEEK = Feature(
    name="day_of_week",
    cardinality=8,
    needs_time=True,
    default=0,
    # 1970-01-01 was a Thursday; Monday is 1.
    expression=(_time() // (24 * SECONDS_PER_HOUR) + 3) % 7 + 1,
    value=lambda _, now: (now // (24 * SECONDS_PER_HOUR) + 3) % 7 + 1,
)
HOURS_SINCE_LAST_EVENT = Feature(
    name="hours_since_last_event",
    cardinality=len(HOURS_SINCE_EDGES) + 2,
    needs_time=True,
    default=0,
    # Where there is no earlier event the time since is negative and reaches no edge.
    expression=_bucket(_seconds_since() // SECONDS_PER_HOUR, (0, *HOURS_SINCE_EDGES)),
    value=_hours_since,
)
USER_NUM_EVENTS = Feature(
    name="user_num_events",
    cardinality=len(NUM_EVENTS_EDGES) + 2,
    needs_time=False,
    default=1,
    expression=_bucket(_num_events(), (0, *NUM_EVENTS_EDGES)),
    value=lambda state, now: 1 + bisect_right(NUM_EVENTS_EDGES, state.num_until(now)),
)

FEATURES = {
    feature.name: feature
    for feature in (HOUR_OF_DAY, DAY_OF_WEEK, HOURS_SINCE_LAST_EVENT, USER_NUM_EVENTS)
}
