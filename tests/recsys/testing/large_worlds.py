"""Worlds of up to billions of events, made a partition at a time: one day of one bucket of users.

A partition depends on the configuration, the day and the bucket alone, so that any of them can be
made by itself, in any order and on any number of processes. As in ``worlds.py`` users of one
segment share a taste that moves day by day, items belong to topics and domains, and everything is
drawn as integers. What differs is what scales: an event is drawn directly (no slates), items follow
Zipf's law within their topic, and users and items appear as the days pass.

Axes: E events of a partition, Q quantiles, U users, N items, G segments, T topics, D days.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from tests.recsys.testing.world_text import DOMAINS, MILLION, START, TOPICS, Catalogue, catalogue_of

DAY = 86_400
NUM_TOPICS = len(TOPICS)
TYPES = ("view", "click", "purchase")
EVENTS_PER_PARTITION = 1_000_000
QUANTILES = 1 << 12
SHARES = 1 << 12
SPREAD = 2_654_435_761
"""A prime; multiples of it modulo the number of items visit each item once."""
SECONDS_BETWEEN = 25
Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class LargeWorldConfig:
    """One world."""

    num_events: int
    num_users: int
    num_items: int
    num_days: int = 100
    seed: int = 0
    num_segments: int = 24
    """Users of one segment have the same taste."""
    drift: float = 0.3
    """Share of the taste that is another one on the last day; it moves day by day."""
    new_users: float = 0.4
    """Share of the users who come after the first day, as many every day."""
    new_items: float = 0.2
    """Share of the items that come after the first day."""
    crawler_events: int = 0
    """Further events of one user, ``user-0``, spread over the days."""

    @property
    def num_buckets(self) -> int:
        """Buckets of users a day, so that a partition fits into little memory."""
        a_day = self.num_events // self.num_days
        return min(self.num_users, 1 + a_day // EVENTS_PER_PARTITION)

    @property
    def partitions(self) -> list[tuple[int, int]]:
        """Every day and bucket, both from 0."""
        return [(d, b) for d in range(self.num_days) for b in range(self.num_buckets)]

    def events_of(self, day: int, bucket: int) -> int:
        """Count the events of a partition."""
        drawn = _share(_share(self.num_events, day, self.num_days), bucket, self.num_buckets)
        return drawn + (self.crawler_events_of(day) if bucket == 0 else 0)

    def crawler_events_of(self, day: int) -> int:
        return _share(self.crawler_events, day, self.num_days)

    def users_until(self, day: int) -> int:
        """Count the users who have come by a day."""
        first = self.num_users - round(self.num_users * self.new_users)
        later = (self.num_users - first) * day // max(1, self.num_days - 1)
        return max(self.num_buckets, first + later)


@dataclass(frozen=True, kw_only=True)
class EventPartition:
    """Events in the order of their sessions' beginnings, all [E]."""

    users: Ints
    items: Ints
    times: Ints
    """Unix seconds."""
    types: NDArray[np.uint8]
    """Place in ``TYPES``."""


def _share(total: int, place: int, parts: int) -> int:
    return total * (place + 1) // parts - total * place // parts


def mixed(numbers: Ints, seed: int) -> NDArray[np.uint64]:
    """Mix integers into uniformly spread ones (splitmix64)."""
    with np.errstate(over="ignore"):
        hashes = numbers.astype(np.uint64) + np.uint64(seed + 1) * np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            hashes = (hashes ^ (hashes >> np.uint64(shift))) * np.uint64(factor)
        return hashes ^ (hashes >> np.uint64(31))


def segments_of(config: LargeWorldConfig, users: Ints) -> Ints:
    """Number the users' segments, [E]."""
    return (mixed(users, config.seed) % np.uint64(config.num_segments)).astype(np.int64)


