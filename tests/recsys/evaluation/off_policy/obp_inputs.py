"""What ours and obp 0.4.1 are both given, and our values; obp's are in obp_numbers.json.

Axes: n rounds, A actions, P positions, S slates of P slots.
"""

import numpy as np

from recsys.evaluation.off_policy.estimators import cascade_doubly_robust, ips, snips
from recsys.evaluation.off_policy.logs import LoggedLists, cascade
from tests.recsys.evaluation.off_policy.worlds import logged_actions


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
