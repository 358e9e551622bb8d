"""Batches brought to one shape, so that a training step can be a CUDA graph.

A batch is filled up with examples that count for nothing: for the sequence model windows without
labels, for the two-tower queries without one. They hold all items in turn, because the gradients of
equal rows are added one after the other. What fits nearly every batch is known from the lengths of
the examples; the rest take an ordinary step.

Axes: B examples of a batch, D examples that fill it up, M events, X pairs of a position and an item
up to there, L most events that an example may read.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from recsys.data.batch import Jagged, JaggedBatch
from recsys.data.dataset import Rows, Sequences, concatenated_ranges
from recsys.data.windows import Windows
from recsys.models.sequence.labelled import LabelledEvents

DEVIATIONS = 4.0
"""Standard deviations of a batch's sum that fit beside its mean."""


def room_for(sizes: Rows, batch_size: int) -> int:
    """Say what sum of the sizes of so many examples nearly no batch exceeds."""
    spread = DEVIATIONS * float(sizes.std()) * math.sqrt(batch_size)
    most = int(np.sort(sizes)[-batch_size:].sum())
    return min(most, math.ceil(batch_size * float(sizes.mean()) + spread))


def filling_lengths(rest: int, count: int, longest: int) -> Rows:
    """Share so many events out to examples that fill a batch up, [D]."""
    return np.clip(rest - np.arange(count) * longest, 0, longest)


