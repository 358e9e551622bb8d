"""Training sequences for models that learn at every position at once.

A user's visible events are cut into windows of at most ``max_length`` + 1 events, from the latest
backwards; neighbours share one event, the last of the earlier being the first of the later. So
every event but a user's first is the label of exactly one position.

Axes: U users, W windows, B windows of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
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
    """Return the label of each position, the event after it, [M], and whether it exists, [M].

    The last event of each example has none; its label is 0.
    """
    labels = torch.cat([history.values[1:], history.values.new_zeros(1)])[: len(history.values)]
    has_label = torch.ones_like(labels, dtype=torch.bool)
    ends = history.offsets[1:]
    # Ends of empty examples are the end before them, or -1: the place before the first event.
    has_label = torch.cat([has_label.new_zeros(1), has_label]).index_fill(0, ends, False)[1:]
    return labels.masked_fill(~has_label, 0), has_label


@dataclass
class BatchOrder:
    """Cuts a fresh permutation of the examples into batches, epoch after epoch.

    The examples left over at the end of an epoch (fewer than a batch) are dropped; the next
    epoch's permutation brings them back. A data set smaller than a batch is one whole batch.
    """

    num_samples: int
    batch_size: int
    seed: int
    _epoch: int = field(default=-1, init=False, repr=False)
    _permutation: NDArray[np.int64] = field(
        default_factory=lambda: np.empty(0, np.int64), init=False, repr=False
    )

    def __post_init__(self) -> None:
        if self.num_samples < 1:
            raise ValueError(
                f"num_samples must be >= 1, got {self.num_samples}: there is nothing to train on; "
                "look at the features report for what filtering removed"
            )
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be >= 1, got {self.batch_size}")

    @property
    def steps_per_epoch(self) -> int:
        return max(1, self.num_samples // self.batch_size)

    def indices(self, step: int) -> NDArray[np.int64]:
        """Return the examples of one step, [min(batch_size, num_samples)]."""
        epoch, place = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            rng = np.random.default_rng([self.seed, epoch])
            self._permutation = rng.permutation(self.num_samples)
            self._epoch = epoch
        return self._permutation[place * self.batch_size : (place + 1) * self.batch_size]
