"""The truth beside the kernel: every score in float64, then the rule of `recsys.data.top_k`."""

from __future__ import annotations

import torch
from torch import Tensor

from recsys.data.top_k import GROUP, NO_ROW, TopK


def reference_top_k(queries: Tensor, items: Tensor, k: int, words: Tensor) -> TopK:
    """Rank by float64 inner products; same arguments and reply as `fused_top_k`, any device."""
    num_items = items.shape[0]
    bits = torch.arange(GROUP, device=words.device, dtype=torch.int32)
    allowed = ((words[..., None] >> bits) & 1).bool().flatten(-2)[..., :num_items]
    # Rounded to float32, because a matrix product gives equal items scores a few bits apart.
    scores = (queries.double() @ items.double().T).float()  # [B, N]
    scores = scores.masked_fill(~allowed, -torch.inf)
    best, order = scores.sort(dim=1, descending=True, stable=True)
    best, order = best[:, :k], order[:, :k]
    order = order.masked_fill(best == -torch.inf, NO_ROW)
    if short := k - best.shape[1]:
        best = torch.nn.functional.pad(best, (0, short), value=-torch.inf)
        order = torch.nn.functional.pad(order, (0, short), value=NO_ROW)
    return TopK(best, order)
