"""Time as a vector that changes slowly.

Learned vectors stand at equal distances on the calendar, and a time in between takes the mean of
its neighbours by nearness. So a model can learn what is on offer and in demand around a time. The
sequence model places past events there, never the moment of a query or of its label.

Axes: M times, D width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from recsys.layers.lookup import looked_up

SECONDS_PER_DAY = 86_400
LAST_DAY = 47_482
"""Days from 1970 to 2100."""


class Calendar(nn.Module):
    """Turns unix seconds into vectors; times after all that training saw count as the last seen.

    Frozen, as below an adapter, it sees no further times: the base would no longer be what it was.
    """

    def __init__(self, dim: int, days: float, *, scale: float = 0.0) -> None:
        """Make the table."""
        super().__init__()
        if not 1 <= days <= LAST_DAY:
            raise ValueError(f"days must be in [1, {LAST_DAY}], got {days}")
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
