"""Which codes follow a prefix of semantic IDs, for training against nothing but items.

Axes: N item rows, L levels, K codes of a level, P prefixes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class CodeChildren(nn.Module):
    """The prefixes of a catalogue's semantic IDs, sorted, level by level; no parameters.

    Args:
        codes: [N, L]; rows without an ID hold -1.
        level_sizes: Codes of each level.
    """

    def __init__(self, codes: Tensor, level_sizes: Sequence[int]) -> None:
        super().__init__()
        self.level_sizes = tuple(level_sizes)
        known = codes[codes[:, 0] >= 0].long()
        keys = torch.zeros(len(known), dtype=torch.int64, device=codes.device)
        for level, size in enumerate(self.level_sizes):
            keys = keys * size + known[:, level]
            # Not saved: they are the catalogue's, as its codes are.
            self.register_buffer(f"keys_{level}", torch.unique(keys), persistent=False)

    def forward(self, prefixes: Tensor, level: int) -> Tensor:
        """Say which codes of ``level`` some item has behind each prefix, [P] -> [P, K] bool.

        Args:
            prefixes: The first ``level`` codes read as one number.
            level: Codes taken, 0 .. L - 1.
        """
        size = self.level_sizes[level]
        keys: Tensor = getattr(self, f"keys_{level}")
        first = torch.searchsorted(keys, prefixes * size)  # [P]
        counts = torch.searchsorted(keys, (prefixes + 1) * size) - first
        prefix = torch.repeat_interleave(counts)  # one for each child of each prefix
        before = counts.cumsum(0) - counts
        place = torch.arange(len(prefix), device=keys.device)
        child = keys[place + (first - before)[prefix]]
        allowed = torch.zeros(len(prefixes), size, dtype=torch.bool, device=keys.device)
        return allowed.index_put((prefix, child % size), torch.ones_like(child, dtype=torch.bool))
