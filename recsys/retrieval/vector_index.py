"""The interface of indexes of item vectors; ``index.py`` makes them.

Apart from the indexes, so that what only searches one does not depend on how they are built.

Axes: B queries, D width, k list length.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from recsys.data.top_k import ItemMask, OneList, TopK


class VectorIndex(Protocol):
    """Item vectors that are searched by inner product; many threads may search."""

    @property
    def dim(self) -> int: ...

    @property
    def num_item_rows(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    def search(self, queries: Tensor, k: int, mask: ItemMask | None = None) -> TopK:
        """Find the k best items of each query [B, D] among those the mask allows, [B, k]."""
        ...

    def search_one(self, query: Tensor, k: int, mask: ItemMask) -> OneList:
        """Find the k best items of one query [D], which is on the host.

        Its product rounds otherwise than a batch's, so items whose scores differ by no more than
        rounding may be in another order.
        """
        ...
