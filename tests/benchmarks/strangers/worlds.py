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


WORDS = 8_000
SYLLABLES = ("ba", "do", "fi", "gu", "ka", "le", "mo", "nu", "pra", "ri", "so", "ta", "ve", "zu")


@dataclass(frozen=True, kw_only=True)
class LargeShop:
    """A log by its size: Zipf items in scenes, texts in each scene's words, a year of times."""

    seed: int
    num_events: int
    num_users: int
    num_items: int
    num_scenes: int = 200
    num_days: int = 365
    activity: float = 0.8
    """Shape of the gamma distribution of users' activity; small ones have few very active users."""


def shop_of(world: LargeShop) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Draw the events ``user, item, time`` in order of time, and the items ``item, title``.

    Half of a user's events are in one scene; titles have 10 to 30 words.
    """
    rng = np.random.default_rng(world.seed)
    weight = 1 / (1 + rng.permutation(world.num_items)) ** 0.8
    scenes = np.argsort(rng.random(world.num_items)) % world.num_scenes
    by_scene = np.argsort(scenes, kind="stable")
    ends = np.cumsum(weight[by_scene])
    starts = np.append(0, np.cumsum(np.bincount(scenes, minlength=world.num_scenes)))
    bounds = np.append(0, ends)[starts]
    users = rng.choice(world.num_users, world.num_events, p=_shares(rng, world))
    home = rng.integers(0, world.num_scenes, world.num_users)[users]
    inside = rng.random(world.num_events) < 0.5
    low, high = np.where(inside, bounds[home], 0.0), np.where(inside, bounds[home + 1], ends[-1])
    place = np.searchsorted(ends, rng.uniform(low, high))
    items = by_scene[np.minimum(place, world.num_items - 1)]
    times = START + np.sort(rng.integers(0, world.num_days * DAY, world.num_events))
    events = pl.DataFrame({"user": users, "item": items, "time": times}).unique(
        ["user", "item"], keep="first", maintain_order=True
    )
    return events, pl.DataFrame({"item": np.arange(world.num_items), "title": _titles(rng, scenes)})


def _shares(rng: np.random.Generator, world: LargeShop) -> NDArray[np.float64]:
    """Draw how active each user is."""
    shares = rng.gamma(world.activity, size=world.num_users)
    shares += 0.05 * shares.mean()
    return shares / shares.sum()


def _titles(rng: np.random.Generator, scenes: NDArray[np.int64]) -> list[str]:
    """Write each item's title, half of it in its scene's sixty words."""
    words = ["".join(rng.choice(SYLLABLES, rng.integers(2, 5))) for _ in range(WORDS)]
    of_scene = rng.integers(0, WORDS, (int(scenes.max()) + 1, 60))
    titles = []
    for scene in scenes:
        own = rng.choice(of_scene[scene], rng.integers(5, 16))
        common = rng.integers(0, WORDS, rng.integers(5, 16))
        titles.append(" ".join(words[word] for word in (*own, *common)))
    return titles
