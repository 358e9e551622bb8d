"""Peers that need numpy and scipy alone: popularity of the last days, and EASE.

Axes: Q queries, N item rows.
"""

from __future__ import annotations

import numpy as np
from scipy import linalg

from tests.benchmarks.peers.folder import Known, Queries
from tests.benchmarks.peers.ranking import Scored, Scores

DAY = 86_400


def popularity(known: Known, *, days: float) -> Scored:
    """Rank by the events of the last days before the step; more events in all settle ties."""
    counts = known.counts(known.begin - days * DAY)
    whole = known.counts()
    scores = counts + whole / (1 + whole.max(initial=0))

    def score(queries: Queries, block: slice) -> Scores:
        return np.repeat(scores[None], block.stop - block.start, axis=0)

    return Scored(score)


def ease(known: Known, *, l2: float) -> Scored:
    """Embarrassingly shallow autoencoder (arXiv:1905.03375): B = -P / diag(P), P = (X'X + l2)^-1.

    A query's scores are its history's rows of B, which no user has to be known for.
    """
    items = np.flatnonzero(np.bincount(known.item_rows, minlength=known.num_item_rows))
    taken = known.taken[:, items]
    gram = (taken.T @ taken).toarray().astype(np.float32)
    gram[np.diag_indices_from(gram)] += l2
    # Half the time of linalg.inv, which does not use that the matrix is positive definite.
    factor, failed = linalg.lapack.spotrf(gram, lower=1, overwrite_a=1)
    assert not failed, "X'X + l2 is positive definite"
    inverse, _ = linalg.lapack.spotri(factor, lower=1, overwrite_c=1)
    inverse = np.tril(inverse)
    inverse += np.tril(inverse, -1).T
    weights = -inverse / np.diag(inverse)
    weights[np.diag_indices_from(weights)] = 0

    def score(queries: Queries, block: slice) -> Scores:
        histories = queries.taken[block][:, items]
        scores = np.full((histories.shape[0], known.num_item_rows), -np.inf, np.float32)
        scores[:, items] = histories @ weights
        scores[np.diff(histories.indptr) == 0] = -np.inf
        return scores

    return Scored(score)
