"""Lists that try what the model is not sure of, with the exact probability of the shown items.

Each slot is drawn again from the candidates that are left, so the probability of a list is the
product over its slots, and each factor is known in closed form.

Axes: n candidates, k list length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from recsys.reranking.diversity import Caps, Floats, Places, scale_relevance


class Slate(NamedTuple):
    """Places and propensities of a drawn list."""

    places: Places
    """Places among the candidates, in the order of the list, [k]."""
    propensities: Floats
    """Probability of each slot's item, given those before it, [k]."""


class SlotChances(NamedTuple):
    """Chances of a policy in one slot of a given list."""

    chance: float
    """Chance of the item that the list has there, 0 if the policy never shows it."""
    left: Places
    """Candidates that it may show there; none where it ends its list before, [m]."""
    chances: Floats
    """Chance of each of them, [m]."""


Policy = Callable[[Places], Floats]
"""The chance of each candidate that is left."""


def epsilon_policy(epsilon: float) -> Policy:
    """Give a slot, with probability epsilon, to any candidate that is left, else to the best."""
    if not 0 <= epsilon <= 1:
        raise ValueError(f"epsilon must be in [0, 1], got {epsilon}")

    def chances(left: Places) -> Floats:
        found = np.full(len(left), epsilon / len(left))
        found[0] += 1 - epsilon
        return found

    return chances


def plackett_luce_policy(scores: NDArray[np.floating], temperature: float) -> Policy:
    """Draw by the softmax of the remaining items (Plackett 1975; Luce 1959).

    Args:
        scores: Of the candidates, best first, [n]; brought to [0, 1] before.
    """
    _check_positive("temperature", temperature)
    relevance = scale_relevance(scores)

    def chances(left: Places) -> Floats:
        # By the best of what is left, so that the rest do not all become 0 after a far better one.
        own = relevance[left]
        weights = np.exp((own - own.max()) / temperature)
        found: Floats = weights / weights.sum()
        return found

    return chances


def chances_of_list(
    number: int, listed: Places, policy: Policy, caps: Caps | None = None
) -> Iterator[SlotChances]:
    """Compute how likely a policy is to show a given list, slot by slot, given the slots above.

    Args:
        listed: Place of each slot's item among the candidates, -1 for one that is not, [k].
    """
    left = np.arange(number)
    gone: set[int] = set()
    for place in listed.tolist():
        allowed = left
        if caps is not None:
            allowed = left[[caps.fits(one) for one in left.tolist()]]
        chances = policy(allowed) if len(allowed) else np.zeros(0)
        at = np.flatnonzero(allowed == place)
        yield SlotChances(float(chances[at[0]]) if len(at) else 0.0, allowed, chances)
        if place >= 0 and place not in gone:
            gone.add(place)
            left = left[left != place]
            if caps is not None:
                caps.take(place)


def draw_slate(
    number: int,
    k: int,
    chances: Policy,
    random: np.random.Generator,
    caps: Caps | None = None,
) -> Slate:
    """Draw slot by slot among the remaining of ``number`` candidates that break no cap."""
    left = np.arange(number)
    places: list[int] = []
    propensities: list[float] = []
    full = True
    for drawn in random.random(min(k, number)).tolist():
        if caps is not None and full:
            left = left[[caps.fits(place) for place in left.tolist()]]
        if not len(left):
            break
        own = chances(left)
        ends = np.cumsum(own)
        at = min(int(np.searchsorted(ends, drawn * ends[-1], side="right")), len(left) - 1)
        places.append(int(left[at]))
        propensities.append(float(own[at]))
        left = np.delete(left, at)
        if caps is not None:
            full = caps.take(places[-1])
    return Slate(np.array(places, np.int64), np.array(propensities))


def _check_positive(name: str, value: float) -> None:
    if not value > 0:
        raise ValueError(f"{name} must be > 0, got {value}")
