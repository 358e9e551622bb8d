"""Worlds with a known truth: domains of opposite tastes, slots, tasks, exact propensities.

A request of a user in a domain shows one item in each slot. A shown item is examined with a
probability of its slot alone; an examined one is viewed, a viewed one clicked, a clicked one
purchased, each with a probability of user, item and domain (the examination hypothesis, Richardson
et al. 2007). The logging policy puts items of high quality into high slots, except where it
explores, so that clicks alone confuse slot and relevance; propensities are exact.

Everything is drawn as integers and every probability is a whole number of millionths, so that a
world is the same to the last bit on every platform.

Axes: E events, I impressions, R requests, S slots, U users, N items, G segments, T topics,
M domains, K tasks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tests.recsys.testing.world_text import DOMAINS, MILLION, START, TOPICS, Catalogue, catalogue_of

DAY = 86_400
TASKS = ("view", "click", "purchase")
EVENT_TYPES = ("impression", *TASKS)
# Seconds after the request; one delay per type, so that no two events are alike by chance.
DELAYS = np.array([0, 1, 2, 30])
DRAW_BITS = 40
NUM_SEGMENTS = 6
"""Users of one segment have the same taste; ``segment`` is a column of the users."""
EXPLORATION = 300
"""Thousandths of the requests in which any group of items may stand in any slot."""
LOGITS = (800, -600, -800)
"""Thousandths of each task's logit; quality and taste come on top."""
TASTE = 2_500
"""Thousandths of the most liked topic's logit; the least liked one has its negative."""
QUALITY = 700
"""Item qualities are uniform between minus and plus this."""
Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class WorldConfig:
    """One world."""

    seed: int
    num_users: int = 400
    num_items: int = 320
    num_domains: int = 4
    """Domains 2n and 2n + 1 have opposite tastes; the others' are shifted by n topics."""
    num_requests: int = 2_000
    num_days: int = 30
    examination: tuple[float, ...] = (1.0, 0.7, 0.52, 0.4, 0.3, 0.22)
    """Probability that a slot is looked at, at most three decimals; its length is S."""


@dataclass(frozen=True, kw_only=True)
class EventTable:
    """Raw events by column in order of time, all [E]."""

    user_ids: NDArray[np.str_]
    item_ids: NDArray[np.str_]
    times: Ints
    """Unix seconds."""
    event_types: NDArray[np.str_]
    values: NDArray[np.float64]
    """Price of a purchase, otherwise 1."""
    domains: NDArray[np.str_]
    session_ids: NDArray[np.str_]
    request_ids: NDArray[np.str_]
    slots: Ints
    """From 0."""
    propensities: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class KnownWorld:
    """Raw tables, and what users' tastes follow. Users and items count from 0."""

    events: EventTable
    catalogue: Catalogue
    segment_of_user: Ints
    """[U]"""
    domain_of_item: Ints
    """[N]"""


