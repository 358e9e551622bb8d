"""At most this many items of one group in a list.

Axes: n candidates, k list length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

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
