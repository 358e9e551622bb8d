"""Semantic IDs code by code: embeddings of codes, the codes that may follow, a step of decoding.

Axes: M events, N item rows, L levels, K codes of a level, P prefixes, B requests, W beams, D width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Generic, Literal, NamedTuple, Protocol, TypeVar

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


NOBODY = 1 << 62
"""A prefix, read as a number, that no item has."""


class CodeChildren(nn.Module):
    """The prefixes of a catalogue's semantic IDs, sorted, level by level; no parameters.

    Args:
        codes: [N, L]; rows without an ID hold -1.
    """

    def __init__(self, codes: Tensor, level_sizes: Sequence[int]) -> None:
        super().__init__()
        self.level_sizes = tuple(level_sizes)
        known = codes[codes[:, 0] >= 0].long()
        keys = torch.zeros(len(known), dtype=torch.int64, device=codes.device)
        self.most: list[int] = []
        for level, size in enumerate(self.level_sizes):
            keys = keys * size + known[:, level]
            distinct = torch.unique(keys)
            parents = torch.unique(distinct // size, return_counts=True)[1]
            self.most.append(int(parents.max()) if len(parents) else 1)
            # Behind the last one nothing follows any prefix. Not saved: the codes are not either.
            padded = functional.pad(distinct, (0, 1), value=NOBODY)
            self.register_buffer(f"keys_{level}", padded, persistent=False)

    def forward(self, prefixes: Tensor, level: int) -> Tensor:
        """Return which codes of ``level`` some item has after each prefix, [P] -> [P, K] bool.

        No shape depends on data, so no device sync is needed.
        """
        size, keys = self.level_sizes[level], self._keys(level)
        first = torch.searchsorted(keys, prefixes * size)  # [P]
        window = torch.arange(self.most[level], device=keys.device)
        children = keys[(first[:, None] + window).clamp(max=len(keys) - 1)]  # [P, most]
        codes = (children - prefixes[:, None] * size).clamp(max=size)
        allowed = torch.zeros(len(prefixes), size + 1, dtype=torch.bool, device=keys.device)
        return allowed.scatter(1, codes, True)[:, :size]

    def _keys(self, level: int) -> Tensor:
        keys: Tensor = getattr(self, f"keys_{level}")
        return keys


StateT = TypeVar("StateT")
Context_contra = TypeVar("Context_contra", contravariant=True)


class Beams(NamedTuple, Generic[StateT]):
    """Prefixes that continue to the next level."""

    level: int
    """Codes taken so far, the level to be scored: 1 .. L - 1."""
    parents: Tensor
    """Which beam of the level before each one continues, [B, W] int64."""
    codes: Tensor
    """The code that each one took there, [B, W] int64; in range also for beams that are dead."""
    state: StateT
    """State of the step before, its beams in the order of that step."""


class Decoded(NamedTuple, Generic[StateT]):
    """Prediction of the next code."""

    logits: Tensor
    """Logits or log-probabilities, [B, W, K]; minus infinity is never chosen."""
    state: StateT
    """The model's own memory of its beams (their keys and values), handed to the next step."""
    softmax_over: Literal["level", "catalogue"] = "level"
    """Support of the softmax of a step: all codes of the level, or those that
    lead to some item of the catalogue, shown or not."""


class DecodeStep(Protocol[Context_contra, StateT]):
    """Score the next code of every beam.

    The context is what a request's beams share, encoded before the search, once: keys and values
    of the history for a decoder that attends to it, [B, ...]. The state is what differs by beam.
    A step with ``beams`` None scores the first level: [B, 1, K] of the one empty prefix. Later
    ones pick the state of ``beams.parents``, append ``beams.codes``, and score ``beams.level``.
    """

    def __call__(
        self, context: Context_contra, beams: Beams[StateT] | None, /
    ) -> Decoded[StateT]: ...