def launch_days(config: LargeWorldConfig, items: Ints) -> Ints:
    """Number the days on which items come, [E]; the most popular of every topic are there first."""
    hashes = mixed(items, config.seed + 1)
    late = hashes % np.uint64(1_000) < np.uint64(round(config.new_items * 1_000))
    late &= items >= 4 * NUM_TOPICS
    days = 1 + (hashes >> np.uint64(20)) % np.uint64(max(1, config.num_days - 1))
    return np.where(late & (config.num_days > 1), days.astype(np.int64), 0)


@cache
def _personas(config: LargeWorldConfig) -> Ints:
    """Liking of each topic in [-100, 100] at the start and at the end, [2, G, T]."""
    rng = np.random.Generator(np.random.PCG64(config.seed))
    keys = rng.integers(0, 1 << 60, (2, config.num_segments, NUM_TOPICS))
    places = np.argsort(keys, axis=-1, kind="stable")
    personas: Ints = 200 * places // (NUM_TOPICS - 1) - 100
    return personas


def likings(config: LargeWorldConfig, day: int) -> Ints:
    """Liking of each topic on a day in [-100, 100], [G, T]."""
    start, end = _personas(config)
    days = max(1, config.num_days - 1)
    weight = round(config.drift * 1_000) * day // days
    mixed_likings: Ints = ((1_000 - weight) * start + weight * end) // 1_000
    return mixed_likings


def _topic_table(liking: Ints) -> NDArray[np.uint8]:
    """Topic of each of SHARES equal shares of a segment's sessions, [G, SHARES].

    A topic's share grows with the cube of its liking: 42% for the first, under .1% for the last.
    """
    weights = (liking + 110) ** 3  # [G, T]
    ends = np.cumsum(weights, axis=1) * SHARES // weights.sum(axis=1, keepdims=True)
    places = np.arange(SHARES)
    return np.stack([np.searchsorted(row, places, side="right") for row in ends]).astype(np.uint8)


def _chances(liking: Ints) -> Ints:
    """Millionths of events that are at least a click, a purchase, [2, G, T]."""
    logits = np.stack([-1_500 + 12 * liking, -4_000 + 15 * liking])
    rounded: Ints = np.rint(MILLION / (1 + np.exp(-logits / 1_000))).astype(np.int64)
    return rounded


@cache
def _zipf(num_items: int) -> Ints:
    """Places in a topic at which QUANTILES equal shares of its events begin, and the end, [Q + 1].

    The weight of place p is 1 / (p + 8): Zipf's law with a blunted head (Mandelbrot, 1953).
    """
    weights = (1 << 40) // (8 + np.arange(num_items))
    ends = np.cumsum(weights)
    targets = ends[-1] // QUANTILES * np.arange(QUANTILES)
    edges: Ints = np.append(np.searchsorted(ends, targets, side="right"), num_items)
    return edges


