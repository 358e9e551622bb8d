"""Batches of a ranker: queries, their candidates with features, feedback.

Axes: B queries, k candidates of a list, M candidates of a batch, F features, T tasks.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from recsys.data.batch import Jagged, JaggedBatch, cut_offsets
from recsys.models.ranker.config import RankerInputs


class RankingBatch(NamedTuple):
    """Queries with the candidates to rank for each."""

    queries: JaggedBatch
    """``history`` (item rows, oldest first), ``user.<name>`` and ``context.<name>``."""
    candidates: Jagged
    """Item rows of each query's candidates, M in all."""
    query_dense: Tensor | None = None
    """[B, F of a query]."""
    candidate_dense: Tensor | None = None
    """[M, F of a candidate]."""

    def to(self, device: torch.device) -> RankingBatch:
        dense = (None if one is None else one.to(device) for one in self[2:])
        return RankingBatch(self.queries.to(device), self.candidates.to(device), *dense)


class Candidates(NamedTuple):
    """Candidates of queries, in the order in which the blend merged them."""

    item_rows: Tensor
    """[B, k] int64, below 1 where the list is short."""
    features: Tensor
    """[B, k, F] float32."""

    @property
    def present(self) -> Tensor:
        """Mark the places that hold an item, [B, k]."""
        return self.item_rows > 0

    def take(self, chosen: Tensor) -> Candidates:
        return Candidates(self.item_rows[chosen], self.features[chosen])

    def batch(self, queries: JaggedBatch) -> RankingBatch:
        """Build a ranker's batch of these queries with all their candidates."""
        present = self.present
        candidates = Jagged(self.item_rows[present], cut_offsets(present.sum(1)))
        return RankingBatch(queries, candidates, None, self.features[present])


def check_batch(batch: RankingBatch, inputs: RankerInputs) -> None:
    """Refuse dense features that are missing, too many, or not finite."""
    sizes = (batch.queries.batch_size, len(batch.candidates.values))
    if batch.candidates.batch_size != sizes[0]:
        raise ValueError(
            f"{sizes[0]} queries but candidates of {batch.candidates.batch_size}; give each "
            "query its candidates, none as an empty list"
        )
    for what, names, dense, count in (
        ("query_dense", inputs.query_dense, batch.query_dense, sizes[0]),
        ("candidate_dense", inputs.candidate_dense, batch.candidate_dense, sizes[1]),
    ):
        shape = None if dense is None else tuple(dense.shape)
        if shape != ((count, len(names)) if names else None):
            raise ValueError(
                f"{what} must be {(count, len(names)) if names else None} for the columns "
                f"{names}, got {shape}"
            )
        if dense is not None and dense.device.type == "cpu":
            bad = ~dense.isfinite()
            if bad.any():
                row, column = bad.nonzero()[0].tolist()
                raise ValueError(
                    f"{what} column {names[column]!r} is {float(dense[row, column])} in row "
                    f"{row}; fill missing values before ranking"
                )
