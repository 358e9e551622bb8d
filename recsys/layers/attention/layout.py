"""Where the events of jagged sequences are in padded ones, by head.

Axes: B sequences, T length of the longest, M events of all sequences, D width, H heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


class _Placed(torch.autograd.Function):
    """Take rows by their places, [N, D] -> [P, D], without adding gradients up.

    ``back`` [N] has the one place of a row's gradient; without it no row is taken twice.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, places: Tensor, back: Tensor | None) -> Tensor:
        ctx.save_for_backward(places, back)
        ctx.num_rows = len(rows)
        return rows.index_select(0, places)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (places, back), given = ctx.saved_tensors, gradients[0].contiguous()
        if back is not None:
            return given.index_select(0, back), None, None
        found = given.new_zeros(ctx.num_rows, given.shape[1])
        return found.index_copy_(0, places, given), None, None


placed: Any = _Placed.apply


@dataclass(frozen=True)
class SequenceLayout:
    """Places of the events of a batch of sequences; computed once for all blocks."""

    offsets: Tensor
    """[B + 1], sequence b owns events offsets[b] .. offsets[b + 1], the oldest first."""
    segments: Tensor
    """[M], the sequence of each event."""
    places: Tensor
    """[M], place of each event in its sequence, from 0."""
    length: int
    """T, no sequence is longer."""
    times: Tensor | None = None
    """[M] int64 unix seconds, where there are times."""

    @classmethod
    def of(
        cls, offsets: Tensor, segments: Tensor, max_length: int, times: Tensor | None
    ) -> SequenceLayout:
        """Arrange sequences of at most ``max_length`` events."""
        places = torch.arange(len(segments), device=offsets.device) - offsets[segments]
        length = max_length
        if offsets.device.type == "cpu":
            # On a device, to ask for the longest would wait for it.
            length = int(offsets.diff().max()) if len(offsets) > 1 else 0
        return cls(offsets, segments, places, max(1, length), times)

    def padded(self, values: Tensor) -> Tensor:
        """Pad events with zeros on the right, [M, ...] -> [B, T, ...]."""
        if len(self.offsets) == 2 and len(values) == self.length:
            return values[None]
        out = values.new_zeros(len(self.offsets) - 1, self.length, *values.shape[1:])
        return out.index_put((self.segments, self.places), values)

    def by_head(self, values: Tensor, num_heads: int, num_parts: int) -> Sequence[Tensor]:
        """Pad events and split their width, [M, parts D] -> parts of [B, H, T, D / H].

        On a GPU by one copy: padding, which no event reads, then repeats an event.
        """
        if not values.is_cuda or not len(values):
            padded = self.padded(values)
            return [by_head(part, num_heads) for part in padded.chunk(num_parts, dim=2)]
        device, rows = values.device, values.reshape(len(values) * num_parts * num_heads, -1)
        place = torch.arange(self.length, device=device)
        event = torch.minimum(self.offsets[:-1, None] + place, self.offsets[1:, None] - 1)  # [B, T]
        own = torch.arange(len(rows), device=device).view(-1, num_parts, num_heads)
        places = own[event.clamp(min=0)].permute(2, 0, 3, 1)  # [parts, B, H, T]
        pairs = torch.arange(places.numel(), device=device).view(places.shape)
        back = pairs.permute(1, 3, 0, 2)[self.segments, self.places]  # [M, parts, H]
        found: Tensor = placed(rows, places.flatten(), back.flatten())
        return found.view(*places.shape, -1).unbind(0)

    def joined_heads(self, heads: Tensor) -> Tensor:
        """Take the events back, [B, H, T, D / H] -> [M, D]."""
        if not heads.is_cuda:
            return self.flat(heads.transpose(1, 2).flatten(2))
        places = torch.arange(heads[..., 0].numel(), device=heads.device).view(heads.shape[:3])
        places = places.transpose(1, 2)[self.segments, self.places]  # [M, H]
        found: Tensor = placed(heads.reshape(-1, heads.shape[3]), places.flatten(), None)
        return found.view(-1, heads.shape[1] * heads.shape[3])

    def flat(self, padded: Tensor) -> Tensor:
        """Take the events back, [B, T, ...] -> [M, ...]."""
        # Not by [], for whose gradient a GPU sorts the places.
        return padded.flatten(0, 1).index_select(0, self.segments * self.length + self.places)


def by_head(padded: Tensor, num_heads: int) -> Tensor:
    """Split the width, [B, T, D] -> [B, H, T, D / H]."""
    return padded.view(*padded.shape[:2], num_heads, -1).transpose(1, 2)
