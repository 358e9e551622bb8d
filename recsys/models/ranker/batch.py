"""What a ranker is given and what came of it: queries, their candidates, feedback.

Axes: B queries, M candidates of a batch, T tasks.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from recsys.data.batch import Jagged, JaggedBatch
from recsys.models.ranker.config import RankerInputs


class RankingBatch(NamedTuple):
    """Queries with the candidates to be ranked for each."""

    queries: JaggedBatch
    """``history`` (item rows, oldest first), ``user.<name>`` and ``context.<name>``."""
    candidates: Jagged
    """Item rows of each query's candidates, M in all."""
    query_dense: Tensor | None = None
    """[B, numbers of a query]."""
    candidate_dense: Tensor | None = None
    """[M, numbers of a candidate]."""


class Feedback(NamedTuple):
    """What came of showing candidates."""

    labels: Tensor
    """[M, T], 0 or 1; NaN where a task was not observed."""
    slots: Tensor | None = None
    """[M] int64 from 0, where it was shown; read in training only."""


def check_batch(batch: RankingBatch, inputs: RankerInputs) -> None:
    """Refuse numbers that are missing, too many, or not finite."""
    sizes = (batch.queries.batch_size, len(batch.candidates.values))
    if batch.candidates.batch_size != sizes[0]:
        raise ValueError(
            f"{sizes[0]} queries but candidates of {batch.candidates.batch_size}; give each "
            "query its candidates, none as an empty list"
        )
    for what, names, numbers, count in (
        ("query_dense", inputs.query_dense, batch.query_dense, sizes[0]),
        ("candidate_dense", inputs.candidate_dense, batch.candidate_dense, sizes[1]),
    ):
        shape = None if numbers is None else tuple(numbers.shape)
        if shape != ((count, len(names)) if names else None):
            raise ValueError(
                f"{what} must be {(count, len(names)) if names else None} for the columns "
                f"{names}, got {shape}"
            )
        if numbers is not None and numbers.device.type == "cpu":
            bad = ~numbers.isfinite()
            if bad.any():
                row, column = bad.nonzero()[0].tolist()
                raise ValueError(
                    f"{what} column {names[column]!r} is {float(numbers[row, column])} in row "
                    f"{row}; fill missing values before ranking"
                )
