"""Batches brought to one shape, so that a training step can be a CUDA graph.

A batch is filled up with examples that count for nothing: for the sequence model windows without
labels, for the two-tower queries without one. They hold all items in turn, because the gradients of
equal rows are added one after the other. What fits nearly every batch is known from the lengths of
the examples; the rest take an ordinary step.

Axes: B examples of a batch, D examples that fill it up, M events, R distinct items, X pairs of a
position and an item up to there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recsys.data.batch import Jagged, JaggedBatch
from recsys.data.dataset import Rows, Sequences, concatenated_ranges
from recsys.data.windows import Windows
from recsys.models.sequence.model import LabelledEvents

HISTORY_TYPES = "history.types"
"""Feature with a value for each event of the history."""
DEVIATIONS = 4.0
"""Standard deviations of a batch's sum that fit above its mean."""
MEASURED_BATCHES = 16
"""Batches whose distinct items are counted."""


def room_for(sizes: Rows, batch_size: int) -> int:
    """Return a bound that nearly no batch's sum of sizes exceeds."""
    spread = DEVIATIONS * float(sizes.std()) * math.sqrt(batch_size)
    most = int(np.sort(sizes)[-batch_size:].sum())
    return min(most, math.ceil(batch_size * float(sizes.mean()) + spread))


def filling_lengths(rest: int, count: int, longest: int) -> Rows:
    """Distribute events to examples that fill a batch up, [D]."""
    return np.clip(rest - np.arange(count) * longest, 0, longest)


def known_rows(sequences: Sequences, places: Rows, num_item_rows: int) -> Rows:
    """Read the items of events; those without a row are the unknown item."""
    rows = np.asarray(sequences.item_rows[places])
    return np.where((rows >= 0) & (rows < num_item_rows), rows, 0)


