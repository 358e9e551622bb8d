"""Dropout whose draws cost a CPU a tenth of torch's."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

WORD = torch.iinfo(torch.int64)
BYTES = 8
LEVELS = 256


class Dropout(nn.Dropout):
    """Zeroes a share of the values in training, a multiple of 1/256 on a CPU, and scales the rest.

    A CPU draws words of the global generator, eight values each: one draw for each value takes an
    eighth of the training step of a model of long histories.
    """

    def forward(self, values: Tensor) -> Tensor:
        """Drop some of any values, same shape."""
        kept = LEVELS - round(LEVELS * self.p)
        if values.device.type != "cpu" or not self.training or not 0 < kept < LEVELS:
            return functional.dropout(values, self.p, self.training)
        words = torch.empty(-(-values.numel() // BYTES), dtype=torch.int64)
        drawn = words.random_(WORD.min, None).view(torch.uint8)[: values.numel()]
        scales = (drawn < kept).to(values.dtype).mul_(LEVELS / kept)
        return values * scales.view(values.shape)
