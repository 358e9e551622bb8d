"""Area under the ROC curve: how often a positive is scored above a negative.

Axes: P predictions.
"""

from __future__ import annotations

import torch
from torch import Tensor


def area_under_curve(scores: Tensor, labels: Tensor) -> float:
    """Chance that a random positive is scored above a random negative, equals counting a half.

    Args:
        scores: Higher is surer, [P].
        labels: 0 or 1, [P].

    Returns:
        0.5 is chance, 1 is perfect; NaN where there is one class only.

    Raises:
        ValueError: If a score is NaN.
    """
    if bool(scores.isnan().any()):
        raise ValueError("scores must not be NaN; leave such predictions out")
    positive = labels == 1
    num_positive, num_negative = int(positive.sum()), int((~positive).sum())
    if not (num_positive and num_negative):
        return float("nan")
    _, place, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    # Equal scores share the mean of the ranks that they take up.
    last = counts.cumsum(0).double()
    ranks = (last - (counts.double() - 1) / 2)[place]
    above = ranks[positive].sum() - num_positive * (num_positive + 1) / 2
    return float(above / (num_positive * num_negative))
