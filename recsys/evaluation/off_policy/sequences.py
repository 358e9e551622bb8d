"""Confidence sequences: intervals of a value that stay valid however often one looks.

A bet against every value m: start with 1, and before each list stake a part of it on the weighted
reward x being above m. While the true mean is m or less nobody can expect to win, so the wealth
prod(1 + stake_i (x_i - m)) reaches 1 / error with a chance of at most ``error`` at any time (Ville,
1939): values whose bets are that rich are left out, at every look (Waudby-Smith and Ramdas, JRSS B
2024, arXiv:2010.09686). Only x >= 0 is needed, not a largest weight, so the bet from below is made
on w r and the one from above on w (1 - r), whose mean is at most 1 less the value
(Waudby-Smith et al., 2024, arXiv:2210.10768). Weights need no mean of 1 for that: where the log
lacks what the policy shows the sequence is wide, not wrong.

It covers the mean reward while that does not drift. Estimates that subtract a reward model, such
as dr, can be negative and have none: the asymptotic sequence that `recsys.evaluation.sequential`
has for experiments missed the value in up to 80% of simulated logs with rare rewards.

Axes: n lists in the order in which they were shown, T looks.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from recsys.evaluation.off_policy.logs import Floats, Integers, LoggedLists

MOST_STAKED = 0.75
"""Share of the wealth that the worst list may take."""
STAKES = 4 * 0.5 ** np.arange(16)
"""Bets are split evenly between these, so that one fits, whatever the variance and the number."""
STEPS = 20
"""Halvings in the search of a bound: 1e-6 of the range."""


class Sequence(NamedTuple):
    """Bounds at each look, [T] each, which only ever narrow."""

    looks: Integers
    """How many lists were seen."""
    low: Floats
    high: Floats


def default_looks(number: int, count: int = 24) -> Integers:
    """Choose looks, evenly on a logarithmic scale from 10 lists to all."""
    first = min(10, number)
    return np.unique(np.geomspace(first, number, count).round().astype(np.int64))


def betting_sequence(
    log: LoggedLists,
    weights: Floats,
    *,
    most: float | None = None,
    error: float = 0.05,
    looks: Integers | None = None,
) -> Sequence:
    """Bound the mean reward of a list at every look, with both sides wrong by ``error`` together.

    Args:
        weights: Of `logs.WEIGHTS`, not clipped above their value, [n, K].
        most: The largest reward of a slot; 1 by default. Rewards must lie between 0 and it.
        looks: How many lists were seen, ascending; by default `default_looks`.
    """
    most = 1.0 if most is None else most
    rewards = log.earned
    if not most > 0 or (rewards < 0).any() or (rewards > most).any():
        raise ValueError(
            f"rewards of a slot must lie between 0 and {most}, got {rewards.min()} to "
            f"{rewards.max()}; pass the largest as most="
        )
    if not 0 < error < 1:
        raise ValueError(f"error must lie between 0 and 1, got {error}")
    looks = default_looks(len(log)) if looks is None else looks
    slots = rewards.shape[1]
    earned = (weights * rewards / most).sum(1) / slots
    missed = (weights * (1 - rewards / most)).sum(1) / slots
    scale = most * slots
    low = _lower_bounds(earned, looks, error / 2)
    high = 1 - _lower_bounds(missed, looks, error / 2)
    return Sequence(looks, scale * low, scale * np.maximum(high, low))


def _lower_bounds(values: Floats, looks: Integers, error: float) -> Floats:
    """Bound the mean, in [0, 1], of values >= 0 from below at each look, [T]."""
    bounds, best, needed = np.zeros(len(looks)), 0.0, -math.log(error)
    for place, number in enumerate(looks.tolist()):
        seen = values[:number]
        if best < 1 and _wealth(seen, best + 1e-12) >= needed:
            low, high = best, 1.0
            for _ in range(STEPS):
                middle = 0.5 * (low + high)
                # Wealth falls with the mean that is bet against.
                low, high = (middle, high) if _wealth(seen, middle) >= needed else (low, middle)
            best = low
        bounds[place] = best
    return bounds


def _wealth(values: Floats, mean: float) -> float:
    """Logarithm of what bets on more than a mean have won, an equal part by each stake."""
    staked = np.unique(np.minimum(STAKES, MOST_STAKED / mean))
    parts = np.ones(len(staked))
    # Stakes that were cut to the most are one stake with all of their parts.
    parts[-1] += len(STAKES) - len(staked)
    logs = np.array([np.log1p(stake * (values - mean)).sum() for stake in staked])
    highest = float(logs.max())
    return highest + math.log(float((parts * np.exp(logs - highest)).sum()) / len(STAKES))
