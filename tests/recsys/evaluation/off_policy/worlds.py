"""Synthetic logs whose true value is known, for tests and benchmarks.

Axes: n lists, K slots, A items.
"""

from typing import NamedTuple

import numpy as np

from recsys.evaluation.off_policy.logs import LoggedLists


def logged_actions(rewards, propensities, evaluated):
    """Log single actions, [n] each, as lists of one slot."""
    return LoggedLists(
        rewards=rewards[:, None],
        propensities=propensities[:, None],
        evaluated=evaluated[:, None],
        lengths=np.ones(len(rewards), np.int64),
    )


class World(NamedTuple):
    """Contexts in groups, each with its own taste; both policies draw slots without replacement."""

    logging: np.ndarray
    """Odds of the items by group, [G, A]."""
    evaluated: np.ndarray
    rates: np.ndarray
    """Chance of a click on an item in the first slot, by group, [G, A]."""
    discounts: np.ndarray
    """Of each slot, [K]."""
    fatigue: float
    """Share of a slot's clicks that one click above it takes."""
    repeats: bool
    """Whether an item may stand in several slots: then slots are independent of each other."""


def make_world(
    seed, *, groups=4, items=6, slots=1, spread=1.0, rate=0.2, fatigue=0.0, repeats=False
):
    random = np.random.default_rng(seed)
    shape = (groups, items)
    rates = rate * 2 * random.random(shape)
    logging = np.exp(spread * random.normal(size=shape))
    evaluated = np.exp(spread * random.normal(size=shape) + 2 * rates / rates.max())
    return World(logging, evaluated, rates, 0.8 ** np.arange(slots), fatigue, repeats)


def shown(odds, groups, slots, random, *, repeats=False):
    """Draw lists and the probability of each slot given those above it, [n, K] each."""
    left = odds[groups].copy()
    items, chances = [], []
    for _ in range(slots):
        ends = left.cumsum(1)
        drawn = (random.random(len(groups)) * ends[:, -1])[:, None]
        item = (ends <= drawn).sum(1)
        rows = np.arange(len(groups))
        items.append(item)
        chances.append(left[rows, item] / ends[:, -1])
        if not repeats:
            left[rows, item] = 0
    return np.stack(items, 1), np.stack(chances, 1)


def chances_of(odds, groups, items, *, repeats=False):
    """Probability of each slot of given lists, [n, K]."""
    left, found = odds[groups].copy(), []
    rows = np.arange(len(groups))
    for item in items.T:
        found.append(left[rows, item] / left.sum(1))
        if not repeats:
            left[rows, item] = 0
    return np.stack(found, 1)


def slot_distributions(odds, groups, items, *, repeats=False):
    """Probability of each item in each slot, given the logged items above it, [n, K, A]."""
    left, found = odds[groups].copy(), []
    rows = np.arange(len(groups))
    for item in items.T:
        found.append(left / left.sum(1, keepdims=True))
        if not repeats:
            left[rows, item] = 0
    return np.stack(found, 1)


def clicks(world, groups, items, random):
    """Draw clicks from the first slot down, [n, K]."""
    found = np.zeros(items.shape)
    for slot in range(items.shape[1]):
        rate = world.rates[groups, items[:, slot]] * world.discounts[slot]
        rate = rate * (1 - world.fatigue) ** found.sum(1)
        found[:, slot] = random.random(len(groups)) < rate
    return found


class Drawn(NamedTuple):
    log: LoggedLists
    groups: np.ndarray
    items: np.ndarray


def draw_log(world, number, seed):
    """Draw a log of the logging policy."""
    random = np.random.default_rng([seed, 1])
    groups = random.integers(0, len(world.rates), number)
    slots = len(world.discounts)
    items, chances = shown(world.logging, groups, slots, random, repeats=world.repeats)
    log = LoggedLists(
        rewards=clicks(world, groups, items, random),
        propensities=chances,
        evaluated=chances_of(world.evaluated, groups, items, repeats=world.repeats),
        lengths=np.full(number, slots),
    )
    return Drawn(log, groups, items)


def true_value(world, number=2_000_000, seed=0):
    """Mean clicks of a list of the evaluated policy: exact for one slot, else by many draws."""
    if len(world.discounts) == 1:
        shares = world.evaluated / world.evaluated.sum(1, keepdims=True)
        return float((shares * world.rates).sum(1).mean())
    random = np.random.default_rng([seed, 2])
    groups = random.integers(0, len(world.rates), number)
    slots = len(world.discounts)
    items, _ = shown(world.evaluated, groups, slots, random, repeats=world.repeats)
    return float(clicks(world, groups, items, random).sum(1).mean())


def wrong_model(world, drawn, share=0.7):
    """A reward model that is wrong by a factor and by fatigue: its predictions of the logged items
    and their means over the evaluated policy, [n, K] each."""
    rates = share * world.rates[drawn.groups][:, None] * world.discounts[None, :, None]
    predicted = np.take_along_axis(rates, drawn.items[..., None], 2)[..., 0]
    shares = slot_distributions(world.evaluated, drawn.groups, drawn.items, repeats=world.repeats)
    return predicted, (shares * rates).sum(2)
