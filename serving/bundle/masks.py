"""Masks of filters that requests repeat, a bit an item row.

Axes: N item rows.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]
Rows = NDArray[np.int64]
MAX_BYTES = 64 << 20
"""Limit of all masks of one bundle in one process: 536 of a million rows."""
MAX_MASKS = 4_096


class PackedMasks:
    """The masks used last, each made once; safe to share between threads."""

    def __init__(self, num_rows: int, max_bytes: int = MAX_BYTES) -> None:
        self._num_rows = num_rows
        self.max_masks = max(1, min(MAX_MASKS, max_bytes // (num_rows // 8 + 1)))
        self._packed: OrderedDict[Hashable, NDArray[np.uint8]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._packed)

    def get(self, key: Hashable, make: Callable[[], Mask]) -> Mask:
        """Return a mask that the caller may write into, [N]; ``make`` runs where it is new."""
        packed = self._known(key, make)
        return np.unpackbits(packed, count=self._num_rows).view(np.bool_)

    def at(self, rows: Rows, key: Hashable, make: Callable[[], Mask]) -> Mask:
        """Read the mask of some rows, [n], without unpacking all of it."""
        packed = self._known(key, make)
        bits: Mask = (packed[rows >> 3] >> (7 - (rows & 7)).astype(np.uint8)) & 1 != 0
        return bits

    def _known(self, key: Hashable, make: Callable[[], Mask]) -> NDArray[np.uint8]:
        with self._lock:
            if (packed := self._packed.get(key)) is not None:
                self._packed.move_to_end(key)
                return packed
        packed = np.packbits(make())
        with self._lock:
            self._packed[key] = packed
            if len(self._packed) > self.max_masks:
                self._packed.popitem(last=False)
        return packed