class SampledRows(NamedTuple):
    """The items that a step reads, or ranks among its labels and uniform draws: always as many."""

    num_item_rows: int
    num_draws: int
    num_rows: int
    """R, at most all."""

    @classmethod
    def of(
        cls,
        windows: Windows,
        sequences: Sequences,
        num_item_rows: int,
        batch_size: int,
        num_draws: int,
    ) -> SampledRows:
        """Look at some batches to learn how many items nearly no batch exceeds."""
        rng, counts = np.random.default_rng(0), list[int]()
        whole = cls(num_item_rows, num_draws, num_item_rows)
        for _ in range(MEASURED_BATCHES):
            chosen = rng.choice(len(windows), batch_size, replace=False)
            places = concatenated_ranges(windows.starts[chosen], windows.ends[chosen])
            items = known_rows(sequences, places, num_item_rows)
            counts.append(int(np.count_nonzero(whole.kinds(items, items, rng))))
        room = math.ceil(float(np.mean(counts)) + DEVIATIONS * float(np.std(counts)))
        return whole._replace(num_rows=min(num_item_rows, max(room, *counts)))

    def kinds(self, items: Rows, labels: Rows, rng: np.random.Generator) -> NDArray[np.uint8]:
        """Mark every item as ranked, 2, only read, 1, or neither, 0."""
        kinds = np.zeros(self.num_item_rows, np.uint8)
        kinds[items] = 1
        kinds[labels] = 2
        kinds[rng.integers(1, self.num_item_rows, self.num_draws)] = 2
        kinds[0] = min(kinds[0], 1)
        return kinds

    def inputs(
        self, items: Rows, labels: Rows, rng: np.random.Generator
    ) -> tuple[Rows, Rows] | None:
        """Choose the rows, ascending, [R], and say which are ranked; None where more are read."""
        kinds = self.kinds(items, labels, rng)
        used = np.count_nonzero(kinds)
        if used > self.num_rows:
            return None
        # Rows to fill up with: among the first R so many are free.
        free = np.flatnonzero(kinds[: self.num_rows] == 0)[: self.num_rows - used]
        kinds[free] = 1
        rows = np.flatnonzero(kinds)
        return rows, (kinds[rows] == 2).astype(np.int64)


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
    columns: Mapping[str, Rows]
    """What else is read of the events: ``times`` and ``types``, if the model reads them."""
    sampled: SampledRows | None = None
    """None where every item is ranked."""

    @classmethod
    def of(
        cls,
        windows: Windows,
        sequences: Sequences,
        num_item_rows: int,
        batch_size: int,
        max_length: int,
        *,
        columns: Mapping[str, Rows],
        num_draws: int | None = None,
    ) -> FixedWindows:
        """Choose the shape by the windows' lengths.

        Args:
            num_draws: Uniform negatives of a step; None where every item is ranked.
        """
        sampled = None
        if num_draws is not None:
            sampled = SampledRows.of(windows, sequences, num_item_rows, batch_size, num_draws)
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
            columns=columns,
            sampled=sampled,
        )

    @property
    def num_positions(self) -> int:
        return self.num_events - self.batch_size

    def sizes(self) -> list[int]:
        events = self.num_events + self.num_filling
        num_rows = 0 if self.sampled is None else self.sampled.num_rows
        windows = self.batch_size + self.num_filling
        parts = [events, events, windows + 1, self.num_pairs, self.num_positions + 1]
        return [*parts, num_rows, num_rows, *[events] * len(self.columns)]

    def inputs(self, chosen: Rows, rng: np.random.Generator) -> Tensor | None:
        """Write windows as integers on the host; None if they do not fit."""
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
        items, counted, offsets, pairs, pair_offsets, rows, ranked, *columns = parts
        places = concatenated_ranges(starts, ends)
        read = known_rows(self.sequences, places, self.num_item_rows)
        negative = self.sequences.negative
        is_counted = np.ones(num_events, np.bool_) if negative is None else ~negative[places]
        if self.sampled is None:
            filling_items = np.arange(min(self.num_item_rows, len(items)))
        else:
            is_label = is_counted.copy()
            is_label[np.cumsum(lengths) - lengths] = False  # a window's first event is none
            chosen_rows = self.sampled.inputs(read, read[is_label], rng)
            if chosen_rows is None:
                return None
            rows[:], ranked[:] = chosen_rows
            filling_items = rows
        items[:] = np.resize(filling_items, len(items))
        items[:num_events], counted[:num_events] = read, is_counted
        filling = filling_lengths(self.num_events - num_events, self.num_filling, self.max_length)
        offsets[1:] = np.cumsum(np.concatenate([lengths, 1 + filling]))
        begins = np.repeat(offsets[: len(starts)], positions)
        pairs[:num_pairs] = items[concatenated_ranges(begins, begins + seen)]
        pair_offsets[1:] = num_pairs
        pair_offsets[1 : len(seen) + 1] = np.cumsum(seen)
        # The label of the last position counts for nothing, so whatever else fills it up does.
        pair_offsets[-1] = self.num_pairs
        for part, values in zip(columns, self.columns.values(), strict=True):
            known = np.asarray(values[places])
            part[:num_events], part[num_events:] = known, known[0]
        return torch.from_numpy(out)

    def labelled(self, inputs: Tensor) -> LabelledEvents:
        """Read what ``inputs`` laid out, on any device."""
        parts = torch.split(inputs, self.sizes())
        items, counted, offsets, pairs, pair_offsets, rows, ranked, *columns = parts
        read = dict(zip(self.columns, columns, strict=True))
        return LabelledEvents(
            events=Jagged(items, offsets),
            times=read.get("times"),
            types=read.get("types"),
            counted=counted,
            num_positions=self.num_positions,
            num_seen=self.num_pairs,
            seen=Jagged(pairs, pair_offsets),
            rows=None if self.sampled is None else rows,
            ranked=None if self.sampled is None else ranked,
        )


class FixedQueries(NamedTuple):
    """Labels of a two-tower and the queries before them, in one shape."""

    batch_size: int
    num_item_rows: int
    num_events: int
    num_filling: int
    max_history: int
    features: tuple[str, ...]
    """Features of the query, one value each, and ``HISTORY_TYPES``, if types are read."""

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
        others = [
            self.num_events if name == HISTORY_TYPES else self.num_queries for name in self.features
        ]
        return [self.num_events, self.num_queries + 1, self.batch_size, *others]

    def inputs(self, queries: JaggedBatch, labels: Tensor) -> Tensor | None:
        """Write queries and their labels as integers on the host; None if they do not fit."""
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
            part[: len(queries[name].values)] = queries[name].values
        return out

    def read(self, inputs: Tensor) -> tuple[JaggedBatch, Tensor]:
        """Read what ``inputs`` laid out, on any device: more queries than labels."""
        values, offsets, labels, *features = torch.split(inputs, self.sizes())
        batch = {"history": Jagged(values, offsets)}
        for name, part in zip(self.features, features, strict=True):
            by_event = name == HISTORY_TYPES
            batch[name] = Jagged(part, offsets) if by_event else Jagged.one_each(part)
        return JaggedBatch(batch), labels
