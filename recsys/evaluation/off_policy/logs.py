"""Logged lists with propensities, and the weights that turn one policy's log into another's.

A logged single action is a list of one slot. Every probability is that of a slot's item given the
items above it, as `recsys.reranking.exploration` logs it; the weight of a slot is the evaluated
policy's probability over the logging policy's. Three weights of the reward in slot k differ in what
they assume of users (McInerney et al., KDD 2020, arXiv:2007.12986):

    whole_list    w_1 ... w_K   the reward in a slot may depend on every item of the list
    cascade       w_1 ... w_k   on the items down to its slot: people read from above
                                (reward-interaction IPS)
    independent   w_k           on its own item alone (item-position IPS)

Fewer factors vary less, and are wrong where the assumption is. With the conditional probabilities
that a log has, ``independent`` values the evaluated policy's choice in each slot below the items
that were logged above it; with probabilities of item and slot it is the estimator of Li et al.
(KDD 2018, arXiv:1804.10488).

Axes: n lists, K slots.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, eq=False)
class LoggedLists:
    """Lists, what was earned in each slot, and how likely each policy shows each slot's item.

    Raises:
        ValueError: Shapes differ, a reward is not finite or a probability is out of its range; says
            which, and where.
    """

    rewards: Floats
    """[n, K]; what stands behind a list's length counts for nothing, here and below."""
    propensities: Floats
    """Of the logging policy, in (0, 1], [n, K]."""
    evaluated: Floats
    """Of the evaluated policy for the same items, in [0, 1], [n, K]."""
    lengths: Integers
    """Slots of each list, 1 to K, [n]."""

    def __post_init__(self) -> None:
        shape = self.rewards.shape
        if len(shape) != 2 or 0 in shape:
            raise ValueError(
                f"rewards must be [lists, slots] with at least one of each, got shape {shape}; for "
                "single actions use LoggedLists.of_actions"
            )
        for name in ("propensities", "evaluated"):
            if (found := getattr(self, name).shape) != shape:
                raise ValueError(f"{name} must have the shape of rewards, {shape}, got {found}")
        if self.lengths.shape != shape[:1]:
            raise ValueError(f"lengths must have shape {shape[:1]}, got {self.lengths.shape}")
        short = (self.lengths < 1) | (self.lengths > shape[1])
        if short.any():
            at = int(short.argmax())
            raise ValueError(
                f"list {at} has length {self.lengths[at]}; lengths must be 1 to {shape[1]}"
            )
        self._check("rewards", np.isfinite(self.rewards), "finite; drop lists without a reward")
        self._check(
            "propensities",
            (self.propensities > 0) & (self.propensities <= 1),
            "in (0, 1]: an item that was shown had a chance to be. Log the probability with which "
            "it was drawn",
        )
        self._check("evaluated", (self.evaluated >= 0) & (self.evaluated <= 1 + 1e-9), "in [0, 1]")

    @classmethod
    def of_actions(cls, rewards: Floats, propensities: Floats, evaluated: Floats) -> LoggedLists:
        """Take logged single actions, [n] each."""
        shapes = {np.shape(one) for one in (rewards, propensities, evaluated)}
        if len(shapes) != 1 or len(next(iter(shapes))) != 1:
            raise ValueError(
                "rewards, propensities and evaluated of single actions must be one-dimensional and "
                f"of one length, got shapes {sorted(shapes)}"
            )
        columns = (
            np.asarray(one, np.float64)[:, None] for one in (rewards, propensities, evaluated)
        )
        first, second, third = columns
        lengths = np.ones(len(first), np.int64)
        return cls(rewards=first, propensities=second, evaluated=third, lengths=lengths)

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def present(self) -> Mask:
        """Which slots lists have, [n, K]."""
        found: Mask = np.arange(self.rewards.shape[1]) < self.lengths[:, None]
        return found

    @property
    def earned(self) -> Floats:
        """Rewards, 0 behind the end of a list, [n, K]."""
        return np.where(self.present, self.rewards, 0.0)

    @property
    def slot_weights(self) -> Floats:
        """Evaluated over logged probability, 1 behind the end of a list, [n, K]."""
        chances = np.where(self.present, self.propensities, 1.0)
        return np.where(self.present, self.evaluated, 1.0) / chances

    def _check(self, name: str, valid: Mask, allowed: str) -> None:
        wrong = ~valid & self.present
        if wrong.any():
            at, slot = (int(one[0]) for one in np.nonzero(wrong))
            value = getattr(self, name)[at, slot]
            raise ValueError(
                f"{name} of list {at}, slot {slot} is {value} ({int(wrong.sum())} such); they must "
                f"be {allowed}"
            )


def whole_list(log: LoggedLists) -> Floats:
    """Weigh each slot by the whole list, [n, K]."""
    product = log.slot_weights.prod(1, keepdims=True)
    return np.broadcast_to(product, log.rewards.shape).copy()


def cascade(log: LoggedLists) -> Floats:
    """Weigh each slot by the items down to it, [n, K]."""
    return log.slot_weights.cumprod(1)


def independent(log: LoggedLists) -> Floats:
    """Weigh each slot by its own item, [n, K]."""
    return log.slot_weights


WEIGHTS: dict[str, Callable[[LoggedLists], Floats]] = {
    "whole_list": whole_list,
    "cascade": cascade,
    "independent": independent,
}


def clipped(weights: Floats, most: float | None) -> Floats:
    """Cut weights: less variance, for an estimate that is too low by what the cut lists earned.

    Args:
        most: Above 0; None cuts nothing.
    """
    if most is None:
        return weights
    if not most > 0:
        raise ValueError(f"weights are clipped at a number above 0, got {most}")
    return np.minimum(weights, most)
