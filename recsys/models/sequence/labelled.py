"""Sequences as a training step reads them, with the sizes that a GPU would have to be waited for.

Axes: B sequences, M events of a batch, P positions that have a label, X pairs of a position and an
item up to there.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from recsys.data.batch import Jagged, moved


class LabelledEvents(NamedTuple):
    """Sequences cut to what a model reads; every event but a sequence's first is a label."""

    events: Jagged
    """Item rows of the catalogue, M ragged."""
    times: Tensor | None
    """[M] unix seconds, where they are read."""
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
    """[R] 0 for rows that no label stands against; None with ``rows``."""

    @classmethod
    def of(cls, events: Jagged, times: Tensor | None, counted: Tensor | None) -> LabelledEvents:
        """Count the sizes, best where the events were read."""
        positions = (events.lengths() - 1).clamp(min=0)
        num_seen = (positions * (positions + 1)).sum() // 2
        return cls(events, times, counted, int(positions.sum()), int(num_seen))

    def to(self, device: torch.device | str) -> LabelledEvents:
        times = None if self.times is None else moved(self.times, device)
        counted = None if self.counted is None else moved(self.counted, device)
        seen = None if self.seen is None else self.seen.to(device)
        rows = None if self.rows is None else moved(self.rows, device)
        ranked = None if self.ranked is None else moved(self.ranked, device)
        found = self._replace(times=times, counted=counted, seen=seen, rows=rows, ranked=ranked)
        return found._replace(events=self.events.to(device))

    def positions(self) -> tuple[Tensor, Tensor]:
        """Name the events that have a label, [P], and cut them into sequences, [B + 1]."""
        lengths = (self.events.lengths() - 1).clamp(min=0)
        offsets = functional.pad(lengths.cumsum(0), (1, 0))
        pushed = self.events.offsets[:-1] - offsets[:-1]  # [B], by the last events before
        pushed = torch.repeat_interleave(pushed, lengths, output_size=self.num_positions)
        return torch.arange(self.num_positions, device=offsets.device) + pushed, offsets
