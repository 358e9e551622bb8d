"""AUC of scores, and the best that a known world allows."""

import numpy as np
from numpy.typing import NDArray


def auc(scores: NDArray[np.float64], labels: NDArray[np.bool_]) -> float:
    """Area under the ROC curve; pairs with equal scores count one half.

    Raises:
        ValueError: If the labels are all alike.
    """
    positives = int(labels.sum())
    if positives in (0, len(labels)):
        raise ValueError(
            f"AUC needs labels of both kinds, got {positives} positive of {len(labels)}"
        )
    _, group, counts = np.unique(scores, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts - 1) / 2  # mean rank from 1 within each tie
    rank_sum = float(middle[group[labels]].sum())
    return (rank_sum - positives * (positives + 1) / 2) / (positives * (len(labels) - positives))


def expected_auc(probabilities: NDArray[np.float64]) -> float:
    """Return the AUC of probabilities against labels drawn from them, over infinitely many draws.

    No scorer of the same cases has a higher one.
    """
    levels, group = np.unique(probabilities, return_inverse=True)
    counts = np.bincount(group)
    positive, negative = counts * levels, counts * (1 - levels)
    below = np.cumsum(negative) - negative / 2
    return float((positive * below).sum() / (positive.sum() * negative.sum()))
