"""Small worlds whose right recommendations are known, for tests of any room.

A world is raw events and a catalogue, as plain numpy arrays and strings, before any row is given
out; ``sequences`` gives out rows for tests that begin at the tensors, ``write_csv`` writes files
for tests that begin at the raw data. Everything is a function of the arguments and the seed.

Axes: E events, U users, N items.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from recsys.data.dataset import Sequences
from tests.recsys.testing.world_text import START, Catalogue

HOUR = 3600
# Two vocabularies without a word in common, so that content alone tells the tastes apart.
THEMES = {
    "garden": ("roses", "soil", "tulips", "pruning", "orchard", "seeds", "compost", "meadow"),
    "space": ("rockets", "comets", "orbit", "galaxy", "moonlight", "astronauts", "gravity", "mars"),
}


@dataclass(frozen=True, kw_only=True)
class World:
    """Events in order of time, the catalogue, and what each user should be recommended."""

    user_ids: NDArray[np.str_]
    """[E], whose event it is."""
    item_ids: NDArray[np.str_]
    """[E]"""
    times: NDArray[np.int64]
    """[E] unix seconds, ascending, all distinct."""
    event_types: NDArray[np.str_]
    """[E]"""
    catalogue: Catalogue
    answers: Mapping[str, frozenset[str]]
    """User id -> the items that a model which learned this world recommends next, and no others."""

    @property
    def users(self) -> list[str]:
        """User ids in order of their number."""
        return list(self.answers)

    def user_rows(self) -> NDArray[np.int64]:
        """Give user number n row n + 1, [E]."""
        row_of = {user_id: row for row, user_id in enumerate(self.users, start=1)}
        return np.array([row_of[user_id] for user_id in self.user_ids.tolist()], np.int64)

    def item_rows(self) -> NDArray[np.int64]:
        """Give item number n row n + 1, [E]."""
        row_of = {item_id: row for row, item_id in enumerate(self.catalogue.item_ids, start=1)}
        return np.array([row_of[item_id] for item_id in self.item_ids.tolist()], np.int64)


def two_tastes(
    num_users: int = 40, num_items: int = 20, *, events_per_user: int | None = None, seed: int = 0
) -> World:
    """Make even users like even items and odd users odd items, in no particular order.

    Each user meets ``events_per_user`` different items of the own taste (by default all but a
    quarter of them, at least one left out); the answer is what is left. Items of one taste share a
    category and the words of their titles and descriptions.
    """
    taste_size = num_items // 2
    length = events_per_user or taste_size - max(1, taste_size // 4)
    rng = np.random.default_rng(seed)
    walks = [
        rng.permutation(np.arange(user % 2, 2 * taste_size, 2))[:length]
        for user in range(num_users)
    ]
    left = [set(range(user % 2, num_items, 2)) - set(walks[user]) for user in range(num_users)]
    themes = [tuple(THEMES)[item % 2] for item in range(num_items)]
    return _world(walks, left, themes, rng)


def markov_world(
    num_users: int = 60, num_items: int = 30, *, events_per_user: int = 12, seed: int = 0
) -> World:
    """Make the last item alone decide the next: all items lie on one hidden cycle.

    Users enter the cycle anywhere and follow it. The answer is the one successor of a user's last
    item, so popularity is worth nothing and order is worth everything. Categories say nothing.
    """
    rng = np.random.default_rng(seed)
    cycle = rng.permutation(num_items)
    starts = rng.integers(num_items, size=num_users)
    walks = [cycle[(start + np.arange(events_per_user)) % num_items] for start in starts]
    following = [{int(cycle[(start + events_per_user) % num_items])} for start in starts]
    themes = [tuple(THEMES)[theme] for theme in rng.integers(2, size=num_items)]
    return _world(walks, following, themes, rng)


def sequences(world: World, *, num_held_out: int = 2) -> Sequences:
    """Lay a world out as a leave-one-out split: last event test, the one before it validation.

    Args:
        num_held_out: 2, or 0 to have every event in train (for a model before release). Users with
            ``num_held_out`` events or fewer have all theirs in train.
    """
    user_rows = world.user_rows()
    order = np.lexsort((world.times, user_rows))
    num_events = np.bincount(user_rows, minlength=len(world.users) + 1)  # [U + 1]
    offsets = np.concatenate([[0], np.cumsum(num_events)])
    ends = offsets[1:]
    held_out = np.where(num_events > num_held_out, num_held_out, 0)
    return Sequences(
        item_rows=world.item_rows()[order],
        offsets=offsets,
        train_end=ends - held_out,
        validation_end=ends - held_out // 2,
        times=world.times[order],
    )


def write_csv(world: World, directory: Path) -> dict[str, Path]:
    """Write ``events.csv``, ``items.csv`` and ``users.csv``; return the path of each table.

    Times are ISO 8601 in UTC (``2024-01-01T00:00:00Z``), an item's categories are joined by ``|``.
    """
    catalogue = world.catalogue
    times = [
        datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        for second in world.times.tolist()
    ]
    tables = {
        "events": {
            "user_id": world.user_ids.tolist(),
            "item_id": world.item_ids.tolist(),
            "event_time": times,
            "event_type": world.event_types.tolist(),
        },
        "items": {
            "item_id": catalogue.item_ids,
            "title": catalogue.titles,
            "description": catalogue.descriptions,
            "categories": ["|".join(names) for names in catalogue.categories],
            "price": [f"{price:.2f}" for price in catalogue.prices.tolist()],
        },
        "users": {
            "user_id": world.users,
            "country": [("AT", "BE", "CH")[user % 3] for user in range(len(world.users))],
        },
    }
    paths = {name: directory / f"{name}.csv" for name in tables}
    for name, columns in tables.items():
        with paths[name].open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))
    return paths


def _world(
    walks: list[NDArray[np.int64]],
    answers: list[set[int]],
    themes: list[str],
    rng: np.random.Generator,
) -> World:
    """Name users and items and interleave the walks: every user's n-th event is in round n."""
    lengths = [len(walk) for walk in walks]
    users = np.repeat(np.arange(len(walks)), lengths)  # [E]
    rounds = np.concatenate([np.arange(length) for length in lengths])
    order = np.lexsort((rng.permutation(len(users)), rounds))
    items = np.concatenate(walks)[order]
    return World(
        user_ids=np.array([f"user-{user}" for user in users[order]]),
        item_ids=np.array([f"item-{item}" for item in items]),
        times=START + HOUR * np.arange(len(users)),
        event_types=np.where(rng.random(len(users)) < 0.3, "purchase", "click"),
        catalogue=_catalogue(themes, rng),
        answers={
            f"user-{user}": frozenset(f"item-{item}" for item in liked)
            for user, liked in enumerate(answers)
        },
    )


def _catalogue(themes: list[str], rng: np.random.Generator) -> Catalogue:
    words = [rng.permutation(THEMES[theme])[:3].tolist() for theme in themes]
    return Catalogue(
        item_ids=tuple(f"item-{item}" for item in range(len(themes))),
        titles=tuple(f"{first.capitalize()} {item}" for item, (first, *_) in enumerate(words)),
        descriptions=tuple(
            f"About {first}, {second} and {third}." for first, second, third in words
        ),
        categories=tuple(("books", theme) for theme in themes),
        prices=rng.integers(100, 5000, size=len(themes)) / 100,
    )
