"""Embeddings of semantic IDs: of events by all their codes, of tokens by the code before them.

Axes: M events, L levels, D width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


class CodeTokens(nn.Module):
    """Tables of codes."""

    def __init__(self, dim: int, level_sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.level_sizes = level_sizes
        # Each level has a row for items without an ID, its first.
        self.of_events = nn.Embedding(sum(level_sizes) + len(level_sizes), dim)
        self.taken = nn.Embedding(sum(level_sizes), dim)
        self.levels = nn.Parameter(torch.randn(len(level_sizes), dim) / math.sqrt(dim))
        for table in (self.of_events, self.taken):
            nn.init.normal_(table.weight, std=1 / math.sqrt(dim))
        shift = torch.tensor([1, *(size + 1 for size in level_sizes[:-1])]).cumsum(0)
        self.shift: Tensor
        self.register_buffer("shift", shift, persistent=False)

    def step(self, prefixes: Tensor, codes: Tensor, level: int) -> Tensor:
        """Append a code of ``level`` to prefixes read as numbers; 0 is the empty one."""
        return prefixes * self.level_sizes[level] + codes

    def events(self, codes: Tensor) -> Tensor:
        """Add up the codes of events, [M, L] -> [M, D]; -1 is no ID."""
        return functional.embedding_bag(codes + self.shift, self.of_events.weight, mode="sum")

    def token(self, level: int, taken: Tensor) -> Tensor:
        """Embed the token that a code of ``level`` is predicted from, [...] -> [..., D]."""
        token = self.levels[level].expand(*taken.shape, -1)
        if level == 0:
            return token
        offset = sum(self.level_sizes[: level - 1])
        return token + functional.embedding(taken + offset, self.taken.weight)
