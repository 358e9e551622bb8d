"""Lists arranged after ranking: unlike items, few of a group, explored, steered.

Maximal marginal relevance and caps; exploration draws each slot from the candidates that are left,
so the probability of a list is the product over its slots. Steering moves an item by a factor of
its place, not of its score, which no two bundles share.

Axes: n candidates, D width of item vectors, C categories, k list length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Places = NDArray[np.int64]
Vectors = NDArray[np.float32]
MAX_FACTOR = 8.0
DISLIKE_STRENGTH = 0.5
"""How far an item goes down that equals a disliked one; less for a smaller cosine."""
MIN_INFERRED = 3
"""Items of the history from which a topic is inferred."""
MAX_INFERRED = 5
LEAST_LIFT = 1.5
"""Share of the history over share of the catalogue, from which a category is a topic."""


def scale_relevance(scores: NDArray[np.floating]) -> Floats:
    """Bring scores to [0, 1] over the candidates; 1 for all where they are equal."""
    values = np.asarray(scores, np.float64)
    if not len(values) or (spread := values.max() - values.min()) <= 0:
        return np.ones(len(values))
    relevance: Floats = (values - values.min()) / spread
    return relevance


def mmr(
    scores: NDArray[np.floating], vectors: NDArray[np.floating], k: int, strength: float
) -> Places:
    """Choose by maximal marginal relevance (Carbonell & Goldstein, SIGIR 1998).

    Args:
        scores: Of the candidates, best first, [n].
        vectors: Of length 1, or 0 where an item has none, [n, D].
    """
    number = min(k, len(scores))
    if strength == 0:
        return np.arange(number)
    own = (1 - strength) * scale_relevance(scores)
    nearest = np.zeros(len(own), vectors.dtype)
    chosen = np.empty(number, np.int64)
    for slot in range(number):
        chosen[slot] = best = int((own - strength * nearest).argmax())
        own[best] = -np.inf
        similarity = vectors @ vectors[best]
        nearest = np.maximum(nearest, similarity) if slot else similarity
    return chosen


Group = tuple[int, int]
"""The number of a cap, and the row of a value that it is for."""

Groups = Mapping[int, Sequence[Group]] | Sequence[Sequence[Group]]
"""By candidate."""


class Caps:
    """Counts of each group in a list so far."""

    def __init__(self, groups: Groups, limits: Sequence[int]) -> None:
        """Take the groups of each candidate, and the most items of a group by number of the cap."""
        self._groups, self._limits = groups, limits
        self._taken: Counter[Group] = Counter()

    def among(self, places: Sequence[int]) -> Caps:
        """Continue with some of the candidates, renumbered."""
        found = Caps([self._groups[place] for place in places], self._limits)
        found._taken = self._taken
        return found

    def fits(self, place: int) -> bool:
        """Return whether a candidate breaks no cap."""
        return all(self._taken[group] < self._limits[group[0]] for group in self._groups[place])

    def take(self, place: int) -> bool:
        """Count a candidate that is in the list, and tell whether a group is full by it."""
        own = self._groups[place]
        self._taken.update(own)
        return any(self._taken[group] >= self._limits[group[0]] for group in own)


def capped(order: NDArray[np.int64], caps: Caps, k: int) -> NDArray[np.int64]:
    """Take candidates in their order, leaving out those of which a group is full."""
    chosen: list[int] = []
    for place in order.tolist():
        if len(chosen) == k:
            break
        if caps.fits(place):
            caps.take(place)
            chosen.append(place)
    return np.array(chosen, np.int64)


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
    relevance = scale_relevance(scores)

    def chances(left: Places) -> Floats:
        # By the best item left, so that the rest do not all become 0 after a far better one.
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
    number: int, k: int, chances: Policy, random: np.random.Generator, caps: Caps | None = None
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


def steered_order(pulls: Vectors, places: NDArray[np.float64] | None = None) -> NDArray[np.int64]:
    """Order a list by its places and pulls; equals keep their order.

    Args:
        pulls: From -1 (down) to 1 (up); others count as the nearer of these, [n].
        places: Ascending, by default from 1, [n].
    """
    places = np.arange(1, len(pulls) + 1, dtype=np.float64) if places is None else places
    return np.argsort(places * MAX_FACTOR ** -np.clip(pulls, -1, 1), kind="stable")


def dislike_pulls(vectors: Vectors, disliked: Vectors) -> Vectors:
    """Compute the pull of each item by its largest cosine with a disliked one, [n].

    Args:
        vectors: Of length 1, [n, D].
        disliked: Of length 1, at least one, [m, D].
    """
    pulls: Vectors = -DISLIKE_STRENGTH * np.maximum(vectors @ disliked.T, 0).max(1)
    return pulls


def clearest_categories(
    own: Sequence[NDArray[np.integer]], every: NDArray[np.int64], num_items: int
) -> list[tuple[int, float]]:
    """Find categories that a history has far more of than the catalogue, the clearest first.

    Args:
        own: Category rows of each item of the history; row 0 is none.
        every: Items of the catalogue by category row, [C].

    Returns:
        Category rows, and the share of the history's items that have each.
    """
    if len(own) < MIN_INFERRED:
        return []
    counts = np.bincount(np.concatenate(own), minlength=len(every))
    shares = counts / len(own)
    lifts = shares / np.maximum(every / max(1, num_items), 1e-9)
    lifts[(counts < MIN_INFERRED) | (np.arange(len(every)) == 0)] = 0
    first = np.argsort(-lifts, kind="stable")[:MAX_INFERRED].tolist()
    return [(row, float(shares[row])) for row in first if lifts[row] >= LEAST_LIFT]
