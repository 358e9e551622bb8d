"""Long histories with planted interests that return after hundreds or thousands of events.

A history is background (runs of items of one topic) with returns: the cue of an interest, followed
by the one item of that interest that is this user's favourite. The cue tells the interest, of which
every item is as popular; which of them is the favourite only the user's own earlier return tells.
The last event of every history is a favourite whose earlier return lies ``min_gap`` events back or
more in long histories, and within the history in short ones.

Axes: U users, M events of all users.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class LongWorldConfig:
    """Sizes of a world.

    Raises:
        ValueError: Histories that are too short for their returns.
    """

    seed: int
    num_long: int = 200
    num_short: int = 200
    long_events: int = 4_000
    short_events: int = 150
    min_gap: int = 1_000
    """Fewest events between two returns of an interest in a long history."""
    num_interests: int = 100
    items_per_interest: int = 20
    num_background: int = 500
    own_interests: int = 40
    """Interests of a user; short histories have a fifth."""
    return_share: float = 0.05
    """Of the steps of a history that are returns; one is two events."""
    num_topics: int = 25
    run_length: int = 8
    """Mean number of background events of one topic one after the other."""

    def __post_init__(self) -> None:
        if self.long_events < 2 * self.min_gap or self.short_events < 20:
            raise ValueError(
                "long_events must be >= 2 * min_gap and short_events >= 20, got "
                f"{self.long_events}, {self.min_gap} and {self.short_events}"
            )

    @property
    def num_item_rows(self) -> int:
        """Rows of all items: 0 is padding, then cues, favourites and background."""
        return 1 + self.num_interests * (1 + self.items_per_interest) + self.num_background


class LongWorld(NamedTuple):
    """Histories of long users, then of short ones."""

    rows: NDArray[np.int64]
    """[M] item rows, oldest first."""
    offsets: NDArray[np.int64]
    """[U + 1]"""
    gaps: NDArray[np.int64]
    """[U] events between the last event and the same favourite before it."""


def long_world(config: LongWorldConfig) -> LongWorld:
    """Draw a world; the same seed gives the same histories."""
    draws = np.random.default_rng(config.seed)
    histories, gaps = [], []
    for user in range(config.num_long + config.num_short):
        rows, gap = _history(config, draws, is_long=user < config.num_long)
        histories.append(rows)
        gaps.append(gap)
    offsets = np.cumsum([0, *(len(rows) for rows in histories)])
    return LongWorld(np.concatenate(histories), offsets, np.array(gaps))


def _history(
    config: LongWorldConfig, draws: np.random.Generator, *, is_long: bool
) -> tuple[NDArray[np.int64], int]:
    """Draw one user's item rows and the gap of the last return."""
    num = config.long_events if is_long else config.short_events
    gap = config.min_gap if is_long else 10
    count = config.own_interests if is_long else max(2, config.own_interests // 5)
    interests = draws.permutation(config.num_interests)[:count]
    favourites = draws.integers(config.items_per_interest, size=count)
    first_item = 1 + config.num_interests
    first_background = first_item + config.num_interests * config.items_per_interest
    last: dict[int, int] = {}
    rows: list[int] = []
    topic = 0
    per_topic = config.num_background // config.num_topics

    def come_back(own: int) -> None:
        interest = int(interests[own])
        rows.append(1 + interest)
        last[own] = len(rows)
        rows.append(first_item + interest * config.items_per_interest + int(favourites[own]))

    while len(rows) < num - 2:
        if draws.random() < config.return_share:
            # What was never met or is due; the others wait for their gap.
            due = [own for own in range(count) if len(rows) - last.get(own, -gap) >= gap]
            if due:
                come_back(int(draws.choice(due)))
                continue
        if draws.random() < 1 / config.run_length:
            topic = int(draws.integers(config.num_topics))
        rows.append(first_background + topic * per_topic + int(draws.integers(per_topic)))
    longest: list[int] = []
    while not longest:
        longest = [own for own in last if len(rows) - last[own] >= gap]
        if not longest:
            rows.append(first_background + topic * per_topic + int(draws.integers(per_topic)))
            if not last:
                come_back(0)
    own = int(draws.choice(longest))
    before = last[own]
    come_back(own)
    return np.array(rows, dtype=np.int64), last[own] - before
