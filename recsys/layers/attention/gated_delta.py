"""A block of linear attention by the gated delta rule, whose state has one size for any history.

Yang et al. 2024 (Gated Delta Networks, arXiv:2412.06464): each head keeps a matrix of values under
keys; an event replaces what is under its key, and gates let the rest fade. Queries, keys and values
are mixed with those of the three events before by a causal convolution.

Axes: M events of all sequences, D width, H heads, E = D / H, W events that a convolution reads.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from recsys.kernels.gated_delta.op import gated_delta
from recsys.kernels.gated_delta.reference import DeltaInputs
from recsys.layers.attention.softmax import BlockConfig, Layout
from recsys.layers.feed_forward import feed_forward

WIDTH = 4
FASTEST, SLOWEST = 1e-2, 1e-4
"""First decays of the heads per event, log-spaced: memories of a hundred to ten thousand events."""


class BlockState(NamedTuple):
    """What a block keeps of the events of one history."""

    tail: Tensor
    """[W - 1, 3 D] projections of the latest events, for the convolution."""
    memory: Tensor
    """[1, H, E, E] values under keys."""


class GatedDeltaBlock(nn.Module):
    """The gated delta rule and a feed-forward layer, each added to its input."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        dim, heads = config.dim, config.num_heads
        self.heads = (heads, dim // heads)
        self.input_norm = nn.LayerNorm(dim)
        self.projection = nn.Linear(dim, 3 * dim)
        self.convolution = nn.Parameter(torch.zeros(WIDTH, 3 * dim))
        self.gates = nn.Linear(dim, 2 * heads)
        self.output_gate = nn.Linear(dim, dim)
        self.read_norm = nn.LayerNorm(dim // heads)
        self.output = nn.Linear(dim, dim)
        self.hidden = feed_forward(dim, config.hidden_dim, config.dropout)
        self.dropout = nn.Dropout(config.dropout)
        with torch.no_grad():
            self.convolution.normal_(std=0.5 / math.sqrt(WIDTH))
            self.convolution[0] += 1  # the event itself
            decay = torch.logspace(math.log10(SLOWEST), math.log10(FASTEST), heads)
            self.gates.weight[:heads] *= 0.1
            self.gates.bias[:heads] = torch.log(torch.expm1(decay))

    def forward(self, events: Tensor, layout: Layout) -> Tensor:
        """Let each event read itself and those before it, [M, D] -> [M, D]."""
        normed = self.input_norm(events)
        projected = self.projection(normed)
        mixed = projected * self.convolution[0]
        for back in range(1, WIDTH):
            earlier = functional.pad(projected, (0, 0, back, 0))[: len(projected)]
            inside = (layout.places >= back).unsqueeze(1)
            mixed = mixed + torch.where(inside, earlier, 0) * self.convolution[back]
        inputs = self._rule_inputs(normed, mixed)
        read, _ = gated_delta(inputs, layout.offsets, layout.length)
        return self._written(events, normed, read)

    def advance(self, events: Tensor, state: BlockState | None) -> tuple[Tensor, BlockState]:
        """Read further events of one history, [M, D] -> [M, D], at least one."""
        normed = self.input_norm(events)
        projected = self.projection(normed)
        before = projected.new_zeros(WIDTH - 1, projected.shape[1]) if state is None else state.tail
        joined, num = torch.cat([before, projected]), len(events)
        first = WIDTH - 1
        mixed = joined[first:] * self.convolution[0]
        for back in range(1, WIDTH):
            mixed = mixed + joined[first - back : first - back + num] * self.convolution[back]
        memory = None if state is None else state.memory
        offsets = torch.tensor([0, num], device=events.device)
        read, memory = gated_delta(self._rule_inputs(normed, mixed), offsets, num, memory)
        # A view would keep the whole history's projections.
        tail = joined[-first:].clone()
        return self._written(events, normed, read), BlockState(tail, memory)

    def _rule_inputs(self, normed: Tensor, mixed: Tensor) -> DeltaInputs:
        """Name what the rule reads; its sums over a history are in float32."""
        query, key, value = (
            part.float().view(-1, *self.heads) for part in functional.silu(mixed).chunk(3, dim=1)
        )
        decay, beta = self.gates(normed).float().chunk(2, dim=1)  # [M, H]
        return DeltaInputs(
            functional.normalize(query, dim=2),
            functional.normalize(key, dim=2),
            value,
            -functional.softplus(decay),
            beta.sigmoid(),
        )

    def _written(self, events: Tensor, normed: Tensor, read: Tensor) -> Tensor:
        """Gate what was read, [M, H, E], and add it and the feed-forward layer, [M, D]."""
        gate = functional.silu(self.output_gate(normed))
        read = self.output(self.read_norm(read.to(events.dtype)).flatten(1) * gate)
        events = events + self.dropout(read)
        out: Tensor = events + self.dropout(self.hidden(events))
        return out
