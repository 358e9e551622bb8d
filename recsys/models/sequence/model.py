"""Sequence model: causal blocks over a user's events predict the next item at every position.

Blocks are SASRec's attention (arXiv:1808.09781) or HSTU (arXiv:2402.17152), with learned biases by
distance and, where events have times, by elapsed time and by date. Items go through the item tower
(id, content, categories), both as events and as candidates, so an item that training never met
is placed by its content. Scores are cosines; training divides them by a temperature.

Training: every position of a sequence at once, softmax over the whole catalogue or over shared
samples (the batch's labels and uniform draws, each item once, corrected for how likely it is among
them), scored in blocks (``layers/chunked_softmax.py``).

Axes: B sequences, M events of a batch, P positions, R distinct items, N item rows, C candidates,
D width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from recsys.data.batch import WHOLE, Jagged, JaggedBatch, StepShare, latest, moved
from recsys.data.windows import next_events
from recsys.layers.chunked_softmax import SoftmaxCandidates, softmax_loss
from recsys.layers.embedding.tables import Backend, looked_up
from recsys.models.item_tower import (
    FeatureSizes,
    ItemCatalogue,
    ItemTower,
    RetrievalModel,
    read_settings,
    types_table,
)
from recsys.models.item_weights.model import ItemNeighbours
from recsys.models.sequence.config import SequenceConfig
from recsys.models.sequence.encoder import Encoders, unit_shares


class LabelledEvents(NamedTuple):
    """Sequences cut to what a model reads; every event but a sequence's first is a label."""

    events: Jagged
    """Item rows of the catalogue, M ragged."""
    times: Tensor | None
    """[M] unix seconds, where they are read."""
    types: Tensor | None
    """[M] rows of the events' types, where they are read."""
    counted: Tensor | None
    """[M] 0 for events that are no labels; None where all are."""
    num_positions: int
    """P."""
    num_seen: int
    """X."""
    seen: Jagged | None = None
    """Each position's item and those before it, P ragged rows; None counts them from the events."""
    rows: Tensor | None = None
    """Distinct item rows, ascending, of all that is read or ranked, [R]; None finds them."""
    ranked: Tensor | None = None
    """[R] 0 for rows that compete with no label; None with ``rows``."""

    @classmethod
    def of(
        cls, read: tuple[Jagged, Tensor | None, Tensor | None], counted: Tensor | None
    ) -> LabelledEvents:
        """Count the sizes, best where the events were read, with their times and types."""
        events, times, types = read
        positions = (events.lengths() - 1).clamp(min=0)
        num_seen = (positions * (positions + 1)).sum() // 2
        return cls(events, times, types, counted, int(positions.sum()), int(num_seen))

    def to(self, device: torch.device | str) -> LabelledEvents:
        names = ("times", "types", "counted", "rows", "ranked")
        tensors = {name: getattr(self, name) for name in names}
        there: dict[str, Any] = {
            name: moved(one, device) for name, one in tensors.items() if one is not None
        }
        seen = None if self.seen is None else self.seen.to(device)
        return self._replace(events=self.events.to(device), seen=seen, **there)

    def positions(self) -> tuple[Tensor, Tensor]:
        """Return the events that have a label, [P], and their offsets by sequence, [B + 1]."""
        lengths = (self.events.lengths() - 1).clamp(min=0)
        offsets = functional.pad(lengths.cumsum(0), (1, 0))
        pushed = self.events.offsets[:-1] - offsets[:-1]  # [B], by the last events before
        pushed = torch.repeat_interleave(pushed, lengths, output_size=self.num_positions)
        return torch.arange(self.num_positions, device=offsets.device) + pushed, offsets


NOT_RANKED = 1e4
"""Taken off a score, it leaves the item no share of a softmax; infinity, added to a label that
counts for nothing, would leave no number."""


class ScoredItems(NamedTuple):
    """The distinct items a training step ranks."""

    rows: Tensor
    """[C] item rows, ascending, each label among them."""
    log_inclusion: Tensor | None
    """[C] log of the probability of each to be there, None where every item is."""


