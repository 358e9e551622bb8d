"""A small transformer that generates semantic IDs, with weights as they were drawn.

It stands where a trained generative model will: tests and benchmarks of the beam search decode with
it, as an encoder-decoder that attends across to the history or as a decoder alone behind it.

Axes: B requests, T places of the context, W beams, L levels, K codes of a level, D width, H heads,
J layers, S codes taken so far and the start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from recsys.retrieval.beam_search import Beams, Decoded


@dataclass(frozen=True, kw_only=True)
class CodeDecoderConfig:
    """Sizes of the decoder and how it reads the history."""

    level_sizes: tuple[int, ...]
    dim: int = 128
    num_heads: int = 4
    num_layers: int = 2
    cross_attention: bool = True
    """Attends to the history apart from the codes; else to both at once, as a decoder alone."""


class Context(NamedTuple):
    """The history as every beam of a request reads it."""

    keys: Tensor
    """[J, B, H, T, D / H]"""
    values: Tensor
    """[J, B, H, T, D / H]"""
    bias: Tensor
    """0 where there is an event, -inf on padding, [B, 1, 1, T]; the first place always counts."""


class BeamState(NamedTuple):
    """Keys and values of the codes that each beam took."""

    keys: Tensor
    """[J, B, W, H, S, D / H]"""
    values: Tensor
    """[J, B, W, H, S, D / H]"""


class Layer(nn.Module):
    """Attention to the own codes and to the context, and a feed-forward layer."""

    def __init__(self, config: CodeDecoderConfig) -> None:
        super().__init__()
        dim = config.dim
        self.num_heads = config.num_heads
        self.cross_attention = config.cross_attention
        self.norm, self.cross_norm, self.hidden_norm = (nn.LayerNorm(dim) for _ in range(3))
        self.query_key_value = nn.Linear(dim, 3 * dim)
        self.cross_query = nn.Linear(dim, dim)
        self.output, self.cross_output = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.hidden = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def heads(self, projected: Tensor) -> Tensor:
        """Split the width, [..., D] -> [..., H, D / H]."""
        return projected.view(*projected.shape[:-1], self.num_heads, -1)

    def shared_scores(self, query: Tensor, context: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Score one context for all beams of a request, [B, W, H, D / H] -> [B, W, H, T]."""
        keys, _, bias = context
        scores: Tensor = query.transpose(1, 2) @ keys.transpose(-1, -2) * query.shape[-1] ** -0.5
        return (scores + bias).transpose(1, 2)

    def forward(
        self, beams: Tensor, context: tuple[Tensor, Tensor, Tensor], past: BeamState | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Decode one code more, [B, W, D] -> the same, and keys and values with the new ones."""
        query, key, value = map(self.heads, self.query_key_value(self.norm(beams)).chunk(3, -1))
        keys, values = key[..., None, :], value[..., None, :]  # [B, W, H, 1, D / H]
        if past is not None:
            keys = torch.cat([past.keys, keys], dim=3)
            values = torch.cat([past.values, values], dim=3)
        own = (query[..., None, :] * keys).sum(-1) * query.shape[-1] ** -0.5  # [B, W, H, S]
        if self.cross_attention:
            read = (own.softmax(-1)[..., None] * values).sum(-2)  # [B, W, H, D / H]
            beams = beams + self.output(read.flatten(2))
            query = self.heads(self.cross_query(self.cross_norm(beams)))
            read = functional.scaled_dot_product_attention(
                query.transpose(1, 2), *context[:2], attn_mask=context[2]
            )
            beams = beams + self.cross_output(read.transpose(1, 2).flatten(2))
        else:
            both = torch.cat([self.shared_scores(query, context), own], -1).softmax(-1)
            length = context[1].shape[2]
            shared, single = both[..., :length], both[..., length:]
            read = (shared.transpose(1, 2) @ context[1]).transpose(1, 2)
            beams = beams + self.output((read + (single[..., None] * values).sum(-2)).flatten(2))
        return beams + self.hidden(self.hidden_norm(beams)), keys, values


class CodeDecoder(nn.Module):
    """Encodes histories of vectors and decodes semantic IDs code by code."""

    def __init__(self, config: CodeDecoderConfig, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            dim = config.dim
            self.config = config
            self.encoder = nn.ModuleList(
                nn.TransformerEncoderLayer(
                    dim, config.num_heads, 4 * dim, 0.0, "gelu", batch_first=True, norm_first=True
                )
                for _ in range(config.num_layers)
            )
            self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
            self.context_keys_values = nn.ModuleList(
                nn.Linear(dim, 2 * dim) for _ in range(config.num_layers)
            )
            self.start = nn.Parameter(torch.randn(2, dim))
            self.codes = nn.ParameterList(torch.randn(size, dim) for size in config.level_sizes)
            self.heads = nn.ModuleList(nn.Linear(dim, size) for size in config.level_sizes)

    def encode(self, events: Tensor, lengths: Tensor) -> Context:
        """Encode histories that may be empty: events [B, T - 1, D], of which ``lengths`` count."""
        batch_size, length, _ = events.shape
        first = self.start[:1].expand(batch_size, 1, -1)
        hidden = torch.cat([first, events], dim=1)
        place = torch.arange(length + 1, device=events.device)
        padding = place[None, :] > lengths[:, None]  # [B, T]
        for layer in self.encoder:
            hidden = layer(hidden, src_key_padding_mask=padding)
        keys, values = [], []
        for projection in self.context_keys_values:
            parts = projection(hidden).unflatten(-1, (2, self.config.num_heads, -1))
            key, value = parts.permute(2, 0, 3, 1, 4)  # [B, H, T, D / H] each
            keys.append(key)
            values.append(value)
        bias = torch.zeros_like(padding, dtype=events.dtype).masked_fill_(padding, -torch.inf)
        return Context(torch.stack(keys), torch.stack(values), bias[:, None, None, :])

    def decode_step(
        self, context: Context, beams: Beams[BeamState] | None, /
    ) -> Decoded[BeamState]:
        """Score the next code of every beam, see ``recsys.retrieval.beam_search``."""
        level, past = 0, None
        if beams is None:
            hidden = self.start[1].expand(len(context.bias), 1, -1)
        else:
            level = beams.level
            hidden = functional.embedding(beams.codes, self.codes[level - 1])  # [B, W, D]
            batch = torch.arange(len(beams.parents), device=beams.parents.device)[:, None]
            past = BeamState(*(part[:, batch, beams.parents] for part in beams.state))
        keys, values = [], []
        for index, layer in enumerate(self.layers):
            shared = (context.keys[index], context.values[index], context.bias)
            own = None if past is None else BeamState(past.keys[index], past.values[index])
            hidden, key, value = layer(hidden, shared, own)
            keys.append(key)
            values.append(value)
        state = BeamState(torch.stack(keys), torch.stack(values))
        return Decoded(self.heads[level](hidden), state)

    def log_probabilities(self, context: Context, codes: Tensor) -> Tensor:
        """Score given IDs one beside the other, without a beam: codes [N, L] -> [B, N]."""
        batch_size = len(context.bias)
        decoded = self.decode_step(context, None)
        parents = torch.zeros(batch_size, len(codes), dtype=torch.int64, device=codes.device)
        total = torch.zeros(batch_size, len(codes), device=codes.device)
        for level, code in enumerate(codes.long().T):
            taken = code.expand(batch_size, -1)  # [B, N]
            logits = decoded.logits.float().log_softmax(-1).expand(-1, len(codes), -1)
            total += logits.gather(2, taken[..., None]).squeeze(2)
            if level + 1 < codes.shape[1]:
                beams = Beams(level + 1, parents, taken, decoded.state)
                decoded = self.decode_step(context, beams)
                parents = torch.arange(len(codes), device=codes.device).expand(batch_size, -1)
        return total
