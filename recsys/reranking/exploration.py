"""Lists that try what the model is not sure of, with the exact probability of what was shown.

Each slot is drawn anew from the candidates that are left, so the probability of a list is the
product over its slots, and each factor is known in closed form or by an integral.

Axes: n candidates, k list length, Q points of an integral.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from recsys.reranking.caps import Caps
from recsys.reranking.diversity import Floats, Places, relevance_of

POINTS = 129
"""Of the integral of Thompson sampling."""
REACH = 8.0
"""Standard deviations on either side that it covers."""


class Slate(NamedTuple):
    """What is shown."""

    places: Places
    """Of the candidates, in the order of the list, [k]."""
    propensities: Floats
    """Probability of each slot's item, given those before it, [k]."""


def epsilon_greedy(
    scores: NDArray[np.floating],
    k: int,
    epsilon: float,
    random: np.random.Generator,
    caps: Caps | None = None,
) -> Slate:
    """Give each slot, with probability epsilon, to any candidate that is left, else to the best.

    Args:
        scores: Of the candidates, best first, [n].
        caps: What the list may hold of a group; here and below.
    """
    if not 0 <= epsilon <= 1:
        raise ValueError(f"epsilon must be in [0, 1], got {epsilon}")

    def chances(left: Places) -> Floats:
        found = np.full(len(left), epsilon / len(left))
        found[0] += 1 - epsilon
        return found

    return _drawn(len(scores), k, chances, random, caps)


def plackett_luce(
    scores: NDArray[np.floating],
    k: int,
    temperature: float,
    random: np.random.Generator,
    caps: Caps | None = None,
) -> Slate:
    """Draw each slot by the softmax of what is left (Plackett 1975; Luce 1959).

    Args:
        scores: Of the candidates, best first, [n]; brought to [0, 1] before.
        temperature: Scores are divided by it: near 0 the order stays, far above 1 it is chance.
    """
    _check_positive("temperature", temperature)
    weights = np.exp((relevance_of(scores) - 1) / temperature)
    # In the tail all weights may be 0 in float64; then they count alike.
    weights = np.maximum(weights, np.finfo(np.float64).tiny)

    def chances(left: Places) -> Floats:
        own: Floats = weights[left]
        found: Floats = own / own.sum()
        return found

    return _drawn(len(scores), k, chances, random, caps)


def thompson(
    scores: NDArray[np.floating],
    deviations: NDArray[np.floating],
    k: int,
    random: np.random.Generator,
    caps: Caps | None = None,
) -> Slate:
    """Show in each slot the best of a normal draw of each candidate that is left.

    Args:
        scores: Of the candidates, best first, [n]; brought to [0, 1] before.
        deviations: Standard deviation of each candidate's relevance, above 0, [n].
    """
    spread = np.asarray(deviations, np.float64)
    if len(spread) != len(scores) or not (spread > 0).all():
        raise ValueError("each candidate needs a standard deviation above 0")
    relevance = relevance_of(scores)

    def chances(left: Places) -> Floats:
        return best_chances(relevance[left], spread[left])

    return _drawn(len(scores), k, chances, random, caps)


def best_chances(means: Floats, deviations: Floats) -> Floats:
    """Compute for independent normals the chance of each to be the largest, [n].

    The integral of each one's density times the others' distribution functions, on one grid that
    covers all of them.
    """
    low = float((means - REACH * deviations).min())
    high = float((means + REACH * deviations).max())
    narrow = float(deviations.min())
    number = max(POINTS, int(6 * (high - low) / narrow) | 1)
    points = np.linspace(low, high, min(number, 4 * POINTS))
    z = torch.from_numpy((points[:, None] - means) / deviations)  # [Q, n]
    logs = torch.special.log_ndtr(z)
    density = torch.exp(-0.5 * z * z) / torch.from_numpy(deviations)
    others = torch.exp(logs.sum(1, keepdim=True) - logs)
    found = (density * others).sum(0).numpy()
    chances: Floats = found / found.sum()
    return chances


def _drawn(
    number: int,
    k: int,
    chances: Callable[[Places], Floats],
    random: np.random.Generator,
    caps: Caps | None,
) -> Slate:
    """Draw slot by slot among what is left and breaks no cap."""
    left = np.arange(number)
    places: list[int] = []
    propensities: list[float] = []
    for drawn in random.random(min(k, number)).tolist():
        if caps is not None:
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
            caps.take(places[-1])
    return Slate(np.array(places, np.int64), np.array(propensities))


def _check_positive(name: str, value: float) -> None:
    if not value > 0:
        raise ValueError(f"{name} must be > 0, got {value}")