def _items_of_topics(config: LargeWorldConfig, topics: Ints, draws: NDArray[np.uint64]) -> Ints:
    """Draw an item of each topic, whether or not it has come yet, [E]."""
    edges = _zipf(config.num_items // NUM_TOPICS)
    shares = (draws >> np.uint64(52)).astype(np.int64)
    low = edges[shares]
    width = edges[shares + 1] - low
    within = (draws & np.uint64(0xFFFFFFFF)).astype(np.int64)
    items: Ints = (low + (within * width >> 32)) * NUM_TOPICS + topics
    return items


def events_of_partition(config: LargeWorldConfig, day: int, bucket: int) -> EventPartition:
    """Make the events of a day by the users of a bucket; the same arguments give the same bits.

    A user is in the bucket of the remainder of its number by the number of buckets.
    """
    crawled = config.crawler_events_of(day) if bucket == 0 else 0
    num = config.events_of(day, bucket) - crawled
    bits = np.random.PCG64(np.random.SeedSequence([config.seed, day, bucket]))
    first, second = bits.random_raw(num), bits.random_raw(num)
    # A third of the events begin a session, which has one user and one topic.
    starts = (first >> np.uint64(48)) < np.uint64(21_845)
    starts[:1] = True
    begins = np.flatnonzero(starts)
    session = np.cumsum(starts) - 1
    lengths = np.diff(np.append(begins, num))
    # Squares make users of low numbers, who came first, more active than others.
    square = ((first[begins] & np.uint64(0xFFFFFFFF)) ** np.uint64(2)) >> np.uint64(32)
    num_users = -(-(config.users_until(day) - bucket) // config.num_buckets)
    users = (square.astype(np.int64) * num_users >> 32) * config.num_buckets + bucket
    segments = segments_of(config, users)
    liking = likings(config, day)
    share = ((second[begins] >> np.uint64(32)) % np.uint64(SHARES)).astype(np.int64)
    topics = _topic_table(liking)[segments, share].astype(np.int64)
    of_event = topics[session]
    items = _launched(config, day, of_event, bits)
    chances = _chances(liking)[:, segments, topics]  # [2, sessions]
    draws = (second & np.uint64(0xFFFFFFFF)).astype(np.int64) * MILLION >> 32
    types = (draws < chances[0][session]).astype(np.uint8) + (draws < chances[1][session])
    offsets = begins * DAY // max(1, num)
    later = (np.arange(num) - np.repeat(begins, lengths)) * SECONDS_BETWEEN
    seconds = np.minimum(offsets[session] + later, DAY - 1)
    events = EventPartition(
        users=users[session], items=items, times=START + DAY * day + seconds, types=types
    )
    return _with_crawler(events, crawled, START + DAY * day) if crawled else events


def _launched(config: LargeWorldConfig, day: int, topics: Ints, bits: np.random.PCG64) -> Ints:
    """Draw items that have come by a day; after four attempts the topic's first item, [E]."""
    items = _items_of_topics(config, topics, bits.random_raw(len(topics)))
    for _ in range(4):
        absent = np.flatnonzero(launch_days(config, items) > day)
        items[absent] = _items_of_topics(config, topics[absent], bits.random_raw(len(absent)))
    return np.where(launch_days(config, items) > day, topics, items)


def _with_crawler(events: EventPartition, num: int, midnight: int) -> EventPartition:
    numbers = np.arange(num, dtype=np.int64)
    items = numbers * 7_919 % (4 * NUM_TOPICS)
    return EventPartition(
        users=np.concatenate([events.users, np.zeros(num, np.int64)]),
        items=np.concatenate([events.items, items]),
        times=np.concatenate([events.times, midnight + numbers * DAY // num]),
        types=np.concatenate([events.types, np.zeros(num, np.uint8)]),
    )


def item_numbers(config: LargeWorldConfig, items: Ints) -> Ints:
    """Number items as their ids do, so that an id does not tell how popular its item is, [E]."""
    return items * (SPREAD % config.num_items) % config.num_items


@dataclass(frozen=True, kw_only=True)
class ItemPartition:
    """A part of the catalogue."""

    catalogue: Catalogue
    domains: list[str]
    available_from: Ints
    """Unix seconds, [N]."""


def items_of_range(config: LargeWorldConfig, start: int, end: int) -> ItemPartition:
    """Describe the items [start, end), counted by popularity within topics."""
    items = np.arange(start, end, dtype=np.int64)
    hashes = mixed(items, config.seed + 2)
    words = np.stack([hashes >> np.uint64(40), hashes >> np.uint64(20)], 1) & np.uint64(0xFFFFF)
    domains = items // NUM_TOPICS % len(DOMAINS)
    numbers = item_numbers(config, items)
    prices = (100 + numbers * 7_919 % 4_900) / 100
    catalogue = catalogue_of(
        items % NUM_TOPICS, domains, words.astype(np.int64), prices, numbers.tolist()
    )
    names = list(DOMAINS)
    return ItemPartition(
        catalogue=catalogue,
        domains=[names[domain] for domain in domains.tolist()],
        available_from=START + DAY * launch_days(config, items),
    )
