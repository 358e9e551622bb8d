"""Training sequences for models that learn at every position at once.

A user's visible events are cut into windows of at most ``max_length`` + 1 events, from the latest
backwards; neighbours share one event, the last of the earlier being the first of the later. So
every event but a user's first is the label of exactly one position.

Axes: U users, W windows, B windows of a batch.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from recsys.data.batch import Jagged, JaggedBatch, offsets_of
from recsys.data.dataset import Rows, Sequences, concatenated_ranges


class Windows(NamedTuple):
    """Ranges of positions, each within one user's events; none shorter than two."""

    starts: Rows
    """[W]"""
    ends: Rows
    """[W], exclusive."""

    def __len__(self) -> int:
        return len(self.starts)

    def batch(self, sequences: Sequences, chosen: Rows) -> JaggedBatch:
        """Read some of the windows, as ``window_batch`` does."""
        return window_batch(sequences, self.starts[chosen], self.ends[chosen])


def training_windows(
    sequences: Sequences, split: Literal["train", "validation", "all"], max_length: int
) -> Windows:
    """Cut what a model fit on ``split`` may see, users in order, each user's latest window first.

    Users with fewer than two visible events have no label and no window.
    """
    if max_length < 1:
        raise ValueError(f"max_length must be >= 1, got {max_length}")
    first, end = np.asarray(sequences.offsets[:-1]), np.asarray(sequences.visible_end(split))
    counts = -(-np.maximum(end - first - 1, 0) // max_length)  # [U]
    place = concatenated_ranges(np.zeros_like(counts), counts)  # [W], 0 is the latest
    ends = np.repeat(end, counts) - place * max_length
    starts = np.maximum(np.repeat(first, counts), ends - max_length - 1)
    return Windows(starts, ends)


def window_batch(sequences: Sequences, starts: Rows, ends: Rows) -> JaggedBatch:
    """Read windows as a batch, [B]: ``history``, and ``history.times`` where there are times."""
    offsets = offsets_of(torch.from_numpy(ends - starts))
    places = concatenated_ranges(starts, ends)

    def feature(values: Rows) -> Jagged:
        return Jagged(torch.from_numpy(np.asarray(values[places])), offsets)

    features = {"history": feature(sequences.item_rows)}
    if sequences.times is not None:
        features["history.times"] = feature(sequences.times)
    return JaggedBatch(features)


def next_events(history: Jagged) -> tuple[Tensor, Tensor]:
    """Name the label of each position, the event after it, [M], and whether there is one, [M].

    The last event of each example has none; its label is 0.
    """
    labels = torch.cat([history.values[1:], history.values.new_zeros(1)])[: len(history.values)]
    has_label = torch.ones_like(labels, dtype=torch.bool)
    ends = history.offsets[1:]
    # Ends of empty examples are the end before them, or -1: the place before the first event.
    has_label = torch.cat([has_label.new_zeros(1), has_label]).index_fill(0, ends, False)[1:]
    return labels.masked_fill(~has_label, 0), has_label
