"""Features of one query's candidates and the ranker's network by compiled functions; see op.py.

Axes: C candidates, G features of a candidate, N item rows, D width of a field, W width of all
fields, E experts, F their inner width, T tasks, P places of a history, S sources, M events.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from recsys.kernels.one_query.op import (
    INTEGER,
    POINTER,
    Field,
    Fields,
    Floats,
    Rows,
    contiguous,
    functions,
)

PANEL = 16
"""Outputs of a product that are computed together."""


def panels(weight: NDArray[np.float32]) -> Floats:
    """Arrange weights [O, I] as the products read them, [O / 16, I, 16], filled up with zeros."""
    missing = -len(weight) % PANEL
    whole = np.pad(weight, ((0, missing), (0, 0))).reshape(-1, PANEL, weight.shape[1])
    return np.ascontiguousarray(whole.transpose(0, 2, 1), np.float32)


def filled_up(bias: NDArray[np.float32], size: int | None = None) -> Floats:
    """Fill a bias up with zeros to whole panels, of ``size`` outputs if they are more."""
    number = max(len(bias), size or 0)
    return np.pad(bias.astype(np.float32), (0, number - len(bias) + -number % PANEL))


class NetworkOfOne:
    """A ranker's folded network."""

    def __init__(self, *, dim: int, num_tasks: int, **fields: Field) -> None:
        """Take the fields of ``Network`` in ranker.c, in their order after these two."""
        self._dim, self._num_tasks = dim, num_tasks
        self._fields = Fields(dim=dim, num_tasks=num_tasks, **fields)

    def keys(self, values: Floats) -> Floats:
        """Turn a history's values [P, D] into keys and, last, parts of logits, [P, D + 1]."""
        width = -(-(self._dim + 1) // PANEL) * PANEL
        keys = np.empty((len(values), width), np.float32)
        _loaded().keys(self._fields.address, values.ctypes.data, len(values), keys.ctypes.data)
        return keys[:, : self._dim + 1]

    def logits(
        self,
        reader: tuple[Floats, Floats, Floats, Floats],
        rows: Rows,
        dense: Floats | None,
        size: int,
    ) -> Floats:
        """Predict candidates, [size, T], of which the first C are theirs and the rest 0.

        Args:
            reader: Keys [P, D + 1], offsets [P], values [P, D] and fields [W - ...].
            dense: Features, [C, G].
        """
        keys, offsets, values, fields = reader
        rows = np.ascontiguousarray(rows, np.int64)
        predicted = np.zeros((size, self._num_tasks), np.float32)
        steps = (0, 0) if dense is None else (dense.strides[0] // 4, dense.strides[1] // 4)
        number = _loaded().logits(
            self._fields.address,
            keys.ctypes.data,
            keys.strides[0] // 4,
            offsets.ctypes.data,
            values.ctypes.data,
            len(keys),
            np.ascontiguousarray(fields).ctypes.data,
            rows.ctypes.data,
            len(rows),
            None if dense is None else dense.ctypes.data,
            *steps,
            predicted.ctypes.data,
        )
        if number < 0:
            raise MemoryError(f"there is no memory for the network over {len(rows)} candidates")
        return predicted


def _loaded() -> Any:
    """Return the functions for a caller that has looked whether they are there."""
    found = functions()
    assert found is not None
    return found


class FeaturesOfOne:
    """Features of the candidates of one query."""

    def __init__(
        self, tables: Sequence[tuple[Tensor, int]], *, num_features: int, **fields: Field
    ) -> None:
        """Take the other fields of ``Features`` in ranker.c, in their order.

        Args:
            tables: Of each kind of cosine the vectors and their width, 0 for cosines of every two.
        """
        self._num_features = num_features
        kept = tuple(contiguous(table) for table, _ in tables)
        shapes = [(table.shape[1], width) for table, (_, width) in zip(kept, tables, strict=True)]
        own: dict[str, Field] = {"shapes": np.array(shapes, np.int64), "tables": kept}
        self._fields = Fields(num_features=num_features, **fields, **own)

    def features(
        self,
        merged: tuple[Rows, Floats, Rows, Floats, Floats, Floats],
        chosen: Sequence[int],
        history: Tensor,
    ) -> Floats | None:
        """Compute the features of a merged list, [G, C].

        Args:
            merged: Fields of a ``MergedOne``.
            chosen: Number of each list's source.
        """
        found = functions()
        if found is None:
            return None
        rows, scores, ranks, *parts = merged
        kept = [
            np.ascontiguousarray(part)
            for part in (scores, rows, ranks, parts[0], parts[1], parts[2])
        ]
        listed = (POINTER * 6)(*(part.ctypes.data for part in kept))
        columns = np.zeros((self._num_features, len(rows)), np.float32)
        number = found.features(
            self._fields.address,
            listed,
            (INTEGER * len(chosen))(*chosen),
            len(chosen),
            len(rows),
            history.data_ptr(),
            history.shape[0],
            columns.ctypes.data,
        )
        return None if number < 0 else columns
