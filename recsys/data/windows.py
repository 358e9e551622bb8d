"""Training sequences for models that learn at every position at once.

A user's visible events are cut into windows of at most ``max_length`` + 1 events, from the latest
backwards; neighbours share one event, the last of the earlier being the first of the later. So
every event but a user's first is the label of exactly one position.

Axes: U users, W windows, B windows of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recsys.data.batch import Jagged, JaggedBatch, cut_offsets
from recsys.data.dataset import FitSplit, Rows, Sequences, Split, concatenated_ranges


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
    first, end = np.asarray(sequences.offsets[:-1]), np.asarray(sequences.visible_end(split))
    counts = -(-np.maximum(end - first - 1, 0) // max_length)  # [U]
    place = concatenated_ranges(np.zeros_like(counts), counts)  # [W], 0 is the latest
    ends = np.repeat(end, counts) - place * max_length
    starts = np.maximum(np.repeat(first, counts), ends - max_length - 1)
    return Windows(starts, ends)


def num_windows(sequences: Sequences, split: FitSplit, max_length: int) -> int:
    """Count the examples of one pass."""
    return len(training_windows(sequences, split, max_length))


def window_batch(sequences: Sequences, starts: Rows, ends: Rows) -> JaggedBatch:
    """Read windows as a batch, [B]: ``history``, and what the data has of its events.

    ``history.counted``, if the data has negative events, is 0 for those, which are no labels.
    """
    offsets = cut_offsets(torch.from_numpy(ends - starts))
    places = concatenated_ranges(starts, ends)
    events = sequences.events_at(places, offsets)
    if sequences.negative is not None:
        counted = torch.from_numpy(~sequences.negative[places]).long()
        events["history.counted"] = Jagged(counted, offsets)
    return JaggedBatch(events)


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


Mask = NDArray[np.bool_]


def domain_positions(sequences: Sequences, split: Split, own_items: Mask) -> Rows:
    """List the labels of a split that are items of a domain, ascending, [P].

    Args:
        own_items: Whether each item row is of the domain, [N].
    """
    positions = sequences.label_positions(split)
    kept: Rows = positions[own_items[np.asarray(sequences.item_rows[positions])]]
    return kept


def domain_windows(sequences: Sequences, windows: Windows, own_items: Mask) -> Windows:
    """Keep the windows with a label of a domain; a window's first event is no label."""
    own = own_items[np.asarray(sequences.item_rows)]  # [E]
    if sequences.negative is not None:
        own = own & ~sequences.negative
    before = np.concatenate([[0], np.cumsum(own)])
    counts = before[windows.ends] - before[windows.starts + 1]  # [W]
    return Windows(windows.starts[counts > 0], windows.ends[counts > 0])


def domain_window_batch(
    sequences: Sequences, starts: Rows, ends: Rows, own_items: Mask
) -> JaggedBatch:
    """Read windows as ``window_batch`` does, and ``history.counted``: 1 for the domain's events."""
    batch = window_batch(sequences, starts, ends)
    history = batch["history"]
    counted = torch.from_numpy(own_items)[history.values].long()
    if "history.counted" in batch:
        counted *= batch["history.counted"].values
    features: Mapping[str, Jagged] = {
        **batch.features,
        "history.counted": history._replace(values=counted),
    }
    return JaggedBatch(features)


class SampledItems(NamedTuple):
    """Items every label of the batch is ranked against.

    The labels of a batch serve each other, which favours frequent items; uniform draws reach the
    rest (mixed negative sampling, Yang et al., WWW 2020). Subtracting ``log_expected`` from a score
    makes the sampled softmax an unbiased estimate of the full one (logQ correction, Yi et al.,
    RecSys 2019).
    """

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
    labels: Tensor, num_uniform: int, item_counts: Tensor, generator: torch.Generator | None = None
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
