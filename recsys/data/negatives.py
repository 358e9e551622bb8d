"""Negatives for a sampled softmax: which items stand against a label, and how much each counts.

The labels of a batch serve as negatives for each other (in-batch), which favours frequent items;
uniform draws from the catalogue reach the rest (mixed negative sampling, Yang et al., WWW 2020).
Each candidate carries the log of how often it is expected among them; taking that off its score
makes the sampled softmax an unbiased estimate of the full one (logQ correction, Yi et al.,
RecSys 2019).

Axes: B labels of a batch, C candidates, N item rows (row 0 is padding and is no candidate).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class SampledItems(NamedTuple):
    """Items every label of the batch is ranked against."""

    rows: Tensor
    """[C] int64; the in-batch ones first, in the order of the labels."""
    log_expected: Tensor
    """[C] log of the number of times the item is expected among the candidates."""
    num_uniform: int
    """Last candidates that are an even sample of the catalogue."""


def every_item(num_item_rows: int, device: torch.device | str = "cpu") -> SampledItems:
    """Take the whole catalogue once: the sampled softmax becomes the full one."""
    rows = torch.arange(1, num_item_rows, device=device)
    return SampledItems(rows, torch.zeros(len(rows), device=device), len(rows))


def mixed_candidates(
    labels: Tensor,
    num_uniform: int,
    item_counts: Tensor,
    generator: torch.Generator | None = None,
) -> SampledItems:
    """Join the batch's labels and uniform draws, with replacement, from the catalogue.

    Draws come from torch's global generator of the labels' device, so a seeded run repeats them.

    Args:
        labels: Label item rows, [B], drawn in proportion to ``item_counts``.
        item_counts: Training events of each item, [N]; row 0 is ignored.
    """
    num_items = len(item_counts) - 1
    shape = (num_uniform,)
    uniform = torch.randint(1, num_items + 1, shape, device=labels.device, generator=generator)
    rows = torch.cat([labels, uniform])
    counts = item_counts.float()
    # A label outside the counted events still occurred once.
    in_batch = len(labels) * counts[rows].clamp(min=1) / counts[1:].sum().clamp(min=1)  # [C]
    return SampledItems(rows, torch.log(in_batch + num_uniform / num_items), num_uniform)


def sampled_softmax_loss(
    label_scores: Tensor,
    candidate_scores: Tensor,
    candidates: SampledItems,
    labels: Tensor,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Cross-entropy of each label against the candidates, the mean over the batch.

    Candidates that equal the label (accidental hits, its own in-batch column included) are left
    out: the label enters the softmax exactly once, with its plain score.

    Args:
        label_scores: Score of each query's label, [B].
        candidate_scores: Score of each query with each candidate, [B, C].
        labels: Label item rows, [B].
    """
    hits = labels[:, None] == candidates.rows  # [B, C]
    corrected = candidate_scores - candidates.log_expected
    # In place, because a copy of [B, C] costs as much as the softmax.
    corrected = corrected.masked_fill_(hits, -torch.inf)
    normalizer = torch.logsumexp(torch.cat([label_scores[:, None], corrected], dim=1), dim=1)
    target = label_scores
    if label_smoothing > 0:
        even = candidate_scores[:, -candidates.num_uniform :].mean(dim=1)  # [B]
        target = (1 - label_smoothing) * label_scores + label_smoothing * even
    return (normalizer - target).mean()
