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
        self._keep(allowed.copy(), None)

    def _keep(self, allowed: NDArray[np.bool_], left_out: NDArray[np.int64] | None) -> None:
        allowed[:1] = False
        allowed.flags.writeable = False
        self._allowed, self._left_out = allowed, left_out
        self._count: int | None = None

    @classmethod
    def all_but(cls, num_item_rows: int, rows: NDArray[np.int64]) -> ItemMask:
        """Leave out a few rows; scores are then blanked by these alone, not by all rows."""
        allowed = np.ones(num_item_rows, np.bool_)
        allowed[rows] = False
        mask = cls.__new__(cls)
        mask._keep(allowed, rows)
        return mask

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
        """Return for each row whether it may be shown; rows outside the catalogue may not."""
        if len(rows) and rows.min() >= 0 and rows.max() < self.num_item_rows:
            return self._allowed[rows]
        inside = (rows >= 0) & (rows < self.num_item_rows)
        return inside & self._allowed[np.where(inside, rows, 0)]

    def count(self) -> int:
        if self._count is None:
            self._count = int(np.count_nonzero(self._allowed))
        return self._count

    def rows(self) -> NDArray[np.int64]:
        return np.flatnonzero(self._allowed)

    def as_bool(self) -> Tensor:
        """Return one boolean per item row, [num_item_rows]."""
        return torch.from_numpy(self._allowed.copy())

    def blank(self, scores: NDArray[np.float32]) -> None:
        """Write -inf over the scores of rows that may not be shown, [num_item_rows], in place."""
        if len(scores) != self.num_item_rows:
            raise ValueError(
                f"the item mask covers {self.num_item_rows} item rows, the catalogue has "
                f"{len(scores)}; build the mask from the same bundle"
            )
        if self._left_out is None:
            scores[~self._allowed] = -np.inf
        else:
            scores[self._left_out] = -np.inf
            scores[:1] = -np.inf
