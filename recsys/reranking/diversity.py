"""Lists whose items are unlike each other: maximal marginal relevance, and a point process.

Axes: n candidates, D width of item vectors, k list length.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Places = NDArray[np.int64]
SMALLEST = 1e-6
"""A candidate whose part that is new has a smaller square is a copy of those taken.

Float32 vectors of length 1 leave up to 3e-7 of an exact copy.
"""


def relevance_of(scores: NDArray[np.floating]) -> Floats:
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
    _check(scores, vectors, strength)
    number = min(k, len(scores))
    if strength == 0:
        return np.arange(number)
    own = (1 - strength) * relevance_of(scores)
    nearest = np.zeros(len(own), vectors.dtype)
    chosen = np.empty(number, np.int64)
    for slot in range(number):
        chosen[slot] = best = int((own - strength * nearest).argmax())
        own[best] = -np.inf
        similarity = vectors @ vectors[best]
        nearest = np.maximum(nearest, similarity) if slot else similarity
    return chosen


def dpp(
    scores: NDArray[np.floating], vectors: NDArray[np.floating], k: int, strength: float
) -> Places:
    """Choose the likeliest list of a determinantal point process, greedily.

    Chen, Zhang & Zhou, NeurIPS 2018 (arXiv:1709.05135): each step adds the item with the largest
    gain in log det of the kernel, whose Cholesky factor grows by one row. Where the rest are copies
    of what was chosen they follow by score.

    Args:
        scores: Of the candidates, best first, [n].
        vectors: Of length 1, or 0 where an item has none, [n, D].
    """
    _check(scores, vectors, strength)
    number = min(k, len(scores))
    if strength == 0:
        return np.arange(number)
    # Strength times the gain in log det, so that nothing is divided by a strength near 0.
    quality = 2 * (1 - strength) * relevance_of(scores)
    rows = np.empty((number, len(quality)))
    new = np.ones(len(quality))
    chosen = np.empty(number, np.int64)
    for slot in range(number):
        best = int((quality + strength * np.log(new)).argmax())
        if quality[best] == -np.inf:
            rest = np.setdiff1d(np.arange(len(quality)), chosen[:slot])[: number - slot]
            return np.concatenate([chosen[:slot], rest])
        chosen[slot] = best
        row = (vectors @ vectors[best] - rows[:slot, best] @ rows[:slot]) / np.sqrt(new[best])
        rows[slot] = row
        new = np.maximum(new - row * row, SMALLEST)
        quality[new <= SMALLEST] = -np.inf
        quality[best] = -np.inf
    return chosen


def _check(scores: NDArray[np.floating], vectors: NDArray[np.floating], strength: float) -> None:
    if not 0 <= strength <= 1:
        raise ValueError(f"strength must be in [0, 1], got {strength}")
    if vectors.ndim != 2 or len(vectors) != len(scores):
        raise ValueError(
            f"{len(scores)} candidates need as many vectors, got an array of {vectors.shape}"
        )
