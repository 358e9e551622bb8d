"""Position-bias model of training: a shown item is examined with a probability of its slot.

p(feedback | slot, item) = p(examined | slot) p(feedback | item): the examination hypothesis
(Richardson et al. 2007), learned with the model (PAL, Guo et al., RecSys 2019). Serving uses the
second factor. A product fixes no scale, so the first slot counts as always examined.

Axes: M shown items, T tasks, S slots.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Examination(nn.Module):
    """Examination probability of each slot, relative to the first."""

    def __init__(self, num_slots: int) -> None:
        super().__init__()
        if num_slots < 1:
            raise ValueError(f"num_slots must be >= 1, got {num_slots}")
        # Starts at 1/2; at 1 there would be no gradient.
        self.odds = nn.Parameter(torch.zeros(num_slots - 1))

    def curve(self) -> Tensor:
        """Examination probability of each slot, the first one's 1, [S]."""
        return functional.pad(torch.sigmoid(self.odds), (1, 0), value=1.0)

    def forward(self, logits: Tensor, slots: Tensor, labels: Tensor) -> Tensor:
        """Negative log-likelihood of feedback in its slot, [M, T].

        Args:
            logits: Of feedback on an examined item, [M, T].
            slots: From 0, the top of the list, [M].
            labels: 0 or 1, [M, T].
        """
        slots = slots.clamp(max=len(self.odds))
        examined = functional.pad(functional.logsigmoid(self.odds), (1, 0))[slots, None]
        ignored = functional.pad(functional.logsigmoid(-self.odds), (1, 0), value=-torch.inf)
        happened = examined + functional.logsigmoid(logits)
        # 1 - e p = (1 - e) + e (1 - p), without cancelling where e p is near 1.
        absent = torch.logaddexp(
            ignored[slots, None].expand_as(logits), examined + functional.logsigmoid(-logits)
        )
        return -(labels * happened + (1 - labels) * absent)
