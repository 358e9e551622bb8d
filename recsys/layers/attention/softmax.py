"""Causal self-attention over jagged sequences, with relative position and time (SASRec's block).

SASRec: Kang and McAuley 2018, arXiv:1808.09781; buckets of relative position: Raffel et al. 2020,
arXiv:1910.10683; elapsed time: Li et al. 2020 (TiSASRec) and Zhai et al. 2024, arXiv:2402.17152.

Axes: B sequences, T length of the longest, M events of all sequences, D width, H heads.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from recsys.data.bounds import check_bounds
from recsys.kernels.hstu_attention.op import distance_buckets, time_buckets
from recsys.layers.attention.layout import SequenceLayout, by_head
from recsys.layers.dropout import Dropout


def feed_forward(dim: int, hidden_dim: int, dropout: float) -> nn.Sequential:
    """Build a normed feed-forward layer, [..., D] -> [..., D]; the caller adds it to its input."""
    return nn.Sequential(
        nn.LayerNorm(dim),
        nn.Linear(dim, hidden_dim),
        nn.GELU(),
        Dropout(dropout),
        nn.Linear(hidden_dim, dim),
    )


@dataclass(frozen=True, kw_only=True)
class BlockConfig:
    """Sizes of one block, of attention or HSTU."""

    dim: int
    num_heads: int
    hidden_dim: int
    """Width inside the feed-forward layer; HSTU has none."""
    dropout: float
    max_length: int
    position_buckets: int = 32
    """Learned biases by distance, per head; 0 is none."""
    time_buckets: int = 0
    """Learned biases by log2 of elapsed seconds, per head; 0 is none."""

    def __post_init__(self) -> None:
        if self.num_heads < 1 or self.dim % self.num_heads:
            raise ValueError(f"num_heads must divide the width {self.dim}, got {self.num_heads}")
        check_bounds(self, max_length=">= 1", position_buckets=">= 0", time_buckets=">= 0")


class RelativeBias(nn.Module):
    """Learned numbers for each head by distance and, where there are times, by elapsed time."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.positions, self.times = (
            nn.Parameter(torch.zeros(config.num_heads, buckets)) if buckets else None
            for buckets in (config.position_buckets, config.time_buckets)
        )
        self.buckets: Tensor
        buckets = distance_buckets(config.max_length, max(1, config.position_buckets))
        self.register_buffer("buckets", buckets, persistent=False)

    def forward(self, layout: SequenceLayout) -> Tensor | None:
        """Add up the biases of every pair of places, [1 or B, H, T, T], None without any."""
        bias = None
        if self.positions is not None:
            bias = by_pair(self.positions[:, self.buckets[: layout.length].long()])[None]
        if self.times is not None and layout.times is not None:
            times = layout.padded(layout.times)  # [B, T]
            elapsed = times[:, :, None] - times[:, None, :]
            bucket = time_buckets(elapsed, self.times.shape[1])  # [B, T, T]
            by_time = functional.embedding(bucket, self.times.T).permute(0, 3, 1, 2)
            bias = by_time if bias is None else bias + by_time
        return bias

    def of_last(self, layout: SequenceLayout) -> Tensor | float:
        """Add up the biases of each sequence's last place with every other, [B, H, 1, T]."""
        bias: Tensor | float = 0.0
        lengths = layout.offsets.diff()
        if self.positions is not None:
            place = torch.arange(layout.length, device=layout.offsets.device)
            distance = (lengths[:, None] - 1 - place).clamp_min(0)  # [B, T]
            bias = self.positions[:, self.buckets[distance].long()].transpose(0, 1)[:, :, None]
        if self.times is not None and layout.times is not None:
            query_times = layout.times[layout.offsets[1:] - 1]
            elapsed = query_times[:, None] - layout.padded(layout.times)
            bucket = time_buckets(elapsed, self.times.shape[1])  # [B, T]
            bias = bias + functional.embedding(bucket, self.times.T).transpose(1, 2)[:, :, None]
        return bias


def by_pair(by_distance: Tensor) -> Tensor:
    """Return each pair of places i >= j the value at i - j, others 0, [H, T] -> [H, T, T].

    By copies and a shift of each row by one, since the gradient of an indexed lookup adds the pairs
    of a distance one after the other: a third of a step's time with 200 places on a GPU.
    """
    heads, length = by_distance.shape
    if length == 1:
        return by_distance[:, :, None]
    # One row is the distances 0, -1, ..., 1 - T, T - 1, ..., 1 between i = 0 and j = 0, 1, ...
    others = by_distance.new_zeros(heads, length - 1)
    row = torch.cat([by_distance[:, :1], others, by_distance[:, 1:].flip(1)], dim=1)
    rows = row.repeat(1, length)[:, : length * (2 * length - 2)]
    return rows.view(heads, length, 2 * length - 2)[:, :, :length]


