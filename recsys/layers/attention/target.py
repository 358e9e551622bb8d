"""Target attention: what of a user's history speaks for this candidate (DIN, arXiv:1706.06978).

DIN scores each pair by a small network; here by a dot product of projections, because 300
candidates times 50 events would cost that network more than all else of a ranker. The keys are made
once for a user. A learned place comes before every history, so that an empty one is read too.

Axes: B users, C candidates of each, T places of a history, D width, A width of keys.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from recsys.data.batch import Jagged


class ReadableHistory(NamedTuple):
    """Histories made ready for their candidates."""

    keys: Tensor
    """[B, T + 1, A], the learned place first."""
    values: Tensor
    """[B, T + 1, D]."""
    mask: Tensor
    """[B, 1, T + 1], 0 where there is an event and -inf where there is none."""


class TargetAttention(nn.Module):
    """Candidates attend to the history of their user."""

    def __init__(self, dim: int, key_dim: int, max_history: int) -> None:
        super().__init__()
        self.max_history = max_history
        self.query = nn.Linear(dim, key_dim)
        self.key = nn.Linear(dim, key_dim)
        self.recency = nn.Embedding(max_history, dim)
        self.nothing = nn.Parameter(torch.zeros(dim))
        nn.init.normal_(self.recency.weight, std=0.1 / math.sqrt(dim))

    def prepare(self, history: Jagged, inputs: Tensor) -> ReadableHistory:
        """Pad histories, the latest event last, and compute their keys.

        Args:
            inputs: Vector of each event, [M, D].
        """
        length, lengths = self.max_history, history.lengths()
        column = torch.arange(length, device=inputs.device)
        present = column >= length - lengths[:, None]  # [B, T]
        # Absent places read the learned one, which is there whatever the batch.
        source = torch.where(present, history.offsets[1:, None] - length + column + 1, 0)
        padded = torch.cat([self.nothing[None].to(inputs.dtype), inputs])
        # Not by [], whose gradient adds up the absent places one after the other.
        values = padded.index_select(0, source.flatten()).view(*source.shape, -1)
        values = values + self.recency.weight.flip(0)  # [B, T, D]
        first = self.nothing.expand(len(lengths), 1, -1).to(values.dtype)
        values = torch.cat([first, values], dim=1)
        mask = torch.zeros(present.shape, device=inputs.device).masked_fill(~present, -torch.inf)
        mask = nn.functional.pad(mask, (1, 0))[:, None]
        return ReadableHistory(self.key(values), values, mask)

    def prepare_one(self, inputs: Tensor) -> ReadableHistory:
        """Make keys of one history alone, without places for events that are not there.

        Args:
            inputs: Vectors of at most max_history events, oldest first, [T, D].
        """
        recency = self.recency.weight[: len(inputs)].flip(0)
        values = torch.cat([self.nothing[None], inputs + recency])[None]  # [1, T + 1, D]
        mask = torch.zeros(1, 1, len(inputs) + 1, device=inputs.device)
        return ReadableHistory(self.key(values), values, mask)

    def forward(self, candidates: Tensor, history: ReadableHistory) -> Tensor:
        """Read for each candidate, [B, C, D] -> [B, C, D]."""
        queries = self.query(candidates) * history.keys.shape[2] ** -0.5  # [B, C, A]
        logits = torch.baddbmm(
            history.mask.to(queries.dtype), queries, history.keys.transpose(1, 2)
        )
        read: Tensor = torch.bmm(logits.softmax(2).to(history.values.dtype), history.values)
        return read
