"""Encoders of histories: causal blocks over a user's events, alone or several side by side.

Axes: B sequences, M events of a batch, R distinct items, D width, H heads.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from recsys.data.batch import Jagged
from recsys.kernels.hstu_attention.op import PositionBias, TimeBias, hstu_attention
from recsys.layers.attention.layout import SequenceLayout
from recsys.layers.attention.softmax import (
    AttentionBlock,
    BlockConfig,
    ConvolutionBlock,
    RelativeBias,
)
from recsys.layers.dropout import Dropout
from recsys.layers.embedding.tables import looked_up
from recsys.models.item_tower import NORM_FLOOR
from recsys.models.sequence.config import LAST_DAY, Block, SequenceConfig


class HstuBlock(nn.Module):
    """SiLU attention without softmax, gated by the event itself (Zhai et al. 2024).

        U, V, Q, K = silu(linear(norm(x)))
        y = x + linear(norm(attention(Q, K, V)) * U)

    On CUDA the attention runs in our kernels, elsewhere in their reference.
    """

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.heads = (config.num_heads, config.dim // config.num_heads)
        self.max_length = config.max_length
        self.input_norm = nn.LayerNorm(config.dim)
        self.projection = nn.Linear(config.dim, 4 * config.dim)
        self.bias = RelativeBias(config)
        self.read_norm = nn.LayerNorm(config.dim)
        self.output = nn.Linear(config.dim, config.dim)
        self.dropout = Dropout(config.dropout)

    def forward(self, events: Tensor, layout: SequenceLayout) -> Tensor:
        """Attend to each event itself and those before it, [M, D] -> [M, D]."""
        projected = functional.silu(self.projection(self.input_norm(events)))  # [M, 4 D]
        gate, value, query, key = projected.chunk(4, dim=1)
        query, key, value = (
            part.contiguous().view(len(part), *self.heads) for part in (query, key, value)
        )
        position, time = self._biases(layout)
        read = hstu_attention(
            query,
            key,
            value,
            layout.offsets,
            self.max_length,
            position_bias=position,
            time_bias=time,
        ).flatten(1)  # [M, D]
        read = self.dropout(self.read_norm(read) * gate)
        out: Tensor = events + self.output(read)
        return out

    def _biases(self, layout: SequenceLayout) -> tuple[PositionBias | None, TimeBias | None]:
        bias = self.bias
        position = time = None
        if bias.positions is not None:
            position = PositionBias(weights=bias.positions, buckets=bias.buckets)
        if bias.times is not None and layout.times is not None:
            time = TimeBias(weights=bias.times, query_times=layout.times, key_times=layout.times)
        return position, time


SECONDS_PER_DAY = 86_400


class Calendar(nn.Module):
    """Turns unix seconds into vectors, learned at equal distances and averaged in between.

    So a model learns the demand around a time. Times after all that training saw count as the
    last seen.

    Frozen, as below an adapter, it sees no further times: the base would no longer be what it was.
    """

    def __init__(self, dim: int, days: float, *, scale: float = 0.0) -> None:
        """Make the table."""
        super().__init__()
        self.seconds = days * SECONDS_PER_DAY
        self.vectors = nn.Embedding(math.ceil(LAST_DAY / days) + 1, dim)
        nn.init.normal_(self.vectors.weight, std=scale / math.sqrt(dim))
        self.first: Tensor
        self.last: Tensor
        unseen = torch.iinfo(torch.int64)
        self.register_buffer("first", torch.tensor(unseen.max))
        self.register_buffer("last", torch.tensor(unseen.min))

    def forward(self, times: Tensor) -> Tensor:
        """Place times, [M] int64 -> [M, D]."""
        if self.training and self.vectors.weight.requires_grad and len(times):
            self.first.copy_(torch.minimum(self.first, times.min()))
            self.last.copy_(torch.maximum(self.last, times.max()))
        # Before any training nothing was seen, and every time counts as 1970.
        known = torch.maximum(torch.minimum(times, self.last), self.first)
        place = torch.where(self.last >= self.first, known, 0).double() / self.seconds
        place = place.clamp(0, self.vectors.num_embeddings - 1.001)
        before = place.long()
        share = (place - before).to(self.vectors.weight.dtype)[:, None]
        table = self.vectors.weight
        return looked_up(table, before) * (1 - share) + looked_up(table, before + 1) * share


KINDS: dict[Block, type[AttentionBlock | HstuBlock]] = {
    "attention": AttentionBlock,
    "convolution": ConvolutionBlock,
    "hstu": HstuBlock,
}


class HistoryEncoder(nn.Module):
    """Turns the events of each sequence into a vector of the expected next event after each."""

    def __init__(self, config: SequenceConfig, number: int = 0) -> None:
        super().__init__()
        dim = config.block_config().dim
        self.max_length = config.max_length
        self.no_history = nn.Parameter(torch.randn(dim) / math.sqrt(dim))
        self.places = nn.Embedding(config.max_length, dim)
        nn.init.normal_(self.places.weight, std=0.3 / math.sqrt(dim))
        self.read_at = self.query_at = None
        if config.calendar_days:
            self.read_at = Calendar(dim, config.calendar_days, scale=0.1)
            self.query_at = Calendar(dim, config.calendar_days)
        self.dropout = Dropout(config.dropout)
        kind = KINDS[config.blocks_of(number)]
        self.blocks = nn.ModuleList(kind(config.block_config()) for _ in range(config.num_blocks))
        self.output_norm = nn.LayerNorm(dim)

    def forward(self, inputs: Tensor, history: Jagged, times: Tensor | None) -> Tensor:
        """Encode as unit vectors, [M, D].

        Args:
            inputs: The item tower's input of each event, [M, D].
            history: At most max_length events of each sequence, oldest first.
            times: [M] unix seconds of these events, where there are times; no other time is read.
        """
        state, layout = self._read(inputs, history, times)
        for block in self.blocks:
            state = block(state, layout)
        return self._expected(state, times)

    def only_last(self, inputs: Tensor, history: Jagged, times: Tensor | None) -> Tensor:
        """Encode each sequence's last event alone, [B, D], which takes less; none is empty."""
        state, layout = self._read(inputs, history, times)
        for block in self.blocks[:-1]:
            state = block(state, layout)
        block, ends = self.blocks[-1], history.offsets[1:] - 1
        if isinstance(block, AttentionBlock):
            state = block.last(state, layout)
        else:
            state = block(state, layout)[ends]
        return self._expected(state, None if times is None else times[ends])

    def _read(
        self, inputs: Tensor, history: Jagged, times: Tensor | None
    ) -> tuple[Tensor, SequenceLayout]:
        """Prepare what the first block reads, [M, D], and its layout."""
        layout = SequenceLayout.of(history.offsets, history.segments(), self.max_length, times)
        inputs = inputs + looked_up(self.places.weight, layout.places)
        if self.read_at is not None and times is not None:
            inputs = inputs + self.read_at(times)
        return self.dropout(inputs), layout

    def _expected(self, state: Tensor, times: Tensor | None) -> Tensor:
        """Turn what the last block wrote into unit vectors, placed at each event's own time."""
        if self.query_at is not None and times is not None:
            state = state + self.query_at(times)
        return functional.normalize(self.output_norm(state).float(), dim=1, eps=NORM_FLOOR)


