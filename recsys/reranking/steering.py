"""Steering: move items of a ranked list by what a person wishes.

An item moves by a factor of its place, not by its score: scores of two lists or bundles cannot be
compared. A pull of 1 divides an item's place by `MAX_FACTOR`, a pull of -1 multiplies it by as
much, and no pull does more.

Axes: n items of a list, m refused items, D width.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
MAX_FACTOR = 8.0
DISLIKE_STRENGTH = 0.5
"""How far an item goes down that equals a disliked one; less for a smaller cosine."""


def steered_order(pulls: Floats, places: NDArray[np.float64] | None = None) -> NDArray[np.int64]:
    """Order a list by its places and pulls; equals keep their order.

    Args:
        pulls: From -1 (down) to 1 (up); others count as the nearer of these, [n].
        places: Ascending, by default from 1, [n].
    """
    places = np.arange(1, len(pulls) + 1, dtype=np.float64) if places is None else places
    return np.argsort(places * MAX_FACTOR ** -np.clip(pulls, -1, 1), kind="stable")


def dislike_pulls(vectors: Floats, disliked: Floats) -> Floats:
    """Compute the pull of each item by its largest cosine with a disliked one, [n].

    Args:
        vectors: Of length 1, [n, D].
        disliked: Of length 1, at least one, [m, D].
    """
    pulls: Floats = -DISLIKE_STRENGTH * np.maximum(vectors @ disliked.T, 0).max(1)
    return pulls