def sampled_items(
    labels: Tensor, num_uniform: int, item_counts: Tensor, generator: torch.Generator | None = None
) -> ScoredItems:
    """Join the labels and uniform draws, each item once.

    Args:
        labels: Item rows, [P], drawn in proportion to ``item_counts``; 0 is no label.
        item_counts: Training events of each item, [N].
    """
    num_items = len(item_counts) - 1
    shape = (num_uniform,)
    draws = torch.randint(1, num_items + 1, shape, device=labels.device, generator=generator)
    rows = torch.unique(torch.cat([labels, draws]))
    rows = rows[rows > 0]
    return ScoredItems(rows, log_inclusion(rows, labels, num_uniform, item_counts))


def log_inclusion(rows: Tensor, labels: Tensor, num_uniform: int, item_counts: Tensor) -> Tensor:
    """Log of how likely items are among the labels and uniform draws, [C]; as ``sampled_items``."""
    counts = item_counts.float()
    share = counts[rows].clamp(min=1) / counts[1:].sum().clamp(min=1)  # [C]
    expected = (labels > 0).sum() * share + num_uniform / (len(item_counts) - 1)
    return torch.log(-torch.expm1(-expected))


def seen_before(history: Jagged, num_seen: int | None = None) -> Jagged:
    """List for each event of each sequence its item and those before it, M ragged rows.

    Args:
        num_seen: Items listed in all; None counts them, for which a GPU is waited for.
    """
    segments = history.segments()
    counts = torch.arange(1, len(segments) + 1, device=segments.device) - history.offsets[segments]
    offsets = functional.pad(counts.cumsum(0), (1, 0))
    # Without the size it would wait for the device to count.
    event = torch.repeat_interleave(counts, output_size=num_seen)  # [X]
    source = history.offsets[segments][event] - offsets[event]
    return Jagged(history.values[source + torch.arange(len(event), device=event.device)], offsets)


def places_among(rows: Tensor, values: Tensor, num_item_rows: int, first: int = 0) -> Tensor:
    """Find item rows among ascending ones, as ``torch.searchsorted``; quickly where all are there.

    Args:
        rows: Distinct item rows of at least ``first``, [R].
    """
    if len(rows) == num_item_rows - first:
        return (values - first).clamp(min=0)
    return torch.searchsorted(rows, values)