class Encoders(nn.Module):
    """The members, each reading and writing its own share of the width."""

    def __init__(self, config: SequenceConfig) -> None:
        super().__init__()
        self.members = nn.ModuleList(HistoryEncoder(config, n) for n in range(config.num_members))

    def forward(self, inputs: Tensor, history: Jagged, times: Tensor | None) -> Tensor:
        """Encode as unit vectors, [M, D]; arguments as of ``Encoder``."""
        shares = inputs.chunk(len(self.members), dim=1)
        encoded = [
            member(share, history, times)
            for member, share in zip(self.members, shares, strict=True)
        ]
        return torch.cat(encoded, dim=1) / math.sqrt(len(self.members))

    def last(self, encoded: Tensor, history: Jagged) -> Tensor:
        """Take each sequence's last event, [M, D] -> [B, D]; empty ones have a learned vector."""
        empty = torch.cat([cast("HistoryEncoder", member).no_history for member in self.members])
        padded = torch.cat([unit_shares(empty[None], len(self.members)), encoded])
        return padded[torch.where(history.lengths() > 0, history.offsets[1:], 0)]


def unit_shares(vectors: Tensor, num_members: int) -> Tensor:
    """Scale each member's share of vectors [R, D] to the same length; the whole has length 1.

    The cosine of two such vectors is the mean of the members' cosines.
    """
    shares = vectors.float().view(len(vectors), num_members, vectors.shape[1] // num_members)
    return functional.normalize(shares, dim=2, eps=NORM_FLOOR).flatten(1) / math.sqrt(num_members)
