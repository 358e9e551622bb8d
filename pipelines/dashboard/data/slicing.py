"""One way to cut queries into slices.

Axes: M queries, R memberships, C slices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipelines.dashboard.data.answers import Rows
from recsys.data.dataset import concatenated_ranges
from recsys.evaluation.slices import Slice

Codes = NDArray[np.int32]
MAX_CATEGORIES = 20
"""Categories that are slices, those with the most held-out items."""
CROSS = " x "


class Slicing(NamedTuple):
    """A way to cut the queries."""

    group: str
    names: tuple[str, ...]
    """Names of its slices, [C]."""
    codes: Codes
    """Slice of each membership, [R]."""
    queries: Codes
    """Query of each membership, ascending, [R]."""

    @property
    def keys(self) -> list[str]:
        """Keys of its slices in addresses, ``<group>/<name>``."""
        return [f"{self.group}/{name}" for name in self.names]


def most_frequent(
    group: str, values: Rows, queries: Rows | Codes, names: Sequence[str]
) -> Slicing | None:
    """Cut by the most frequent values of memberships, [R] (0 is none); None with fewer than two."""
    counts = np.bincount(values, minlength=len(names))[: len(names)]
    counts[0] = 0
    order = np.argsort(-counts, kind="stable")[:MAX_CATEGORIES]
    order = order[counts[order] > 0]
    if len(order) < 2:
        return None
    code_of = np.full(1 + int(values.max()), -1, np.int32)
    code_of[order] = np.arange(len(order))
    codes = code_of[values]
    labels = tuple(names[row] for row in order)
    return Slicing(group, labels, codes[codes >= 0], queries[codes >= 0].astype(np.int32))


def of_masks(slices: Sequence[Slice]) -> Slicing | None:
    """Take slices that do not overlap."""
    codes = np.full(len(slices[0].targets), -1, np.int32)
    for code, part in enumerate(slices):
        codes[part.targets.numpy()] = code
    kept = np.flatnonzero(codes >= 0).astype(np.int32)
    return Slicing(slices[0].group, tuple(part.name for part in slices), codes[kept], kept)


def crossed(first: Slicing, second: Slicing) -> Slicing:
    """Cut by both; if both have several slices of a query, each combination counts."""
    num_queries = 1 + max([-1, *first.queries[-1:].tolist()])
    lengths = np.bincount(second.queries, minlength=num_queries)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    starts, ends = offsets[first.queries], offsets[first.queries + 1]
    others = second.codes[concatenated_ranges(starts, ends)]
    codes = np.repeat(first.codes, ends - starts) * len(second.names) + others
    return Slicing(
        f"{first.group}{CROSS}{second.group}",
        tuple(f"{one}{CROSS}{other}" for one in first.names for other in second.names),
        codes.astype(np.int32),
        np.repeat(first.queries, ends - starts),
    )


def everything(num_queries: int) -> Slicing:
    """Take all queries as one slice."""
    every = np.arange(num_queries, dtype=np.int32)
    return Slicing("all", ("all",), np.zeros(num_queries, np.int32), every)