class AttentionBlock(nn.Module):
    """Causal self-attention and a feed-forward layer, each after a norm and added to its input."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.attention_norm = nn.LayerNorm(config.dim)
        self.query_key_value = nn.Linear(config.dim, 3 * config.dim)
        self.output = nn.Linear(config.dim, config.dim)
        self.bias = RelativeBias(config)
        self.hidden = feed_forward(config.dim, config.hidden_dim, config.dropout)
        self.dropout = Dropout(config.dropout)

    def forward(self, events: Tensor, layout: SequenceLayout) -> Tensor:
        """Attend to each event itself and those before it, [M, D] -> [M, D]."""
        events = events + self.dropout(self._read(self.attention_norm(events), layout))
        out: Tensor = events + self.dropout(self.hidden(events))
        return out

    def _read(self, normed: Tensor, layout: SequenceLayout) -> Tensor:
        """Attend, normed events [M, D] -> [M, D]."""
        query, key, value = layout.by_head(self.query_key_value(normed), self.num_heads, 3)
        read = causal_attention(query, key, value, self.bias(layout))  # [B, H, T, D / H]
        out: Tensor = self.output(layout.joined_heads(read))
        return out

    def last(self, events: Tensor, layout: SequenceLayout) -> Tensor:
        """Work out what ``forward`` says of each sequence's last event, [M, D] -> [B, D].

        No sequence may be empty, and no layer be corrected by an adapter.
        """
        ends = layout.offsets[1:] - 1
        state = events[ends] + self.dropout(self._read_last(self.attention_norm(events), layout))
        out: Tensor = state + self.dropout(self.hidden(state))
        return out

    def _read_last(self, normed: Tensor, layout: SequenceLayout) -> Tensor:
        """Attend for each sequence's last event alone, normed events [M, D] -> [B, D]."""
        ends, dim = layout.offsets[1:] - 1, normed.shape[1]
        projection = self.query_key_value
        query = functional.linear(normed[ends], projection.weight[:dim], projection.bias[:dim])
        read = functional.linear(normed, projection.weight[dim:], projection.bias[dim:])
        query, key, value = (
            by_head(part, self.num_heads)
            for part in (query[:, None], *layout.padded(read).chunk(2, dim=2))
        )
        scores = query @ key.transpose(2, 3) * query.shape[3] ** -0.5 + self.bias.of_last(layout)
        place = torch.arange(layout.length, device=normed.device)
        behind = place >= layout.offsets.diff()[:, None]  # [B, T]
        scores = scores.float().masked_fill(behind[:, None, None], -torch.inf)
        heads = torch.softmax(scores, dim=3).to(value.dtype) @ value  # [B, H, 1, D / H]
        out: Tensor = self.output(heads.flatten(1))
        return out


class ConvolutionBlock(AttentionBlock):
    """An attention block that reads the mean of attention and of a causal convolution.

    A channel's weights of earlier events depend on the distance alone, as a filter of frequencies
    would (BSARec: Shin et al. 2024, arXiv:2312.10325), but never reach beyond the present event.
    """

    def __init__(self, config: BlockConfig) -> None:
        super().__init__(config)
        near = 0.5 / torch.arange(1, config.max_length + 1)
        self.taps = nn.Parameter(near.repeat(config.dim, 1))  # [D, distances]

    def _read(self, normed: Tensor, layout: SequenceLayout) -> Tensor:
        weights = by_pair(self.taps[:, : layout.length])  # [D, T, T]
        read = torch.einsum("dij,bjd->bid", weights, layout.padded(normed))
        return 0.5 * (super()._read(normed, layout) + layout.flat(read))

    def _read_last(self, normed: Tensor, layout: SequenceLayout) -> Tensor:
        place = torch.arange(len(normed), device=normed.device)
        distance = layout.offsets[1:][layout.segments] - 1 - place  # [M]
        weighted = self.taps.T[distance] * normed
        read = normed.new_zeros(len(layout.offsets) - 1, normed.shape[1])
        read = read.index_add(0, layout.segments, weighted)
        return 0.5 * (super()._read_last(normed, layout) + read)


def causal_attention(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
    """Attend to the same place and earlier ones, all [B, H, T, D / H].

    Sequences are left-aligned, so padding follows and is never read by an event.
    """
    if bias is None:
        return functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    length, scale = query.shape[2], query.shape[3] ** -0.5
    scores = query @ key.transpose(2, 3)  # [B, H, T, T]
    later = torch.ones(length, length, dtype=torch.bool, device=query.device).triu(1)
    if query.is_cuda:  # scaled, biased and masked at once
        scores = torch.add(bias.float().masked_fill(later, -torch.inf), scores, alpha=scale)
        return torch.softmax(scores, dim=3).to(value.dtype) @ value
    scores = scores * scale + bias
    weights = torch.softmax(scores.float().masked_fill(later, -torch.inf), dim=3)
    return weights.to(value.dtype) @ value
