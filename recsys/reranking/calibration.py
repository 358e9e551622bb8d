"""Lists that follow the mix of the user's own history (Steck, RecSys 2018).

Axes: n candidates, C classes, such as categories, k list length.
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

    Each step maximises (1 - strength) * mean relevance - strength * KL(target || mix).

    Args:
        scores: Of the candidates, best first, [n].
        classes: Share of each class in each candidate, rows sum to 1 or 0, [n, C].
        target: Mix of the history, sums to 1, [C].
        strength: 0 keeps the order, 1 looks at nothing but the mix.

    Returns:
        Places of the candidates in the order of the list, at most k.
    """
    if not 0 <= strength <= 1:
        raise ValueError(f"strength must be in [0, 1], got {strength}")
    number = min(k, len(scores))
    wanted = np.asarray(target, np.float64)
    if strength == 0 or not wanted.any():
        return np.arange(number)
    relevance: Floats = relevance_of(scores)
    there = wanted > 0
    wanted, own = wanted[there], np.asarray(classes, np.float64)[:, there]
    mix = np.zeros(len(wanted))
    left = np.ones(len(relevance), np.bool_)
    chosen = np.empty(number, np.int64)
    for slot in range(number):
        mixes = (mix + own) / (slot + 1)
        smooth = (1 - SMOOTHING) * mixes + SMOOTHING * wanted
        divergence = (wanted * np.log(wanted / smooth)).sum(1)
        value = (1 - strength) * relevance - strength * divergence
        value[~left] = -np.inf
        chosen[slot] = best = int(value.argmax())
        left[best] = False
        mix = mix + own[best]
    return chosen
