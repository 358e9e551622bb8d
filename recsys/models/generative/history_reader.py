"""Reads histories for a decoder of semantic IDs: what all beams of a request share.

Axes: B sequences, T places (a start and the events), W beams, M events of a batch, J blocks of the
decoder, H heads, D width.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from recsys.layers.attention.softmax import Layout
from recsys.layers.codes.decoder import CodeBlock, DistanceBias, SharedContext
from recsys.models.generative.config import GenerativeConfig

POSITION_BUCKETS = 32
"""Distances between places that have a bias of their own."""


class GenerativeContext(NamedTuple):
    """A batch of histories as every beam reads them."""

    keys: Tensor
    """[J, B, H, T, D / H]"""
    values: Tensor
    """[J, B, H, T, D / H]"""
    bias: Tensor
    """By distance, -inf where there is no event, [B or 1, H, W or 1, T]."""
    carried: Tensor
    """State of its place that each token carries, [B, W or 1, D]; of width 0 without."""

    def block(self, index: int) -> SharedContext:
        return SharedContext(self.keys[index], self.values[index], self.bias)


class BeamState(NamedTuple):
    """State of the beams."""

    keys: Tensor
    """Keys of the tokens decoded so far, [J, B, W, S, H, D / H]."""
    values: Tensor
    """[J, B, W, S, H, D / H]"""


class Read(NamedTuple):
    """Encoded history."""

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
        self.carried_norm = nn.LayerNorm(dim) if config.carries_place else None
        self.among_places = DistanceBias(config.num_heads, POSITION_BUCKETS, places)
        self.to_places = DistanceBias(config.num_heads, POSITION_BUCKETS, places)

    def places_of(self, inputs: Tensor, layout: Layout) -> Tensor:
        """Pad events after the start, [M, D] -> [B, T, D]."""
        padded = layout.padded(inputs)
        start = self.start.to(padded.dtype).expand(len(padded), 1, -1)
        places = torch.cat([start, padded], dim=1)
        placed: Tensor = self.dropout(places)
        return placed

    def forward(self, places: Tensor, blocks: list[CodeBlock]) -> Read:
        """Read places [B, T, D] by the decoder's blocks, each with the places before it."""
        bias = self.among_places.pairs(places.shape[1])[None]  # [1, H, T, T]
        shared = []
        # In training the draws of dropout behind the last block stay in their order.
        is_read = self.training or self.carried_norm is not None
        for index, block in enumerate(blocks):
            if index == len(blocks) - 1 and not is_read:
                shared.append(block.keys_and_values(places))
                break
            places, key, value = block.read(places, bias)
            shared.append((key, value))
        carried = places[..., :0] if self.carried_norm is None else self.carried_norm(places)
        keys, values = zip(*shared, strict=True)
        return Read(torch.stack(keys), torch.stack(values), carried)

    def bias(self, places: Tensor, num_places: int) -> Tensor:
        """Mask all but the first ``places`` events, [...] -> [..., H, T]."""
        place = torch.arange(num_places, device=places.device)
        distance = places[..., None] - place
        bias: Tensor = self.to_places(distance)
        return bias.masked_fill((distance < 0)[..., None, :], -torch.inf)
