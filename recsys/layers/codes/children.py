"""Which codes follow a prefix of semantic IDs, for training against nothing but items.

Axes: N item rows, L levels, K codes of a level, P prefixes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

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
        """Return which codes of ``level`` some item has behind each prefix, [P] -> [P, K] bool.

        No shape depends on data, so that a GPU is not waited for.
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
