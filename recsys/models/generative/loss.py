"""Loss of a generative model: positions and codes.

Axes: P positions, M events of a batch, L levels, K codes of a level.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from recsys.data.batch import Jagged, JaggedBatch, latest

FIRST_WEIGHT = 0.1
"""Weight of a sequence's first event, which no event precedes."""
NUM_PARTS = 8
"""Parts of a batch that are padded each to its own longest sequence on a CPU."""


class Positions(NamedTuple):
    """Events that a training step predicts, each from those before it."""

    sequences: Tensor
    """[P], the sequence of each."""
    places: Tensor
    """[P], events before it, which it reads."""
    labels: Tensor
    """[P], item rows; 0 is no item, of weight 0."""
    weights: Tensor
    """[P], how much each counts."""

    @classmethod
    def of(cls, events: Jagged) -> Positions:
        segments = events.segments()
        places = torch.arange(len(segments), device=segments.device) - events.offsets[segments]
        weights = torch.where(places == 0, FIRST_WEIGHT, 1.0) * (events.values > 0)
        return cls(segments, places, events.values, weights)


class TaughtCodes(NamedTuple):
    """Targets of positions by a teacher."""

    forced: Tensor
    """Codes after which each position decodes, [P, L]; in range also where it weighs nothing."""
    targets: tuple[Tensor, ...]
    """Probability of each level's codes after those before, [P, K]."""


Teacher = Callable[[JaggedBatch, Positions], TaughtCodes]
"""Gives the events that positions read, in their order."""


def shortest_first(batch: JaggedBatch, limit: int) -> JaggedBatch:
    """Cut sequences to their latest events and put them in the order of their lengths.

    So neighbours pad each other little; on a CPU, where padding is computed like anything else. A
    GPU would wait to learn the lengths.
    """
    cut = {name: latest(events, limit) for name, events in batch.features.items()}
    first = next(iter(cut.values()))
    if first.values.device.type == "cpu":
        order = first.lengths().argsort(stable=True)
        cut = {name: events.take(order) for name, events in cut.items()}
    return JaggedBatch(cut)


def cut_by_length(history: Jagged, positions: Positions) -> Iterator[tuple[Jagged, Positions]]:
    """Cut sequences into parts of similar lengths, positions in their order; one part on a GPU."""
    num_parts = NUM_PARTS if history.values.device.type == "cpu" else 1
    size = max(1, -(-history.batch_size // num_parts))
    if history.batch_size <= size:
        yield history, positions
        return
    for begin in range(0, history.batch_size, size):
        end = min(begin + size, history.batch_size)
        first, last = (int(offset) for offset in history.offsets[[begin, end]])
        part = Jagged(history.values[first:last], history.offsets[begin : end + 1] - first)
        low, high = torch.searchsorted(positions.sequences, torch.tensor([begin, end])).tolist()
        one = Positions(*(values[low:high] for values in positions))
        yield part, one._replace(sequences=one.sequences - begin)


def code_loss(
    logits: Tensor,
    codes: Tensor,
    following: Tensor,
    weights: Tensor,
    label_smoothing: float,
    target: Tensor | None = None,
) -> Tensor:
    """Cross-entropy of the codes of one level, summed with weights.

    Args:
        logits: [P, K].
        codes: [P].
        following: Codes that lead to an item, which share the probability, [P, K] bool.
        weights: [P].
        target: How likely each code is, [P, K]; None is ``codes`` alone.
    """
    logits = logits.float()
    # A position of weight 0 may have no other code in its softmax, and must not be NaN.
    following = following.scatter(1, codes[:, None], True)
    normalizer = torch.logsumexp(logits.masked_fill(~following, -torch.inf), dim=1)  # [P]
    own = logits.gather(1, codes[:, None])[:, 0] if target is None else (target * logits).sum(1)
    even = (logits * following).sum(1) / following.sum(1)
    expected = (1 - label_smoothing) * own + label_smoothing * even
    return (weights * (normalizer - expected)).sum()
