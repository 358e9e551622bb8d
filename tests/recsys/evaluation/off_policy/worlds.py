"""Synthetic logs whose true value is known, for tests and benchmarks.

Axes: n lists, K slots, A items.
"""

from typing import NamedTuple

import numpy as np

from recsys.evaluation.off_policy.estimators import cascade_doubly_robust, ips, snips
from recsys.evaluation.off_policy.logs import LoggedLists, cascade


def logged_actions(rewards, propensities, evaluated):
    """Log single actions, [n] each, as lists of one slot."""
    return LoggedLists(
        rewards=rewards[:, None],
        propensities=propensities[:, None],
        evaluated=evaluated[:, None],
        lengths=np.ones(len(rewards), np.int64),
    )


FATIGUE = 0.3
"""Share of a slot's clicks that one click above it takes."""


class World(NamedTuple):
    """Contexts in groups, each with its own taste; both policies draw slots without replacement."""

    logging: np.ndarray
    """Odds of the items by group, [G, A]."""
    evaluated: np.ndarray
    rates: np.ndarray
    """Chance of a click on an item in the first slot, by group, [G, A]."""
    discounts: np.ndarray
    """Of each slot, [K]."""


def make_world(seed, slots):
    """Make 4 groups of contexts and 6 items, of which 10% are clicked."""
    random = np.random.default_rng(seed)
    rates = 0.2 * random.random((4, 6))
    logging = np.exp(0.5 * random.normal(size=(4, 6)))
    evaluated = np.exp(0.5 * random.normal(size=(4, 6)) + 2 * rates / rates.max())
    return World(logging, evaluated, rates, 0.8 ** np.arange(slots))


def shown(odds, groups, slots, random):
    """Draw lists, [n, K]."""
    left, rows, items = odds[groups].copy(), np.arange(len(groups)), []
    for _ in range(slots):
        ends = left.cumsum(1)
        items.append((ends <= random.random((len(groups), 1)) * ends[:, -1:]).sum(1))
        left[rows, items[-1]] = 0
    return np.stack(items, 1)


def slot_distributions(odds, groups, items):
    """Probability of each item in each slot, given the logged items above it, [n, K, A]."""
    left, found = odds[groups].copy(), []
    for item in items.T:
        found.append(left / left.sum(1, keepdims=True))
        left[np.arange(len(groups)), item] = 0
    return np.stack(found, 1)


def taken(values, items):
    """Take each slot's own item, [n, K, A] to [n, K]."""
    return np.take_along_axis(values, items[..., None], 2)[..., 0]


def clicks(world, groups, items, random):
    """Draw clicks from the first slot down, [n, K]; each takes a share of those below it."""
    found = np.zeros(items.shape)
    for slot in range(items.shape[1]):
        rate = world.rates[groups, items[:, slot]] * world.discounts[slot]
        found[:, slot] = random.random(len(groups)) < rate * (1 - FATIGUE) ** found.sum(1)
    return found


class Drawn(NamedTuple):
    log: LoggedLists
    groups: np.ndarray
    items: np.ndarray


def draw_log(world, number, seed):
    """Draw a log of the logging policy."""
    random = np.random.default_rng([seed, 1])
    groups = random.integers(0, len(world.rates), number)
    items = shown(world.logging, groups, len(world.discounts), random)
    chances = {
        name: taken(slot_distributions(odds, groups, items), items)
        for name, odds in (("propensities", world.logging), ("evaluated", world.evaluated))
    }
    lengths = np.full(number, items.shape[1])
    log = LoggedLists(rewards=clicks(world, groups, items, random), lengths=lengths, **chances)
    return Drawn(log, groups, items)


def true_value(world, number=2_000_000):
    """Mean clicks of a list of the evaluated policy."""
    random = np.random.default_rng([0, 2])
    groups = random.integers(0, len(world.rates), number)
    items = shown(world.evaluated, groups, len(world.discounts), random)
    return float(clicks(world, groups, items, random).sum(1).mean())


def wrong_model(world, drawn):
    """A reward model that is wrong by a factor and by fatigue: its predictions of the logged items
    and their means over the evaluated policy, [n, K] each."""
    rates = 0.7 * world.rates[drawn.groups][:, None] * world.discounts[None, :, None]
    shares = slot_distributions(world.evaluated, drawn.groups, drawn.items)
    return taken(rates, drawn.items), (shares * rates).sum(2)


# What ours and obp 0.4.1 were both given; obp's values are in obp_numbers.json. Axes: P positions.


def synthetic_actions(number=1_000, actions=6, positions=3, seed=0):
    """Rounds of one action in one position."""
    random = np.random.default_rng(seed)
    logits = random.random((number, actions))
    logging = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    odds = np.exp(3 * random.random((number, actions, positions)))
    evaluated = odds / odds.sum(1, keepdims=True)
    ends = logging.cumsum(1)
    action = (ends <= random.random((number, 1)) * ends[:, -1:]).sum(1)
    return {
        "reward": (random.random(number) < 0.2 + 0.1 * (action % 3)).astype(np.float64),
        "action": action,
        "position": random.integers(0, positions, number),
        "pscore": logging[np.arange(number), action],
        "action_dist": evaluated,
        "predictions": random.random((number, actions, positions)),
    }


def synthetic_slates(number=500, slots=3, seed=1):
    """Slates with the probability of each slot given those above it, both policies, [S, P]."""
    random = np.random.default_rng(seed)
    return {
        "reward": random.random((number, slots)) * (random.random((number, slots)) < 0.4),
        "logged": random.uniform(0.05, 1, (number, slots)),
        "evaluated": random.uniform(0, 1, (number, slots)),
    }


def values_of_actions(given):
    """Ours, by obp's names."""
    rows, position = np.arange(len(given["reward"])), given["position"]
    chances = given["action_dist"][rows, :, position]
    predictions = given["predictions"][rows, :, position]
    log = logged_actions(given["reward"], given["pscore"], chances[rows, given["action"]])
    expected = (chances * predictions).sum(1) / chances.sum(1)
    model = (predictions[rows, given["action"]][:, None], expected[:, None])
    weights = log.slot_weights
    return {
        "ipw": ips(log.earned, weights).value,
        "snipw": snips(log.earned, weights).value,
        "dr": cascade_doubly_robust(log.earned, weights, *model).value,
    }


def values_of_slates(given):
    """Ours, by obp's names."""
    number, slots = given["reward"].shape
    log = LoggedLists(
        rewards=given["reward"],
        propensities=given["logged"],
        evaluated=given["evaluated"],
        lengths=np.full(number, slots),
    )
    return {
        "iips": ips(log.earned, log.slot_weights).value,
        "rips": ips(log.earned, cascade(log)).value,
    }