class SequenceModel(RetrievalModel):
    """Encoder of histories and item tower with their catalogue."""

    FILE = "sequence.safetensors"
    config: SequenceConfig
    inputs: FeatureSizes

    def __init__(
        self,
        config: SequenceConfig,
        inputs: FeatureSizes,
        catalogue: ItemCatalogue,
        item_counts: Tensor | None = None,
        neighbours: ItemNeighbours | None = None,
    ) -> None:
        """Build the model.

        Args:
            item_counts: Training events of each item, [num_item_rows]: samples are corrected by
                them, and items without events count as never met. A loaded model has its own.
        """
        super().__init__(catalogue)
        self.config = config
        self.inputs = replace(inputs, user_features={}, context_features={})
        self.encoder = Encoders(config)
        self.item_tower = ItemTower(
            config,
            self.inputs,
            num_neighbours=config.num_neighbours,
            neighbour_weight=config.neighbour_weight,
        )
        self.event_types = types_table(inputs.num_event_types, config.embedding_dim)
        self.reads = {
            "times": config.time_buckets > 0 or config.calendar_days > 0,
            "types": self.event_types is not None,
        }
        """What is read of events besides their items."""
        with torch.no_grad():
            # Each member's share starts as a table of that width alone would.
            for weight in self.item_tower.tables.parameters():
                weight.mul_(math.sqrt(config.num_members))
        if item_counts is not None:
            self.item_tower.item_counts.copy_(item_counts)
        if neighbours is not None:
            self.item_tower.neighbours.copy_(neighbours.rows)
            self.item_tower.neighbour_shares.copy_(neighbours.shares)

    def read(self, batch: JaggedBatch, limit: int) -> tuple[Jagged, Tensor | None, Tensor | None]:
        """Take the latest events, unknown rows as the unknown item, their times and their types."""
        history = latest(batch["history"], limit)
        inside = (history.values >= 0) & (history.values < self.num_item_rows)
        history = history._replace(values=torch.where(inside, history.values, 0))
        found: list[Tensor | None] = []
        for part, is_read in self.reads.items():
            values = None
            if is_read and (name := f"history.{part}") in batch:
                values = latest(batch[name], limit).values
            found.append(values)
        return history, found[0], found[1]

    def normalized(self, inputs: Tensor) -> Tensor:
        """Make unit vectors of items, each member's share as long as the others', [R, D]."""
        return unit_shares(inputs, self.config.num_members)

    @torch.no_grad()
    def query_vectors(
        self, queries: JaggedBatch, inputs_of: Callable[[Jagged], Tensor] | None = None
    ) -> Tensor:
        """Encode queries as unit vectors, [B, D].

        Args:
            queries: ``history`` (item rows, oldest first) and, where events have times,
                ``history.times`` (unix seconds of the same events); ``history.types`` likewise.
            inputs_of: Inputs of a history's events, [M, D]; by default the catalogue's.
        """
        history, times, types = self.read(queries, self.config.max_length)
        inputs = inputs_of(history) if inputs_of else self.all_item_inputs()[history.values]
        inputs = self.with_types(inputs, types)
        encoded: Tensor = self.encoder(inputs, history, times)
        return self.encoder.last(encoded, history)

    def labelled(self, batch: JaggedBatch) -> LabelledEvents:
        """Take of a batch what ``loss`` reads; best where the batch was made.

        Args:
            batch: ``history``, whole sequences of at most max_length + 1 events (longer ones are
                cut to the latest), and ``history.times`` and ``history.types`` of the same events
                where the data has them.
                ``history.counted``, where it is there, is 0 for events that are no labels.
        """
        limit, counted = self.config.max_length + 1, None
        read = self.read(batch, limit)
        if "history.counted" in batch:
            counted = latest(batch["history.counted"], limit).values
        return LabelledEvents.of(read, counted)

    def loss(
        self,
        batch: JaggedBatch | LabelledEvents,
        softmax_over: Tensor | None = None,
        share: StepShare = WHOLE,
    ) -> Tensor:
        """Softmax loss of every event that follows another, the mean over them.

        Args:
            batch: As ``labelled`` reads it, or what that returned.
            softmax_over: Item rows, ascending, of the softmax, [C], such as a domain's items;
                every label is one of them. By default what the settings say.
        """
        given = batch if isinstance(batch, LabelledEvents) else self.labelled(batch)
        events, times, seen = given.events, given.times, given.seen
        labels, _ = next_events(events)  # [M]
        if given.counted is not None:
            counted, _ = next_events(events._replace(values=given.counted))
            labels = torch.where(counted > 0, labels, 0)
        kept, offsets = given.positions()  # [P], [B + 1]
        history = Jagged(events.values[kept], offsets)
        if given.rows is not None and given.ranked is not None:
            ranked = self._ranked_among(given.rows, given.ranked, labels[kept])
            rows, inputs = given.rows, self._inputs_at(given.rows)
        else:
            ranked = self._ranked(labels[kept], softmax_over, share)
            rows, inputs = self._inputs(ranked, history)
        places = places_among(rows, history.values, self.inputs.num_item_rows)
        types = None if given.types is None else given.types[kept]
        read = self.with_types(looked_up(inputs, places), types)  # [P, D]
        encoded = self.encoder(read, history, None if times is None else times[kept])
        places = places_among(rows, ranked.rows, self.inputs.num_item_rows)
        items = looked_up(inputs, places)  # [C, D]
        if not self.config.leave_out_history:
            seen = None
        elif seen is None:
            seen = seen_before(history, given.num_seen)
        loss = self._softmax(encoded, items, ranked, seen, labels[kept])
        return loss * share.weight(labels[kept])

    def num_draws(self) -> int | None:
        """How many uniform negatives a step draws; None where it ranks every item."""
        draws = self.config.num_uniform_negatives
        return None if draws is None or draws >= self.inputs.num_item_rows - 1 else draws

    def encodes_without_waiting(self, num_rows: int) -> bool:
        """Whether a GPU encodes ``num_rows`` distinct items without counting their categories."""
        return len(self._category_rows) == 0 or self.encodes_all(num_rows)

    def _ranked(self, labels: Tensor, softmax_over: Tensor | None, share: StepShare) -> ScoredItems:
        if softmax_over is not None:
            return ScoredItems(softmax_over, None)
        draws = self.num_draws()
        if draws is None:
            rows = torch.arange(1, self.inputs.num_item_rows, device=labels.device)
            return ScoredItems(rows, None)
        return sampled_items(
            share.all_labels(labels), draws, self.item_tower.item_counts, share.draws(labels.device)
        )

    def _ranked_among(self, rows: Tensor, ranked: Tensor, labels: Tensor) -> ScoredItems:
        draws = self.num_draws()
        assert draws is not None, "rows are found where some items are drawn"
        logs = log_inclusion(rows, labels, draws, self.item_tower.item_counts)
        return ScoredItems(rows, torch.where(ranked > 0, logs, NOT_RANKED))

    def _inputs_at(self, rows: Tensor) -> Tensor:
        """Encode distinct rows [R] without waiting for a GPU, [R, D]."""
        if len(self._category_rows) == 0:
            return self.item_inputs(rows)
        return self.item_inputs_of_all()[1].index_select(0, rows)

    def _inputs(self, ranked: ScoredItems, history: Jagged) -> tuple[Tensor, Tensor]:
        """Encode what a step needs: item rows, ascending, [R], and their inputs, [R, D]."""
        if len(ranked.rows) == self.inputs.num_item_rows - 1:
            return self.item_inputs_of_all()
        rows = torch.unique(torch.cat([ranked.rows, history.values]))
        return rows, self.item_inputs(rows)

    def _softmax(
        self,
        encoded: Tensor,
        items: Tensor,
        ranked: ScoredItems,
        seen: Jagged | None,
        labels: Tensor,
    ) -> Tensor:
        """Rank each position's label, [P], by the encoding there, [P, D]; items [C, D]."""
        config, num_item_rows = self.config, self.inputs.num_item_rows
        weights = (labels > 0).float()  # an unknown item is no label
        if labels.is_cuda:
            # Gradients of equal rows are added one after the other, those of no label too.
            others = ranked.rows[torch.arange(len(labels), device=labels.device) % len(ranked.rows)]
            labels = torch.where(labels > 0, labels, others)
        else:
            labels = labels.clamp(min=ranked.rows[0])
        columns = places_among(ranked.rows, labels, num_item_rows, first=1)  # [P]
        excluded = None
        if seen is not None:
            column = places_among(ranked.rows, seen.values, num_item_rows, first=1)
            column = column.clamp(max=len(ranked.rows) - 1)
            absent = ranked.rows[column] != seen.values
            # What is not ranked needs no leaving out; the label never is.
            column = torch.where(absent, columns[seen.segments()], column)
            excluded = Jagged(column, seen.offsets)
        # A member's share of a unit vector is this much longer alone.
        longer = math.sqrt(config.num_members)
        queries = (encoded * longer / config.temperature).chunk(config.num_members, dim=1)
        vectors = (self.normalized(items) * longer).chunk(config.num_members, dim=1)
        losses = [
            softmax_loss(
                query,
                SoftmaxCandidates(item, ranked.log_inclusion),
                columns,
                weights,
                label_smoothing=config.label_smoothing,
                excluded=excluded,
            )
            for query, item in zip(queries, vectors, strict=True)
        ]
        return torch.stack(losses).mean()

    @classmethod
    def load(
        cls, directory: Path, catalogue: ItemCatalogue, *, backend: Backend | None = None
    ) -> SequenceModel:
        """Read a saved model, in evaluation mode, over a catalogue that may have grown.

        Args:
            backend: Of the embedding tables; None is the one it was trained with.
        """
        config, inputs = read_settings(directory, SequenceConfig, FeatureSizes, backend)
        return cls(config, inputs, catalogue).with_weights(directory)
