"""Features of one query's candidates and the ranker's network by compiled functions; see op.py.

Axes: C candidates, G features of a candidate, N item rows, D width of a field, W width of all
fields, E experts, F their inner width, T tasks, P places of a history, S sources, M events.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from recsys.data.top_k import OneList, memory_address
from recsys.kernels.one_query.op import (
    BlendOfOne,
    Field,
    Fields,
    Floats,
    Rows,
    contiguous,
    functions,
    integers,
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

    def __init__(self, *, dim: int, num_tasks: int, num_recency: int, **fields: Field) -> None:
        """Take the fields of ``Network`` in ranker.c; but for these three, in their order."""
        self._num_tasks = num_tasks
        self._wide = -(-(dim + 1) // PANEL) * PANEL
        self.fields = Fields(dim=dim, num_tasks=num_tasks, **fields, num_recency=num_recency)

    def keys(self, values: Floats) -> Floats:
        """Turn a history's values [P, D] into keys and, after them, parts of logits, [P, wide]."""
        keys = np.empty((len(values), self._wide), np.float32)
        kept = memory_address(np.ascontiguousarray(values))
        _loaded().keys(self.fields.address, kept, len(values), memory_address(keys))
        return keys

    def logits(
        self,
        reader: tuple[Floats, Floats, Floats, Floats],
        rows: Tensor,
        dense: Tensor | None,
        size: int,
    ) -> Floats:
        """Predict candidates, [size, T], of which the first C are theirs and the rest 0.

        Args:
            reader: Keys [P, wide], offsets [P], values [P, D] and fields [W - ...].
            dense: Features, [C, G].
        """
        keys, offsets, values, fields = reader
        rows = rows.contiguous()
        predicted = np.zeros((size, self._num_tasks), np.float32)
        number = _loaded().logits(
            self.fields.address,
            memory_address(keys),
            self._wide,
            memory_address(offsets),
            memory_address(values),
            len(keys),
            memory_address(np.ascontiguousarray(fields)),
            rows.data_ptr(),
            rows.shape[0],
            None if dense is None else dense.data_ptr(),
            *((0, 0) if dense is None else dense.stride()),
            memory_address(predicted),
        )
        if number < 0:
            raise MemoryError(f"there is no memory for the network over {len(rows)} candidates")
        return predicted


class TasksOfOne:
    """Combines a ranker's logits into one score a candidate."""

    def __init__(self, **fields: Field) -> None:
        """Take the fields of ``Tasks`` in ranker.c, in their order."""
        self.fields = Fields(**fields)

    def scores(self, logits: Floats) -> Floats:
        """Combine logits, [C, T] -> [C]."""
        scores = np.empty(len(logits), np.float32)
        address = memory_address(logits)
        _loaded().combine(self.fields.address, address, len(logits), memory_address(scores))
        return scores


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
        kept = tuple(contiguous(table) for table, _ in tables)
        shapes = [(table.shape[1], width) for table, (_, width) in zip(kept, tables, strict=True)]
        own: dict[str, Field] = {"shapes": np.array(shapes, np.int64), "tables": kept}
        self.fields = Fields(num_features=num_features, **fields, **own)


class RankingOfOne:
    """Ranks the candidates of one query: merges lists, and orders their first by the network."""

    def __init__(
        self,
        blend: BlendOfOne,
        features: FeaturesOfOne,
        network: NetworkOfOne,
        tasks: TasksOfOne,
        num_candidates: int,
    ) -> None:
        self.parts = (blend, features, network, tasks)
        addresses = [part.fields.address for part in self.parts]
        self._ranking = integers([*addresses, num_candidates])

    def rank(
        self,
        lists: Sequence[OneList],
        chosen: Sequence[int],
        demand: tuple[float, float, float],
        history: Tensor,
        fields: Floats,
        k: int,
    ) -> tuple[Rows, Floats, Rows, Floats] | None:
        """Rank k items: rows, scores, ranks and contributions; None if one is not finite.

        Args:
            chosen: Number of each list's source.
            demand: Weights of an item's demand, as of a blend.
            fields: Of the query's features, see `NetworkOfOne.logits`.
        """
        listed = np.concatenate([one.scores for one in lists], dtype=np.float32)
        rows = np.concatenate([one.item_rows for one in lists], dtype=np.int64)
        shape = taken, _ = min(k, len(rows)), len(lists)
        best, scores = np.empty(taken, np.int64), np.empty(taken, np.float32)
        ranks, shares = np.empty(shape, np.int64), np.empty(shape, np.float32)
        given = [len(lists), history.data_ptr(), history.shape[0], memory_address(fields), taken]
        given += [memory_address(listed), memory_address(rows)]
        given += [*(len(one.item_rows) for one in lists), *chosen]
        made: tuple[NDArray[Any], ...] = (scores, best, ranks, shares)
        weights = struct.pack("3d", *demand)
        out = map(memory_address, made)
        number = _loaded().rank(self._ranking, integers(given), weights, *out)
        if number < 0:
            return None
        return best[:number], scores[:number], ranks[:number], shares[:number]
