"""Lists that try what the model is not sure of, with the exact probability of the shown items.

Each slot is drawn again from the candidates that are left, so the probability of a list is the
product over its slots, and each factor is known in closed form or by an integral.

Axes: n candidates, k list length, Q points of an integral.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from recsys.reranking.diversity import Caps, Floats, Places, scale_relevance

REACH = 7.0
"""Standard deviations on either side of a mean beyond which a normal counts as 0 or 1 (1e-12)."""
PANEL = 1.5
"""Width of a panel of the integral, in the least standard deviation that matters there."""
NODES = np.polynomial.legendre.leggauss(8)
"""Gauss-Legendre nodes within each panel; the error is below 1e-7."""
FAR = 40.0
"""Standard deviations at which logarithms are cut: exp(-40 * 40 / 2) is 0 in float64."""
LEAST_DEVIATION = 1e-6
"""Least deviation of a relevance in [0, 1]; a smaller one is raised to it."""


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


def thompson_policy(
    scores: NDArray[np.floating], deviations: NDArray[np.floating], num_slots: int
) -> Policy:
    """Show the best of a normal draw of each candidate that is left.

    Args:
        scores: Of the candidates, best first, [n]; brought to [0, 1] before.
        deviations: Standard deviation of each candidate's relevance, above 0, [n]; the least
            that is drawn with is `LEAST_DEVIATION`.
        num_slots: Candidates that may be gone before a slot is drawn: the length of the list, or
            with caps, which may take any away, the number of candidates.
    """
    spread = np.asarray(deviations, np.float64)
    if len(spread) != len(scores) or not (spread > 0).all():
        raise ValueError("each candidate needs a standard deviation above 0")
    if not len(scores):
        return lambda left: np.ones(len(left))
    slots = max(1, min(num_slots, len(scores)))
    return _Largest(scale_relevance(scores), np.maximum(spread, LEAST_DEVIATION), slots).chances


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


def best_chances(means: Floats, deviations: Floats) -> Floats:
    """Compute for independent normals the chance of each to be the largest, [n]."""
    return _Largest(means, deviations, 1).chances(np.arange(len(means)))


class _Largest:
    """Chances of independent normals to be the largest of any that are left.

    The integral of each one's density times the others' distribution functions, F. With the hazard
    h = density / F that is the integral of h times the product of all F, so one grid of hazards and
    log F serves every slot of a list: two products of a matrix and a vector each.
    """

    def __init__(self, means: Floats, deviations: Floats, num_slots: int) -> None:
        """Build the grid for the candidates left in any of a number of slots."""
        points, weights = _grid(means, deviations, num_slots)
        z = torch.from_numpy((points[:, None] - means) / deviations).clamp_(-FAR, FAR)  # [Q, n]
        logs = torch.special.log_ndtr(z)
        hazards = torch.exp(-0.5 * z * z - logs) * torch.from_numpy(weights)[:, None]
        self._logs: Floats = logs.numpy()
        self._hazards: Floats = hazards.numpy() / deviations

    def chances(self, left: Places) -> Floats:
        """Compute the chance of each that is left to be the largest of them."""
        there = np.zeros(self._logs.shape[1])
        there[left] = 1
        found = (np.exp(self._logs @ there) @ self._hazards)[left]
        chances: Floats = found / found.sum()
        return chances


def _grid(means: Floats, deviations: Floats, num_slots: int) -> tuple[Floats, Floats]:
    """Choose points and weights, [Q] each, close where a narrow normal rises and wide elsewhere.

    Below the reach of any one normal that is left the product of all F is 0, so the grid begins
    where the ``num_slots``-th highest does.
    """
    starts, ends = means - REACH * deviations, means + REACH * deviations
    widths, last = PANEL * deviations, float(ends.max())
    edges = [float(np.sort(starts)[-num_slots])]
    while (here := edges[-1]) < last:
        ahead = ends > here
        step = float(np.maximum(starts[ahead] - here, widths[ahead]).min())
        edges.append(min(here + step, last))
    nodes, weights = NODES
    half = np.diff(edges)[:, None] / 2
    points = np.array(edges[:-1])[:, None] + half * (1 + nodes)
    return points.ravel(), (half * weights).ravel()


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
