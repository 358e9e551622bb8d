"""A block of attention to the latest events, to means of earlier blocks, and to a few blocks whole.

Yuan et al. 2025 (Native Sparse Attention, arXiv:2502.11089): each event reads events within a
window as ordinary attention does, the mean key and value of every earlier block of events, and all
events of the few blocks whose mean fits it best; gates of the event weigh the three.

Axes: B sequences, T length of the longest, M events of all sequences, D width, H heads, C queries
of a chunk, N blocks.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from recsys.kernels.hstu_attention.op import distance_buckets
from recsys.layers.attention.softmax import (
    BlockConfig,
    SequenceLayout,
    by_head,
    by_pair,
    feed_forward,
)

WINDOW = 200
"""Latest events that are read as by ordinary attention."""
BLOCK = 32
"""Events of a block that is read by its mean, or whole."""
CHOSEN = 8
"""Blocks that an event reads whole."""


class SparseBlock(nn.Module):
    """Attention to a window, to blocks' means and to chosen blocks, and a feed-forward layer."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        dim, heads = config.dim, config.num_heads
        self.num_heads = heads
        self.attention_norm = nn.LayerNorm(dim)
        self.query_key_value = nn.Linear(dim, 3 * dim)
        self.gates = nn.Linear(dim, 2 * heads)
        self.output = nn.Linear(dim, dim)
        self.near = nn.Parameter(torch.zeros(heads, max(1, config.position_buckets)))
        self.hidden = feed_forward(dim, config.hidden_dim, config.dropout)
        self.dropout = nn.Dropout(config.dropout)
        self.buckets: Tensor
        buckets = distance_buckets(WINDOW, max(1, config.position_buckets)).long()
        self.register_buffer("buckets", buckets, persistent=False)

    def forward(self, events: Tensor, layout: SequenceLayout) -> Tensor:
        """Attend to each event itself and those before it, [M, D] -> [M, D]."""
        query, parts, gates = self._prepared(events, layout)
        chunks = []
        for begin in range(0, query.shape[2], WINDOW):
            span = range(begin, min(begin + WINDOW, query.shape[2]))
            here = slice(span.start, span.stop)
            place = torch.arange(span.start, span.stop, device=events.device)[None]
            weights = [one[:, :, here] for one in gates]
            read = query[:, :, here], place, span, parts, weights
            # A chunk's scores are computed a second time in the backward, where all chunks'
            # would take gigabytes; they draw nothing.
            chunks.append(
                checkpoint(self._read, *read, use_reentrant=False, preserve_rng_state=False)
                if torch.is_grad_enabled() and query.shape[2] > WINDOW
                else self._read(*read)
            )
        together = torch.cat(chunks, dim=2)
        return self._written(events, layout.flat(together.transpose(1, 2).flatten(2)))

    def last(self, events: Tensor, layout: SequenceLayout) -> Tensor:
        """Work out what ``forward`` says of each sequence's last event, [M, D] -> [B, D].

        No sequence may be empty.
        """
        query, parts, gates = self._prepared(events, layout)
        place = (layout.offsets.diff() - 1)[:, None]  # [B, 1]
        at = place[:, None, :, None]
        latest = query.gather(2, at.expand(-1, *query.shape[1:2], -1, query.shape[3]))
        weights = [one.gather(2, at[..., 0].expand(-1, one.shape[1], -1)) for one in gates]
        # On a device, to look at the places would wait for it.
        on_cpu = events.device.type == "cpu"
        span = range(int(place.min()) if on_cpu else 0, layout.length)
        read = self._read(latest, place, span, parts, weights)
        return self._written(events[layout.offsets[1:] - 1], read.transpose(1, 2).flatten(1))

    def _prepared(
        self, events: Tensor, layout: SequenceLayout
    ) -> tuple[Tensor, list[Tensor], tuple[Tensor, ...]]:
        """Return queries, [B, H, T, D / H]; keys, values and means of both by block; gates."""
        normed = self.attention_norm(events)
        projected = layout.padded(self.query_key_value(normed))
        query, key, value = (by_head(part, self.num_heads) for part in projected.chunk(3, dim=2))
        gates = layout.padded(self.gates(normed).sigmoid()).transpose(1, 2).chunk(2, dim=1)
        means = [blocked(part).mean(3) for part in (key, value)]
        return query / math.sqrt(query.shape[3]), [key, value, *means], gates

    def _written(self, events: Tensor, read: Tensor) -> Tensor:
        events = events + self.dropout(self.output(read))
        out: Tensor = events + self.dropout(self.hidden(events))
        return out

    def _read(
        self, query: Tensor, place: Tensor, span: range, parts: list[Tensor], gates: list[Tensor]
    ) -> Tensor:
        """Read for events at some places, [B, H, C, D / H]."""
        key, value, mean_key, mean_value = parts
        first, end = max(0, span.start - WINDOW + 1), span.stop
        back = place[:, :, None] - torch.arange(first, end, device=query.device)  # [B or 1, C, K]
        by_distance = self.near[:, self.buckets]  # [H, WINDOW]
        if place.shape == (1, len(span)):
            size = end - first
            by_distance = functional.pad(by_distance, (0, max(0, size - WINDOW)))
            bias = by_pair(by_distance[:, :size])[None, :, size - len(span) :]
        else:
            bias = by_distance[:, back.clamp(0, WINDOW - 1)].transpose(0, 1)
        scores = query @ key[:, :, first:end].transpose(2, 3) + bias
        outside = (back < 0) | (back >= WINDOW)
        read = attended(scores, outside[:, None], value[:, :, first:end])
        # Blocks that end before the window of the last event begins.
        count = max(0, end - WINDOW) // BLOCK
        if not count:
            return read
        ends = BLOCK * torch.arange(1, count + 1, device=query.device)
        hidden = ends > place[:, :, None] - WINDOW + 1  # [B or 1, C, N]
        some = ~hidden.all(2, keepdim=True)[:, None]  # [B or 1, 1, C, 1]
        hidden = hidden[:, None] & some
        of_means = query @ mean_key[:, :, :count].transpose(2, 3)
        far = attended(of_means, hidden, mean_value[:, :, :count])
        best = of_means.detach().masked_fill(hidden, -torch.inf).topk(min(CHOSEN, count), dim=3)
        chosen = torch.zeros_like(of_means, dtype=torch.bool).scatter(3, best.indices, True)
        chosen = (chosen & ~hidden).repeat_interleave(BLOCK, dim=3)
        whole = query @ key[:, :, : count * BLOCK].transpose(2, 3)
        near = attended(whole, ~chosen, value[:, :, : count * BLOCK])
        by_mean, by_event = (one[..., None] * some for one in gates)
        return read + by_mean * far + by_event * near


def blocked(events: Tensor) -> Tensor:
    """Cut events into whole blocks, [B, H, T, E] -> [B, H, N, BLOCK, E]; padding may be in them."""
    count = events.shape[2] // BLOCK
    whole = events[:, :, : count * BLOCK]
    return whole.reshape(*events.shape[:2], count, BLOCK, events.shape[3])


def attended(scores: Tensor, hidden: Tensor, value: Tensor) -> Tensor:
    """Weigh values by the softmax of scores [B, H, C, K] that are not hidden."""
    weights = torch.softmax(scores.float().masked_fill(hidden, -torch.inf), dim=3)
    return weights.to(value.dtype) @ value
