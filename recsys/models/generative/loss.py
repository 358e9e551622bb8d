"""Loss of a generative model: positions, codes and items.

Axes: P positions, M events of a batch, L levels, K codes of a level, C candidates, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from recsys.data.batch import Jagged, JaggedBatch, latest
from recsys.layers.attention.softmax import SequenceLayout
from recsys.layers.chunked_softmax import SoftmaxCandidates, softmax_loss
from recsys.models.generative.config import GenerativeConfig
from recsys.models.item_tower import NORM_FLOOR
from recsys.models.sequence.model import ScoredItems

FIRST_WEIGHT = 0.1
"""Weight of a sequence's first event, which no event precedes."""
DENSE_LABEL_SMOOTHING = 0.2
"""Share of the dense head's target that is spread over all candidates."""
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
    def of(cls, events: Jagged, config: GenerativeConfig) -> Positions:
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


class DenseRanking:
    """Positions' labels ranked by a dot product against items, as a sequence model has it."""

    def __init__(
        self,
        config: GenerativeConfig,
        ranked: ScoredItems,
        items: Tensor,
        history: Jagged,
        positions: Positions,
    ) -> None:
        """Take the items ranked, [C, D], and what each position asks for and has seen."""
        self.config, self.ranked, self.positions = config, ranked, positions
        self.items = functional.normalize(items.float(), dim=1, eps=NORM_FLOOR)
        labels = positions.labels.clamp(min=ranked.rows[0])
        self.columns = torch.searchsorted(ranked.rows, labels)  # [P]
        self.excluded = None
        if config.leave_out_history:
            self.excluded = self._seen(history)

    def _seen(self, history: Jagged) -> Jagged:
        """List the columns of the events that each position has read, P rows of one length.

        What is not ranked needs no leaving out, so its place takes the label's column.
        """
        length = self.config.max_length
        layout = SequenceLayout.of(history.offsets, history.segments(), length + 1, None)
        rows = layout.padded(history.values)[self.positions.sequences, :length]  # [P, T]
        column = torch.searchsorted(self.ranked.rows, rows).clamp(max=len(self.ranked.rows) - 1)
        place = torch.arange(rows.shape[1], device=rows.device)
        absent = (self.ranked.rows[column] != rows) | (place >= self.positions.places[:, None])
        column = torch.where(absent, self.columns[:, None], column)
        size = rows.shape[1]
        offsets = torch.arange(0, column.numel() + 1, size, device=rows.device)
        return Jagged(column.flatten(), offsets)

    def loss(self, queries: Tensor) -> Tensor:
        """Softmax loss of unit vectors, [P, D]."""
        return softmax_loss(
            queries / self.config.temperature,
            SoftmaxCandidates(self.items, self.ranked.log_inclusion),
            self.columns,
            self.positions.weights,
            label_smoothing=DENSE_LABEL_SMOOTHING,
            excluded=self.excluded,
        )