class FixedWindows(NamedTuple):
    """Windows of a sequence model, brought to one shape."""

    windows: Windows
    sequences: Sequences
    num_item_rows: int
    batch_size: int
    num_events: int
    """M, less than one event for each of D windows that fill it up."""
    num_pairs: int
    """X."""
    num_filling: int
    max_length: int
    reads_times: bool

    @classmethod
    def of(
        cls,
        windows: Windows,
        sequences: Sequences,
        num_item_rows: int,
        batch_size: int,
        max_length: int,
        *,
        reads_times: bool,
    ) -> FixedWindows:
        """Choose the shape by the windows' lengths."""
        lengths = windows.ends - windows.starts
        positions = lengths - 1
        num_events = room_for(lengths, batch_size)
        fewest = int(np.sort(lengths)[:batch_size].sum())
        return cls(
            windows=windows,
            sequences=sequences,
            num_item_rows=num_item_rows,
            batch_size=batch_size,
            num_events=num_events,
            num_pairs=room_for(positions * (positions + 1) // 2, batch_size),
            num_filling=1 + max(0, num_events - fewest) // max_length,
            max_length=max_length,
            reads_times=reads_times and sequences.times is not None,
        )

    @property
    def num_windows(self) -> int:
        return self.batch_size + self.num_filling

    @property
    def num_positions(self) -> int:
        return self.num_events - self.batch_size

    def sizes(self) -> list[int]:
        """Count the numbers of each part of a batch."""
        events = self.num_events + self.num_filling
        parts = [events, events, self.num_windows + 1, self.num_pairs, self.num_positions + 1]
        return [*parts, events] if self.reads_times else parts

    def inputs(self, chosen: Rows) -> Tensor | None:
        """Lay windows out as integers on the host; None where they do not fit."""
        starts, ends = self.windows.starts[chosen], self.windows.ends[chosen]
        lengths = ends - starts
        positions = lengths - 1  # [B]
        seen = concatenated_ranges(np.zeros_like(positions), positions) + 1  # by position
        num_events, num_pairs = int(lengths.sum()), int(seen.sum())
        fits = num_events <= self.num_events and num_pairs <= self.num_pairs
        if not fits or len(chosen) != self.batch_size:
            return None
        out = np.zeros(sum(self.sizes()), np.int64)
        parts = np.split(out, np.cumsum(self.sizes())[:-1])
        items, counted, offsets, pairs, pair_offsets, *times = parts
        items[:] = np.arange(len(items)) % self.num_item_rows
        counted[:num_events] = 1
        places = concatenated_ranges(starts, ends)
        rows = np.asarray(self.sequences.item_rows[places])
        items[:num_events] = np.where((rows >= 0) & (rows < self.num_item_rows), rows, 0)
        filling = filling_lengths(self.num_events - num_events, self.num_filling, self.max_length)
        offsets[1:] = np.cumsum(np.concatenate([lengths, 1 + filling]))
        begins = np.repeat(offsets[: len(starts)], positions)
        pairs[:num_pairs] = items[concatenated_ranges(begins, begins + seen)]
        pair_offsets[1:] = num_pairs
        pair_offsets[1 : len(seen) + 1] = np.cumsum(seen)
        # The label of the last position counts for nothing, so whatever else fills it up does.
        pair_offsets[-1] = self.num_pairs
        if times:
            known = np.asarray(self.sequences.times)[places]
            times[0][:num_events], times[0][num_events:] = known, known[0]
        return torch.from_numpy(out)

    def labelled(self, inputs: Tensor) -> LabelledEvents:
        """Read what ``inputs`` laid out, on any device."""
        items, counted, offsets, pairs, pair_offsets, *times = torch.split(inputs, self.sizes())
        return LabelledEvents(
            events=Jagged(items, offsets),
            times=times[0] if times else None,
            counted=counted,
            num_positions=self.num_positions,
            num_seen=self.num_pairs,
            seen=Jagged(pairs, pair_offsets),
        )


class FixedQueries(NamedTuple):
    """Labels of a two-tower and what was known before them, brought to one shape."""

    batch_size: int
    num_item_rows: int
    num_events: int
    num_filling: int
    max_history: int
    features: tuple[str, ...]
    """Of the query, one value each."""

    @classmethod
    def of(
        cls,
        sequences: Sequences,
        num_item_rows: int,
        positions: Rows,
        batch_size: int,
        max_history: int,
        features: tuple[str, ...],
    ) -> FixedQueries:
        """Choose the shape by the lengths of the histories before positions [P]."""
        starts = sequences.offsets[sequences.users_of(positions)]
        lengths = np.minimum(positions - starts, max_history)
        num_events = room_for(lengths, batch_size)
        fewest = int(np.sort(lengths)[:batch_size].sum())
        num_filling = 1 + max(0, num_events - fewest) // max_history
        return cls(batch_size, num_item_rows, num_events, num_filling, max_history, features)

    @property
    def num_queries(self) -> int:
        return self.batch_size + self.num_filling

    def sizes(self) -> list[int]:
        """Count the numbers of each part of a batch."""
        by_query = [self.num_queries] * len(self.features)
        return [self.num_events, self.num_queries + 1, self.batch_size, *by_query]

    def inputs(self, queries: JaggedBatch, labels: Tensor) -> Tensor | None:
        """Lay queries and their labels out as integers on the host; None where they do not fit."""
        history, size = queries["history"], len(labels)
        rest = self.num_events - len(history.values)
        if rest < 0 or size != self.batch_size:
            return None
        filling = torch.from_numpy(filling_lengths(rest, self.num_filling, self.max_history))
        out = torch.zeros(sum(self.sizes()), dtype=torch.int64)
        values, offsets, rows, *features = torch.split(out, self.sizes())
        values.copy_(torch.arange(len(values)) % self.num_item_rows)
        values[: len(history.values)] = history.values
        offsets[: size + 1] = history.offsets
        offsets[size + 1 :] = history.offsets[-1] + filling.cumsum(0)
        rows.copy_(labels)
        for name, part in zip(self.features, features, strict=True):
            part[:size] = queries[name].values
        return out

    def read(self, inputs: Tensor) -> tuple[JaggedBatch, Tensor]:
        """Read what ``inputs`` laid out, on any device: more queries than labels."""
        values, offsets, labels, *features = torch.split(inputs, self.sizes())
        batch = {"history": Jagged(values, offsets)}
        for name, part in zip(self.features, features, strict=True):
            batch[name] = Jagged.one_each(part)
        return JaggedBatch(batch), labels
