"""Lists whose items are unlike each other: maximal marginal relevance, and a point process.

Axes: n candidates, D width of item vectors, k list length.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Places = NDArray[np.int64]
SMALLEST = 1e-10
"""A candidate whose part that is new has a smaller square is a copy of those taken."""


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
        strength: 0 keeps the order, 1 looks at nothing but differences.

    Returns:
        Places of the candidates in the order of the list, at most k.
    """
    _check(scores, vectors, strength)
    number = min(k, len(scores))
    if strength == 0:
        return np.arange(number)
    relevance, vectors = relevance_of(scores), np.asarray(vectors, np.float64)
    nearest = np.zeros(len(relevance))
    left = np.ones(len(relevance), np.bool_)
    chosen = np.empty(number, np.int64)
    for slot in range(number):
        value = (1 - strength) * relevance - strength * nearest
        value[~left] = -np.inf
        chosen[slot] = best = int(value.argmax())
        left[best] = False
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
        strength: 0 keeps the order, 1 looks at nothing but differences.
    """
    _check(scores, vectors, strength)
    number = min(k, len(scores))
    if strength == 0:
        return np.arange(number)
    vectors = np.asarray(vectors, np.float64)
    quality = 2 * (1 - strength) / strength * relevance_of(scores)
    rows = np.zeros((number, len(quality)))
    new = np.ones(len(quality))
    left = np.ones(len(quality), np.bool_)
    chosen = np.empty(number, np.int64)
    for slot in range(number):
        with np.errstate(divide="ignore"):
            gain = quality + np.log(np.where(new > SMALLEST, new, 0.0))
        gain[~left] = -np.inf
        best = int(gain.argmax())
        if gain[best] == -math.inf:
            rest = np.flatnonzero(left)[: number - slot]
            return np.concatenate([chosen[:slot], rest])
        chosen[slot], left[best] = best, False
        similarity = vectors @ vectors[best]
        row = (similarity - rows[:slot, best] @ rows[:slot]) / math.sqrt(new[best])
        rows[slot] = row
        new = np.maximum(new - row * row, 0.0)
    return chosen


def _check(scores: NDArray[np.floating], vectors: NDArray[np.floating], strength: float) -> None:
    if not 0 <= strength <= 1:
        raise ValueError(f"strength must be in [0, 1], got {strength}")
    if vectors.ndim != 2 or len(vectors) != len(scores):
        raise ValueError(
            f"{len(scores)} candidates need as many vectors, got an array of {vectors.shape}"
        )