@dataclass(frozen=True, kw_only=True)
class _Truth:
    segments: Ints
    topics: Ints
    domains: Ints
    quality: Ints
    personas: Ints
    """[G, T] in [-100, 100], liking of each topic in domain 0."""

    def chances(self, task: int, users: Ints, items: Ints, domains: Ints) -> Ints:
        """Compute the probability of a task given the task before it, in millionths, [I].

        A view depends on the item's quality alone, a click on the liking of its topic, a purchase
        on the liking of another topic half way round, so the tasks conflict as the domains do.
        """
        quality = self.quality[items]
        logits = LOGITS[task] + quality
        if task:
            num_topics = len(TOPICS)
            shift = (0 if task == 1 else num_topics // 2) + domains // 2
            liking = self.personas[self.segments[users], (self.topics[items] + shift) % num_topics]
            liking = np.where(domains % 2 == 0, liking, -liking)
            logits = LOGITS[task] + TASTE * liking // 100 + quality // 2
        rounded: Ints = np.rint(MILLION / (1 + np.exp(-logits / 1_000))).astype(np.int64)
        return rounded


def world(config: WorldConfig) -> KnownWorld:
    """Generate a world; the same configuration gives the same bits."""
    rng = np.random.Generator(np.random.PCG64(config.seed))
    places = np.argsort(rng.integers(0, 1 << 60, (2, NUM_SEGMENTS, len(TOPICS))), kind="stable")
    truth = _Truth(
        personas=200 * places[0] // (len(TOPICS) - 1) - 100,
        segments=rng.integers(0, NUM_SEGMENTS, config.num_users),
        topics=rng.integers(0, len(TOPICS), config.num_items),
        domains=np.arange(config.num_items) % config.num_domains,
        quality=rng.integers(-QUALITY, QUALITY + 1, config.num_items),
    )
    # Not used: without this draw, the worlds of published numbers would be others.
    rng.integers(0, 1_000, config.num_items)
    events = _events(config, truth, rng)
    words = rng.integers(0, 1 << 30, (config.num_items, 2))
    prices = _cents(np.arange(config.num_items)) / 100
    return KnownWorld(
        events=events,
        catalogue=catalogue_of(truth.topics, truth.domains, words, prices),
        segment_of_user=truth.segments,
        domain_of_item=truth.domains,
    )


def _cents(items: Ints) -> Ints:
    """Price items by a whole number of cents that says nothing of anything else."""
    return 100 + items * 7_919 % 4_900


def _shelf(config: WorldConfig, truth: _Truth) -> tuple[Ints, Ints]:
    """Group each domain's items into S groups of falling quality: items [N], bounds [M * S + 1]."""
    num_slots = len(config.examination)
    order = np.lexsort((-truth.quality, truth.domains))
    domains = truth.domains[order]
    counts = np.bincount(domains, minlength=config.num_domains)
    place = np.arange(config.num_items) - (np.cumsum(counts) - counts)[domains]
    groups = domains * num_slots + place * num_slots // counts[domains]  # ascending
    return order, np.searchsorted(groups, np.arange(config.num_domains * num_slots + 1))


def _events(config: WorldConfig, truth: _Truth, rng: np.random.Generator) -> EventTable:
    """Show a slate a request; write one row an impression and one an outcome."""
    num_slots, num_requests = len(config.examination), config.num_requests
    numbers = np.arange(num_requests)
    offsets = numbers * (config.num_days * DAY) // num_requests  # [R] distinct seconds
    users = np.repeat(rng.integers(0, config.num_users, num_requests), num_slots)
    domains = np.repeat(rng.integers(0, config.num_domains, num_requests), num_slots)
    explored = rng.integers(0, 1_000, num_requests) < EXPLORATION
    turns = np.where(explored, rng.integers(0, num_slots, num_requests), 0)  # [R]
    slots, turn_of = np.tile(np.arange(num_slots), num_requests), np.repeat(turns, num_slots)
    ranks = np.argsort(np.argsort(rng.integers(0, 1 << 60, config.num_items), kind="stable"))
    weights = 1 + 5_000 // (5 + ranks)  # [N] a few items are shown often
    shelf, bounds = _shelf(config, truth)
    ends = np.concatenate([[0], np.cumsum(weights[shelf])])
    groups = domains * num_slots + (slots + turn_of) % num_slots
    low, high = ends[bounds[groups]], ends[bounds[groups + 1]]
    target = low + (rng.integers(0, 1 << DRAW_BITS, len(groups)) * (high - low) >> DRAW_BITS)
    items = shelf[np.searchsorted(ends[1:], target, side="right")]
    # Probability of the turn, times 1_000 * S.
    turned = EXPLORATION + np.where(turn_of == 0, num_slots * (1_000 - EXPLORATION), 0)
    propensities = turned * weights[items] / (1_000 * num_slots * (high - low))

    draws = rng.integers(0, MILLION, (len(users), 1 + len(TASKS)))
    examined = np.array([round(share * 1_000) for share in config.examination])
    happened = [np.ones(len(users), np.bool_), draws[:, 0] < 1_000 * examined[slots]]
    for task in range(len(TASKS)):
        chances = truth.chances(task, users, items, domains)
        happened.append(happened[-1] & (draws[:, task + 1] < chances))
    del happened[1]
    sources, types = np.nonzero(np.column_stack(happened))  # [I, K + 1]
    times = START + np.repeat(offsets, num_slots)[sources] + DELAYS[types]
    order = np.lexsort((types, sources, times))
    sources, types = sources[order], types[order]
    days = np.repeat(offsets // DAY, num_slots)
    sessions = users[sources] * config.num_days + days[sources]
    is_purchase = types == EVENT_TYPES.index("purchase")
    return EventTable(
        user_ids=_numbered("user", users[sources]),
        item_ids=_numbered("item", items[sources]),
        times=times[order],
        event_types=np.array(EVENT_TYPES)[types],
        values=np.where(is_purchase, _cents(items[sources]) / 100, 1.0),
        domains=np.array(list(DOMAINS))[domains[sources]],
        session_ids=_numbered("session", sessions),
        request_ids=_numbered("request", sources // num_slots),
        slots=slots[sources],
        propensities=propensities[sources],
    )


def _numbered(prefix: str, numbers: Ints) -> NDArray[np.str_]:
    return np.array([f"{prefix}-{number}" for number in numbers.tolist()])
