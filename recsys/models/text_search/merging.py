"""Weights of a search's features, learned by which candidate was the one that was looked for.

Axes: Q queries, K candidates of one, F features.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

START = (4.0, 2.0, 4.0, 0.5, 1.0)
L2 = 1e-3
NUM_STEPS = 200


def weighed(
    features: NDArray[np.float32], weights: Sequence[float] | NDArray[np.float32]
) -> NDArray[np.float32]:
    """Score candidates, [K, F] -> [K].

    Not by BLAS, whose product of finite numbers once reported an invalid value.
    """
    scores: NDArray[np.float32] = np.einsum("kf,f->k", features, np.asarray(weights, np.float32))
    return scores


def fit_weights(
    features: Sequence[NDArray[np.float32]],
    targets: Sequence[int],
    l2: float = L2,
    start: Sequence[float] = START,
) -> list[float]:
    """Fit by the softmax over each query's candidates (ListNet, Cao et al., 2007).

    Weights are kept at 0 or above: no evidence for an item may count against it.

    Args:
        features: Of each query, [K, F].
        targets: Place of the item that was looked for among them; queries without are left out by
            the caller.
        start: Where weights start, [F]; by default those of ``FEATURES``.

    Returns:
        A weight for each feature; those that every query has 0 for keep their start.
    """
    if not features:
        return list(start)
    lengths = [len(one) for one in features]
    padded = torch.zeros(len(features), max(lengths), len(start))
    mask = torch.zeros(len(features), max(lengths), dtype=torch.bool)
    for row, one in enumerate(features):
        padded[row, : len(one)], mask[row, : len(one)] = torch.from_numpy(one), True
    labels = torch.tensor(list(targets))
    begin = torch.tensor(start)
    weights = begin.clone().requires_grad_()
    optimizer = torch.optim.Adam([weights], lr=0.1)
    for _ in range(NUM_STEPS):
        logits = (padded @ weights.clamp_min(0)).masked_fill(~mask, -torch.inf)
        loss = torch.nn.functional.cross_entropy(logits, labels)
        loss = loss + l2 * (weights - begin).square().sum()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    used = padded.abs().sum((0, 1)) > 0
    return torch.where(used, weights.detach().clamp_min(0), begin).tolist()
