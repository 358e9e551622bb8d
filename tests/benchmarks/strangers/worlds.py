"""Logs with repeats, sessions and drift: what music, check-ins and groceries have and ratings lack.

Every item lies in a scene. A user has a taste over scenes that moves towards another one in the
course of the log, and acts in sessions, each in one scene. An event takes an item again that the
user had (recent ones more often), or follows the last event to one of that item's few followers, or
draws by popularity in the session's scene.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

DAY = 86_400
START = 1_640_995_200
FOLLOWERS = 4


@dataclass(frozen=True, kw_only=True)
class RepeatWorld:
    """What a log is like; shares are probabilities of an event."""

    seed: int
    num_users: int
    num_items: int
    num_scenes: int
    mean_events: float
    """Events of a user, geometric, at least 5."""
    repeat_share: float
    """Events that take an item of the user's history again."""
    memory: float
    """Typical number of events between an item and its repeat."""
    follow_share: float
    """Of the other events, those that go to a follower of the item before."""
    session_length: float = 6.0
    drift: float = 1.0
    """Share of the taste that is another one at the end."""
    num_days: int = 180


def log_of(world: RepeatWorld) -> pl.DataFrame:
    """Draw the events ``user, item, time`` of all users, each user's in order of time."""
    rng = np.random.default_rng(world.seed)
    scene_of = rng.integers(0, world.num_scenes, world.num_items)
    weight = 1 / (1 + rng.permutation(world.num_items)) ** 0.7
    members = [np.flatnonzero(scene_of == scene) for scene in range(world.num_scenes)]
    shares = [np.cumsum(weight[some]) / weight[some].sum() for some in members]
    followers = np.array([rng.choice(members[scene], FOLLOWERS) for scene in scene_of])
    users, items, times = [], [], []
    for user in range(world.num_users):
        count = 4 + int(rng.geometric(1 / (world.mean_events - 4)))
        when = np.sort(rng.integers(0, world.num_days * DAY, count))
        taken = events_of(world, rng, members, shares, followers, count)
        users.append(np.full(count, user))
        items.append(taken)
        times.append(START + when)
    return pl.DataFrame(
        {
            "user": np.concatenate(users),
            "item": np.concatenate(items),
            "time": np.concatenate(times),
        }
    ).with_columns(pl.format("u{}", "user").alias("user"), pl.format("i{}", "item").alias("item"))


def events_of(
    world: RepeatWorld,
    rng: np.random.Generator,
    members: list[NDArray[np.int64]],
    shares: list[NDArray[np.float64]],
    followers: NDArray[np.int64],
    count: int,
) -> NDArray[np.int64]:
    """Draw one user's items in order, [count]."""
    early, late = (rng.dirichlet(np.full(world.num_scenes, 3 / world.num_scenes)) for _ in "ab")
    taken: list[int] = []
    scene = 0
    for number in range(count):
        if number == 0 or rng.random() < 1 / world.session_length:
            moved = world.drift * number / count
            scene = int(rng.choice(world.num_scenes, p=(1 - moved) * early + moved * late))
        if taken and rng.random() < world.repeat_share:
            back = min(int(rng.geometric(1 / world.memory)), len(taken))
            taken.append(taken[-back])
        elif taken and rng.random() < world.follow_share:
            taken.append(int(followers[taken[-1], rng.integers(FOLLOWERS)]))
        elif len(members[scene]):
            place = np.searchsorted(shares[scene], rng.random())
            taken.append(int(members[scene][min(place, len(members[scene]) - 1)]))
        else:
            taken.append(int(rng.integers(world.num_items)))
    return np.array(taken)
