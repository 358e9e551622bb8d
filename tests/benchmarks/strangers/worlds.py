"""Logs with repeats, sessions and drift: what music, check-ins and groceries have and ratings lack.

Every item lies in a scene. A user has a taste over scenes that moves towards another one in the
course of the log, and acts in sessions, each in one scene. An event takes an item again that the
user had (recent ones more often), or follows the last event to one of that item's few followers, or
draws by popularity in the session's scene.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

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


class Truth(NamedTuple):
    """What the world knows of its N items."""

    scene: NDArray[np.int64]
    """[N]."""
    weight: NDArray[np.float64]
    """[N], popularity."""
    followers: NDArray[np.int64]
    """[N, FOLLOWERS]."""
    members: list[NDArray[np.int64]]
    """Items of each scene."""
    shares: list[NDArray[np.float64]]
    """Their popularity, added up to 1."""


class DrawnUser(NamedTuple):
    """One user's events."""

    times: NDArray[np.int64]
    items: NDArray[np.int64]
    scene: int
    """Of the last session."""


def users_of(world: RepeatWorld) -> Iterator[tuple[Truth, DrawnUser]]:
    """Draw the world, then its users one by one."""
    rng = np.random.default_rng(world.seed)
    scene_of = rng.integers(0, world.num_scenes, world.num_items)
    weight = 1 / (1 + rng.permutation(world.num_items)) ** 0.7
    members = [np.flatnonzero(scene_of == scene) for scene in range(world.num_scenes)]
    shares = [np.cumsum(weight[some]) / weight[some].sum() for some in members]
    followers = np.array([rng.choice(members[scene], FOLLOWERS) for scene in scene_of])
    truth = Truth(scene_of, weight, followers, members, shares)
    for _ in range(world.num_users):
        count = 4 + int(rng.geometric(1 / (world.mean_events - 4)))
        when = np.sort(rng.integers(0, world.num_days * DAY, count))
        yield truth, DrawnUser(START + when, *events_of(world, rng, truth, count))


def log_of(world: RepeatWorld) -> pl.DataFrame:
    """Draw the events ``user, item, time`` of all users, each user's in order of time."""
    drawn = [one for _, one in users_of(world)]
    users = np.repeat(np.arange(len(drawn)), [len(one.items) for one in drawn])
    return pl.DataFrame(
        {
            "user": users,
            "item": np.concatenate([one.items for one in drawn]),
            "time": np.concatenate([one.times for one in drawn]),
        }
    ).with_columns(pl.format("u{}", "user").alias("user"), pl.format("i{}", "item").alias("item"))


def best_possible(world: RepeatWorld) -> float:
    """Compute the N@10 that no model exceeds, on average over draws of the users' last events.

    Its lists are by the true probabilities, given the scene of the session too, which is hidden.
    """
    gains = 1 / np.log2(np.arange(10) + 2)
    found = []
    for truth, user in users_of(world):
        past, scene = user.items[:-1], truth.members[user.scene]
        again = (1 - 1 / world.memory) ** np.arange(len(past)) / world.memory
        again[-1] += 1 - again.sum()  # who goes back further than the first event gets it
        chance = np.zeros(world.num_items)
        np.add.at(chance, past[::-1], world.repeat_share * again)
        new = 1 - world.repeat_share
        # A follower may be there twice.
        np.add.at(chance, truth.followers[past[-1]], new * world.follow_share / FOLLOWERS)
        weight = truth.weight[scene] / truth.weight[scene].sum()
        chance[scene] += new * (1 - world.follow_share) * weight
        found.append(np.sort(chance)[::-1][:10] @ gains)
    return float(np.mean(found))


def events_of(
    world: RepeatWorld, rng: np.random.Generator, truth: Truth, count: int
) -> tuple[NDArray[np.int64], int]:
    """Draw one user's items in order, [count], and name the scene of the last session."""
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
            taken.append(int(truth.followers[taken[-1], rng.integers(FOLLOWERS)]))
        elif len(members := truth.members[scene]):
            place = np.searchsorted(truth.shares[scene], rng.random())
            taken.append(int(members[min(place, len(members) - 1)]))
        else:
            taken.append(int(rng.integers(world.num_items)))
    return np.array(taken), scene
