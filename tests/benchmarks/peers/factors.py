"""Peers of implicit 0.7: BM25 item-kNN, ALS and BPR, each of a query's history.

The library fits; what a query's history makes of the fitted model is said at each function.

Axes: Q queries, N item rows, D factors.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.benchmarks.peers.folder import Known, Queries
from tests.benchmarks.peers.ranking import Scored, Scores

SEED = 0


def bm25(known: Known, **settings: Any) -> Scored:
    """Sum the kept similarities of the history's items; an item without any has no score."""
    from implicit.nearest_neighbours import BM25Recommender

    model = BM25Recommender(**settings, num_threads=1)
    model.fit(known.taken, show_progress=False)
    similarity = model.similarity.astype(np.float32)
    similarity.setdiag(0)

    def score(queries: Queries, block: slice) -> Scores:
        scores = np.asarray((queries.taken[block] @ similarity).todense(), np.float32)
        scores[scores <= 0] = -np.inf
        return scores

    return Scored(score)


def als(known: Known, **settings: Any) -> Scored:
    """Solve each query's vector from its history (``recalculate_user``)."""
    from implicit.cpu.als import AlternatingLeastSquares

    model = AlternatingLeastSquares(**settings, random_state=SEED, num_threads=1)
    model.fit(known.taken, show_progress=False)

    def score(queries: Queries, block: slice) -> Scores:
        histories = queries.taken[block]
        vectors = model.recalculate_user(np.arange(histories.shape[0]), histories)
        scores = vectors @ model.item_factors.T
        scores[np.diff(histories.indptr) == 0] = -np.inf
        return scores

    return Scored(score)


def bpr(known: Known, *, own_vector: bool, **settings: Any) -> Scored:
    """Score by a user's trained vector, or by the mean of its history's item vectors.

    The library cannot make a BPR vector of a history. ``own_vector`` takes that of the training
    where the user had one, and the mean where not; else all queries take the mean, whose last
    place, which belongs to the item's bias, is 1 as in training.
    """
    from implicit.cpu.bpr import BayesianPersonalizedRanking

    model = BayesianPersonalizedRanking(**settings, random_state=SEED, num_threads=1)
    model.fit(known.taken, show_progress=False)
    is_known = np.diff(known.taken.indptr) > 0

    def score(queries: Queries, block: slice) -> Scores:
        histories = queries.taken[block]
        lengths = np.diff(histories.indptr)
        vectors = histories @ model.item_factors / np.maximum(lengths, 1)[:, None]
        vectors[:, -1] = 1
        if own_vector:
            users = queries.user_rows[block]
            own = is_known[users]
            vectors[own] = model.user_factors[users[own]]
        scores = np.asarray(vectors @ model.item_factors.T, np.float32)
        scores[lengths == 0] = -np.inf
        return scores

    return Scored(score)
