"""A ranker's training step brought to one shape, so that it can be a CUDA graph.

Every query of a step has as many candidates, and only histories differ in length. Their events lie
one after the other in room for the longest ones; what is left of it is never read, and holds all
items in turn, because gradients of equal rows wait for each other.

Axes: B queries of a step, C candidates of each, T tasks, F features of a candidate.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from recsys.data.batch import Jagged, JaggedBatch, latest
from recsys.models.ranker.batch import RankingBatch
from recsys.models.ranker.config import RankerInputs
from recsys.training.ranking_examples import Drawn


class FixedLists(NamedTuple):
    """Sizes of a step."""

    num_queries: int
    num_candidates: int
    num_tasks: int
    num_features: int
    """F; 0 for a ranker that reads none."""
    max_history: int
    num_item_rows: int
    query_features: tuple[str, ...]
    """Features of the query, one value each."""

    @classmethod
    def of(
        cls, inputs: RankerInputs, num_queries: int, num_candidates: int, max_history: int
    ) -> FixedLists:
        return cls(
            num_queries=num_queries,
            num_candidates=num_candidates,
            num_tasks=len(inputs.tasks),
            num_features=len(inputs.candidate_dense),
            max_history=max_history,
            num_item_rows=inputs.num_item_rows,
            query_features=(
                *(f"user.{name}" for name in inputs.user_features),
                *(f"context.{name}" for name in inputs.context_features),
            ),
        )

    def integers(self) -> list[int]:
        """Count the integers of each part: events, offsets, candidates, features of queries."""
        queries = self.num_queries
        parts = [queries * self.max_history, queries + 1, queries * self.num_candidates]
        return [*parts, *([queries] * len(self.query_features))]

    def floats(self) -> list[int]:
        """Count the numbers of each part: features, labels, weights of candidates."""
        candidates = self.num_queries * self.num_candidates
        return [candidates * self.num_features, candidates * self.num_tasks, candidates]

    def inputs(self, batch: RankingBatch, drawn: Drawn) -> Tensor | None:
        """Write a step as integers on the host, [S]; None if it does not fit.

        Args:
            batch: The candidates drawn for queries, on the host.
        """
        queries = batch.queries
        single = all(len(queries[one].values) == self.num_queries for one in self.query_features)
        if drawn.places.shape != (self.num_queries, self.num_candidates) or not single:
            return None
        history = latest(queries["history"], self.max_history)
        values = torch.arange(self.integers()[0]) % self.num_item_rows
        values[: len(history.values)] = history.values
        features = (queries[name].values for name in self.query_features)
        numbers = [drawn.labels.flatten(), drawn.log_weights.flatten()]
        if batch.candidate_dense is not None:
            numbers.insert(0, batch.candidate_dense.flatten())
        floats = torch.cat(numbers)
        even = torch.cat([floats, floats.new_zeros(len(floats) % 2)])
        parts = [values, history.offsets, batch.candidates.values, *features]
        return torch.cat([*parts, even.view(torch.int64)])

    def read(self, inputs: Tensor) -> tuple[RankingBatch, Drawn]:
        """Read what ``inputs`` laid out, on any device; places are not needed any more."""
        integers, floats = self.integers(), self.floats()
        events, offsets, candidates, *features = torch.split(inputs[: sum(integers)], integers)
        numbers = inputs[sum(integers) :].view(torch.float32)[: sum(floats)]
        dense, labels, weights = torch.split(numbers, floats)
        queries = {"history": Jagged(events, offsets)}
        for name, rows in zip(self.query_features, features, strict=True):
            queries[name] = Jagged.one_each(rows)
        shape = (self.num_queries, self.num_candidates)
        ends = torch.arange(self.num_queries + 1, device=inputs.device) * self.num_candidates
        batch = RankingBatch(
            JaggedBatch(queries),
            Jagged(candidates, ends),
            None,
            dense.view(-1, self.num_features) if self.num_features else None,
        )
        drawn = Drawn(candidates.view(shape), labels.view(*shape, -1), weights.view(shape))
        return batch, drawn
