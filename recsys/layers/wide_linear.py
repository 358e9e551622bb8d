"""A linear layer that serves by oneDNN on a CPU, whose products fill wide registers.

Torch multiplies float32 by MKL, which fills half of an AMD processor's 512-bit registers:
[320, 128] x [128, 128] takes it 107 us of one Zen 5 core, oneDNN 56, with the same bits. A call of
oneDNN's costs 10 us more, so narrow layers go without: [224, 64] x [64, 128] takes 39 us, not 50.

Axes: M rows, I and O a layer's inputs and outputs.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional


def _has_onednn() -> bool:
    # What torch's own compiler calls; no public function multiplies plain tensors by oneDNN.
    return bool(torch._C._has_mkldnn) and hasattr(torch.ops.mkldnn, "_linear_pointwise")


HAS_ONEDNN = _has_onednn()


NARROW = 128 * 128
"""Weights of a layer below which torch's own product takes less time."""


def _is_plain(rows: Tensor, weight: Tensor) -> bool:
    """Check whether to use torch's own product."""
    if weight.numel() < NARROW:
        return True
    other = rows.device.type != "cpu" or rows.dtype != torch.float32 or not HAS_ONEDNN
    return other or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu")


def wide_product(
    rows: Tensor, weight: Tensor, bias: Tensor | None, rectified: bool = False
) -> Tensor:
    """Multiply as ``functional.linear`` does, [M, I] and [O, I] -> [M, O]."""
    if _is_plain(rows, weight):
        product = functional.linear(rows, weight, bias)
        return functional.relu(product, inplace=not product.requires_grad) if rectified else product
    how = "relu" if rectified else "none"
    product = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, how, [], "")
    return cast("Tensor", product)


class WideLinear(nn.Linear):
    """nn.Linear that uses ``wide_product``; the same weights and gradients."""

    def forward(self, rows: Tensor) -> Tensor:
        """Multiply rows, [M, I] -> [M, O]."""
        return wide_product(rows, self.weight, self.bias)


class CrossNetwork(nn.Module):
    """Cross layers of DCN-v2 (Wang et al. 2021, arXiv:2008.13535).

    Layers x' = x0 * (W x + b) + x, so that each adds one order of interaction.
    """

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
