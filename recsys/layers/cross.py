"""Explicit feature interactions: the cross layers of DCN-v2 (Wang et al. 2021, arXiv:2008.13535).

Axes: M rows, W width of all fields together.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from recsys.layers.wide_linear import WideLinear


class CrossNetwork(nn.Module):
    """Layers x' = x0 * (W x + b) + x, so that each adds one order of interaction."""

    def __init__(self, dim: int, num_layers: int) -> None:
        super().__init__()
        if dim < 1 or num_layers < 0:
            raise ValueError(
                f"a cross network needs dim >= 1 and num_layers >= 0, got {dim=}, {num_layers=}"
            )
        self.layers = nn.ModuleList(WideLinear(dim, dim) for _ in range(num_layers))

    def forward(self, fields: Tensor) -> Tensor:
        """Cross the fields of each row, [M, W] -> [M, W]."""
        state = fields
        for layer in self.layers:
            state = torch.addcmul(state, fields, layer(state))
        return state
