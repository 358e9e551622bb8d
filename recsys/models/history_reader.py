"""Reads histories for a decoder of semantic IDs: what all beams of a request share.

Axes: B sequences, T places (a start and the events), W beams, M events of a batch, J blocks of the
decoder, H heads, D width.
"""

from __future__ import annotations

import math
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from recsys.layers.attention.softmax import Layout
from recsys.layers.codes.decoder import CodeBlock, DistanceBias, SharedContext
from recsys.layers.ngram_memory import NgramMemory
from recsys.models.generative.config import GenerativeConfig


class GenerativeContext(NamedTuple):
    """A batch of histories as every beam reads them."""

    keys: Tensor
    """[J, B, H, T, D / H]"""
    values: Tensor
    """[J, B, H, T, D / H]"""
    bias: Tensor
    """By distance, -inf where there is no event, [B or 1, H, W or 1, T]."""
    carried: Tensor
    """What every token carries of its place, [B, W or 1, D]; of width 0 where tokens carry none."""

    def block(self, index: int) -> SharedContext:
        return SharedContext(self.keys[index], self.values[index], self.bias)


class BeamState(NamedTuple):
    """What differs by beam."""

    keys: Tensor
    """Of the tokens decoded so far, [J, B, W, S, H, D / H]."""
    values: Tensor
    """[J, B, W, S, H, D / H]"""
    prefixes: Tensor
    """Codes taken, read as one number, [B, W] int64."""


class Read(NamedTuple):
    """What is read of a history."""

    keys: Tensor
    """[J, B, H, T, D / H]"""
    values: Tensor
    """[J, B, H, T, D / H]"""
    places: Tensor
    """State of each place, [B, T, D]; of width 0 where tokens carry none."""


class HistoryReader(nn.Module):
    """Turns the places of a history into keys and values for the decoder's blocks."""

    def __init__(self, config: GenerativeConfig) -> None:
        super().__init__()
        dim, places = config.embedding_dim, config.max_length + 1
        self.config = config
        self.start = nn.Parameter(torch.randn(dim) / math.sqrt(dim))
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = nn.ModuleList(
            CodeBlock(config.block_config(cross_attention=False))
            for _ in range(config.num_encoder_layers if config.has_encoder else 0)
        )
        self.memory_norm = nn.LayerNorm(dim) if config.has_encoder else None
        self.carried_norm = nn.LayerNorm(dim) if config.carries_place else None
        buckets = config.position_buckets
        self.among_places = DistanceBias(
            config.num_heads, buckets, places, both_sides=config.bidirectional
        )
        self.to_places = DistanceBias(config.num_heads, buckets, places)
        self.memory = None
        if config.memory_orders:
            self.memory = NgramMemory(dim, config.memory_orders, config.memory_rows, config.backend)

    def places_of(self, inputs: Tensor, layout: Layout) -> Tensor:
        """Lay events out behind the start, [M, D] -> [B, T, D]."""
        padded = layout.padded(inputs)
        start = self.start.to(padded.dtype).expand(len(padded), 1, -1)
        places = torch.cat([start, padded], dim=1)
        placed: Tensor = self.dropout(places)
        return placed

    def found(self, ids: Tensor, layout: Layout) -> Tensor | None:
        """Look events' IDs up in the memory, [M] int64 -> [B, T, D]."""
        if self.memory is None:
            return None
        return self.memory.look_up(functional.pad(layout.padded(ids + 1), (1, 0)) - 1)

    def forward(
        self, places: Tensor, found: Tensor | None, seen: Tensor, decoder: list[CodeBlock]
    ) -> Read:
        """Read places, [B, T, D], of which the first ``seen`` + 1, [B], count."""
        num_places, both_sides = places.shape[1], self.config.bidirectional
        bias = self.among_places.pairs(num_places, both_sides=both_sides)[None]  # [1, H, T, T]
        if both_sides:
            place = torch.arange(num_places, device=places.device)
            bias = bias.masked_fill((place > seen[:, None])[:, None, None], -torch.inf)
        shared = []
        blocks = cast("list[CodeBlock]", list(self.encoder)) or decoder
        # In training the draws of dropout behind the last block stay in their order.
        is_read = self.training or self.memory_norm is not None or self.carried_norm is not None
        for index, block in enumerate(blocks):
            if index == len(blocks) - 1 and not is_read:
                shared.append(block.keys_and_values(places))
                break
            places, key, value = block.read(places, bias)
            shared.append((key, value))
            if index == 0 and self.memory is not None and found is not None:
                places = self.memory(places, found)
        carried = places[..., :0] if self.carried_norm is None else self.carried_norm(places)
        if self.memory_norm is not None:
            memory = self.memory_norm(places)
            shared = [block.share(memory) for block in decoder]
        keys, values = zip(*shared, strict=True)
        return Read(torch.stack(keys), torch.stack(values), carried)

    def bias(self, places: Tensor, num_places: int) -> Tensor:
        """Let a decoder behind ``places`` events read those alone, [...] -> [..., H, T]."""
        place = torch.arange(num_places, device=places.device)
        distance = places[..., None] - place
        bias: Tensor = self.to_places(distance)
        return bias.masked_fill((distance < 0)[..., None, :], -torch.inf)
