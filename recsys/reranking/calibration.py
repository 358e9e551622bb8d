"""Lists that follow the mix of the user's own history (Steck, RecSys 2018).

Axes: n candidates, C classes, such as categories, G most classes of one candidate, k list length.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from recsys.reranking.diversity import Floats, Places, relevance_of

SMOOTHING = 0.01
"""Share of the target in the list's own mix, so that a missing class is finitely bad."""


def calibrated(
    scores: NDArray[np.floating],
    classes: NDArray[np.floating],
    target: NDArray[np.floating],
    k: int,
    strength: float,
) -> Places:
    """Choose by relevance and by how near the list's mix is to the target's, greedily.

    Each step maximises (1 - strength) * sum of relevance - strength * KL(target || mix). Of the
    divergence only the classes that a candidate has depend on it, so that alone is computed.

    Args:
        scores: Of the candidates, best first, [n].
        classes: Share of each class in each candidate, rows sum to 1 or 0, [n, C].
        target: Mix of the history, sums to 1, [C].
    """
    if not 0 <= strength <= 1:
        raise ValueError(f"strength must be in [0, 1], got {strength}")
    number = min(k, len(scores))
    wanted = np.asarray(target, np.float64)
    if strength == 0 or not wanted.any():
        return np.arange(number)
    own = (1 - strength) * relevance_of(scores)
    there = wanted > 0
    wanted, shares = wanted[there], np.asarray(classes, np.float64)[:, there]
    which, parts = _sparse(shares)
    weights = strength * wanted
    mix = np.zeros(len(wanted))
    chosen = np.empty(number, np.int64)
    for slot in range(number):
        step = (1 - SMOOTHING) / (slot + 1)
        before = step * mix + SMOOTHING * wanted
        gain = weights[which] * np.log1p(parts * (step / before)[which])  # [G, n]
        chosen[slot] = best = int((own + gain.sum(0)).argmax())
        own[best] = -np.inf
        mix = mix + shares[best]
    return chosen


def _sparse(shares: Floats) -> tuple[Places, Floats]:
    """Pack the classes that each candidate has, and their shares, both [G, n]; 0 where fewer."""
    rows, columns = np.nonzero(shares)
    counts = np.bincount(rows, minlength=len(shares))
    # How many of its candidate's classes stand before each one.
    before = np.arange(len(rows)) - (np.cumsum(counts) - counts)[rows]
    size = (max(1, int(counts.max(initial=0))), len(shares))
    which, parts = np.zeros(size, np.int64), np.zeros(size)
    which[before, rows] = columns
    parts[before, rows] = shares[rows, columns]
    return which, parts
