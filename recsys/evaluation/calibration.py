"""Calibration, in both senses: are probabilities frequencies, and do lists keep a user's mix.

Probabilities: a click predicted at 20% should happen one time in five. Lists: a user who watched
70% drama and 30% comedy should not be shown drama alone (Steck, RecSys 2018).

Axes: P predictions, U users, K length of the lists, N item rows, C category rows.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from recsys.data.batch import Jagged
from recsys.evaluation.beyond_accuracy import MAX_CELLS, category_totals, listed_items

SMOOTHING = 0.01
"""Share of the history's mix in a list's, so that no category makes the divergence infinite."""


class ReliabilityCurve(NamedTuple):
    """Predicted against observed frequency, one row for each bin that is not empty."""

    predicted: Tensor
    """Mean probability of the bin's predictions, float64."""
    observed: Tensor
    """Share of them that came true, float64."""
    counts: Tensor
    """Predictions in the bin, int64."""


def reliability_curve(
    probabilities: Tensor, labels: Tensor, *, num_bins: int = 15
) -> ReliabilityCurve:
    """Bin predictions by probability and compare each bin's mean with its share of positives.

    Bins are cut at quantiles: click probabilities crowd near 0, where equal widths would put nearly
    all of them in one bin. Equal predictions share a bin.

    Args:
        probabilities: [P] in [0, 1].
        labels: [P], 0 or 1.
    """
    probabilities, labels = _checked(probabilities, labels)
    ordered = probabilities.sort().values
    # A prediction's place is that of the first equal one, so ties do not straddle a cut.
    bins = torch.searchsorted(ordered, probabilities) * num_bins // len(ordered)
    counts = torch.bincount(bins, minlength=num_bins)
    filled = counts > 0
    return ReliabilityCurve(
        predicted=(torch.bincount(bins, probabilities, num_bins) / counts)[filled],
        observed=(torch.bincount(bins, labels, num_bins) / counts)[filled],
        counts=counts[filled],
    )


def expected_calibration_error(curve: ReliabilityCurve) -> float:
    """Mean of abs(predicted - observed) over the bins, weighted by count (arXiv:1706.04599).

    0 is calibrated. The bins decide: more bins find more error, part of it noise, so compare
    models on one number of bins.
    """
    gaps = (curve.predicted - curve.observed).abs()
    return float((gaps * curve.counts).sum() / curve.counts.sum())


def category_shares(items: Jagged, categories: Jagged, num_categories: int) -> Tensor:
    """Mix of categories among each user's items, [U, C]; rows sum to 1.

    An item splits its weight evenly over its categories; repeats count again. A user whose items
    have no category has a row of zeros.
    """
    weights = 1 / categories.lengths().clamp_min(1).double()  # [N]
    totals = category_totals(items, categories, num_categories, weights)  # [U, C]
    return totals / totals.sum(1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)


def list_miscalibration(
    lists: Tensor,
    k: int,
    histories: Jagged,
    categories: Jagged,
    num_categories: int,
) -> Tensor:
    """Divergence of a list's mix of categories from the history's, in nats, [U].

    Steck, RecSys 2018: KL(p || q') = sum of p log(p / q') over the categories of the history,
    with q' = (1 - SMOOTHING) q + SMOOTHING p, p of the history and q of the first k items.
    0 is a list with the user's mix; a list without any of the user's categories has
    -log(SMOOTHING), 4.6, and so has an empty one. NaN where the history has no
    category, because there is nothing to be calibrated to.

    Args:
        lists: Item rows best first, [U, K], -1 where short.
    """
    if len(lists) != histories.batch_size:
        raise ValueError(
            f"{len(lists)} lists but {histories.batch_size} histories; both must cover the same "
            "users in the same order"
        )
    step = max(1, MAX_CELLS // num_categories)
    parts = []
    for begin in range(0, len(lists), step):
        rows = lists[begin : begin + step]
        ends = histories.offsets[begin : begin + len(rows) + 1]
        past = Jagged(histories.values[ends[0] : ends[-1]], ends - ends[0])
        p = category_shares(past, categories, num_categories)  # [b, C]
        q = category_shares(listed_items(rows, k), categories, num_categories)
        mixed = (1 - SMOOTHING) * q + SMOOTHING * p
        divergence = torch.where(p > 0, p * (p / mixed).log(), 0.0).sum(1)
        parts.append(divergence.masked_fill(p.sum(1) == 0, torch.nan))
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)


def _checked(probabilities: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Both as [P] float64."""
    if probabilities.ndim != 1 or probabilities.shape != labels.shape or not len(labels):
        raise ValueError(
            f"probabilities and labels must both be [P] with P >= 1, got "
            f"{tuple(probabilities.shape)} and {tuple(labels.shape)}"
        )
    outside = ~((probabilities >= 0) & (probabilities <= 1))
    if outside.any():
        place = int(outside.nonzero()[0])
        raise ValueError(
            f"probability {float(probabilities[place])} at {place} is not in [0, 1]; "
            "apply the sigmoid to logits first"
        )
    wrong = (labels != 0) & (labels != 1)
    if wrong.any():
        place = int(wrong.nonzero()[0])
        raise ValueError(f"label {float(labels[place])} at {place} must be 0 or 1")
    return probabilities.double(), labels.double()


def area_under_curve(scores: Tensor, labels: Tensor) -> float:
    """Chance that a random positive is scored above a random negative, equals counting a half.

    Args:
        scores: Higher is surer, [P].
        labels: 0 or 1, [P].

    Returns:
        0.5 is chance, 1 is perfect; NaN where there is one class only.
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
