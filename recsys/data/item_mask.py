"""Which items a request may show: one bitset over item rows.

Filters, stock, rules and domain are compiled into one mask per request; exact search, FAISS, the
trie and the fallbacks all take that mask and nothing else. Bits are little-endian inside a byte,
the layout that FAISS's bitmap selector reads, so a mask goes there without a copy.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class ItemMask:
    """An immutable set of item rows in [1, num_item_rows); row 0 (padding) is never in it."""

    def __init__(self, allowed: NDArray[np.bool_]) -> None:
        """Take a boolean per item row, [num_item_rows]."""
        if allowed.ndim != 1 or allowed.dtype != np.bool_:
            raise ValueError(
                f"an item mask is one boolean per item row, got {allowed.dtype} {allowed.shape}"
            )
        self._allowed = allowed.copy()
        self._allowed[:1] = False
        self._allowed.flags.writeable = False

    @classmethod
    def all(cls, num_item_rows: int) -> ItemMask:
        return cls(np.ones(num_item_rows, np.bool_))

    @classmethod
    def none(cls, num_item_rows: int) -> ItemMask:
        return cls(np.zeros(num_item_rows, np.bool_))

    @property
    def num_item_rows(self) -> int:
        return len(self._allowed)

    @property
    def bytes(self) -> NDArray[np.uint8]:
        """The packed bits, [ceil(num_item_rows / 8)], bit i of byte j is row 8 j + i."""
        return np.packbits(self._allowed, bitorder="little")

    def __and__(self, other: ItemMask) -> ItemMask:
        return ItemMask(self._allowed & self._same_size(other))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ItemMask) and np.array_equal(self._allowed, other._allowed)

    __hash__ = None  # type: ignore[assignment]

    def _same_size(self, other: ItemMask) -> NDArray[np.bool_]:
        if other.num_item_rows != self.num_item_rows:
            raise ValueError(
                f"masks of {self.num_item_rows} and {other.num_item_rows} item rows do not "
                "combine; build both from the same bundle"
            )
        return other._allowed

    def allows(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tell for each row whether it may be shown; rows outside the catalogue may not."""
        inside = (rows >= 0) & (rows < self.num_item_rows)
        return inside & self._allowed[np.where(inside, rows, 0)]

    def count(self) -> int:
        return int(np.count_nonzero(self._allowed))

    def rows(self) -> NDArray[np.int64]:
        """List the allowed rows in ascending order."""
        return np.flatnonzero(self._allowed)

    def as_bool(self) -> Tensor:
        """Return one boolean per item row, [num_item_rows]."""
        return torch.from_numpy(self._allowed.copy())
