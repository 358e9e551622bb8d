"""Embeddings of semantic IDs: of events by all their codes, of tokens by the codes taken so far.

A code means little apart from those before it, so that a hashed table of whole prefixes may stand
beside the codes' own (prefix n-grams: Zheng et al. 2025, arXiv:2504.02137).

Axes: M events, L levels, D width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from recsys.layers.embedding.growing_vocabulary import hashed_rows


class CodeTokens(nn.Module):
    """Tables of codes, and of prefixes where wanted.

    Args:
        dim: D.
        level_sizes: Codes of each level.
        prefix_rows: Rows of the hashed table of prefixes; 0 for none.
    """

    def __init__(self, dim: int, level_sizes: tuple[int, ...], prefix_rows: int) -> None:
        super().__init__()
        self.level_sizes = level_sizes
        # Each level has a row for items without an ID, its first.
        self.of_events = nn.Embedding(sum(level_sizes) + len(level_sizes), dim)
        self.taken = nn.Embedding(sum(level_sizes), dim)
        self.levels = nn.Parameter(torch.randn(len(level_sizes), dim) / math.sqrt(dim))
        for table in (self.of_events, self.taken):
            nn.init.normal_(table.weight, std=1 / math.sqrt(dim))
        self.prefixes = None
        if prefix_rows:
            self.prefixes = nn.Embedding(prefix_rows, dim)
            nn.init.normal_(self.prefixes.weight, std=0.3 / math.sqrt(dim))
        shift = torch.tensor([1, *(size + 1 for size in level_sizes[:-1])]).cumsum(0)
        self.shift: Tensor
        self.register_buffer("shift", shift, persistent=False)

    def step(self, prefixes: Tensor, codes: Tensor, level: int) -> Tensor:
        """Append a code of ``level`` to prefixes read as numbers; 0 is the empty one."""
        return prefixes * self.level_sizes[level] + codes

    def ids(self, codes: Tensor) -> Tensor:
        """Read semantic IDs as numbers, [..., L] -> [...]; -1 where there is none."""
        number = torch.zeros_like(codes[..., 0])
        for level in range(codes.shape[-1]):
            number = self.step(number, codes[..., level], level)
        return torch.where(codes[..., 0] < 0, -1, number)

    def events(self, codes: Tensor) -> Tensor:
        """Add up the codes of events, and their prefixes, [M, L] -> [M, D]; -1 is no ID."""
        vectors = functional.embedding_bag(codes + self.shift, self.of_events.weight, mode="sum")
        if self.prefixes is None:
            return vectors
        known = (codes[:, :1] >= 0).to(vectors.dtype)
        prefix = torch.zeros_like(codes[:, 0])
        for level in range(len(self.level_sizes)):
            prefix = self.step(prefix, codes[:, level], level)
            vectors = vectors + known * self._of_prefixes(prefix, level + 1)
        return vectors

    def token(self, level: int, taken: Tensor, prefixes: Tensor) -> Tensor:
        """Make the token that asks for a code of ``level``, [...] -> [..., D].

        Args:
            level: 0 .. L - 1.
            taken: The code before it; not read at the first level.
            prefixes: All codes before it, read as one number.
        """
        token = self.levels[level].expand(*taken.shape, -1)
        if level == 0:
            return token
        offset = sum(self.level_sizes[: level - 1])
        token = token + functional.embedding(taken + offset, self.taken.weight)
        return token if self.prefixes is None else token + self._of_prefixes(prefixes, level)

    def _of_prefixes(self, prefixes: Tensor, length: int) -> Tensor:
        """Look up prefixes of ``length`` codes, [...] -> [..., D]."""
        assert self.prefixes is not None
        rows = hashed_rows(prefixes, len(self.prefixes.weight), 1, seed=length)[..., 0]
        found: Tensor = self.prefixes(rows)
        return found
