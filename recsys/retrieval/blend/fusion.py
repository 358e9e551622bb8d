"""Merged lists, and the numbers of reciprocal rank fusion.

Cormack, Clarke and Buettcher, SIGIR 2009: an item scores the sum over sources of
weight / (constant + rank). Only ranks count, so sources whose scores mean different things
(inner products, co-occurrence, popularity) can be merged without calibration.

Axes: B queries, S sources, k list length.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

ABSENT = 0
"""Rank of an item in a source that does not have it."""
CONSTANT = 60.0
"""Added to every rank; the paper's."""


class Blended(NamedTuple):
    """Merged lists, best first, and where each item came from."""

    scores: Tensor
    """[B, k] float32, -inf where the list is short."""
    item_rows: Tensor
    """[B, k] int64, -1 where the list is short."""
    source_ranks: Tensor
    """[B, k, S] int64, the item's rank from 1 in each source, `ABSENT` where it is not."""
    sources: tuple[str, ...]
    """Names of the S sources, in the order given."""
    contributions: Tensor | None = None
    """[B, k, S] float32, what each source added to the score; None where only ranks count."""
