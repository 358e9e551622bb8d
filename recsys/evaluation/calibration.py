"""Calibration of probabilities: a click predicted at 20% should happen one time in five.

Axes: P predictions.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


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
    probabilities, labels = probabilities.double(), labels.double()
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


def area_under_curve(scores: Tensor, labels: Tensor) -> float:
    """Chance that a random positive is scored above a random negative, equals counting a half.

    Args:
        scores: Higher is surer, [P].
        labels: 0 or 1, [P].

    Returns:
        0.5 is chance, 1 is perfect; NaN where there is one class only.
    """
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
