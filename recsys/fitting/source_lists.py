"""Validation queries with the lists of every source: what a blend is fitted on and judged by.

Axes: U validation users, N item rows, D features of an item's demand, k list length.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from recsys.data.batch import Jagged, cut_offsets
from recsys.data.dataset import FitSplit
from recsys.data.top_k import TopK
from recsys.fitting.queries import EvaluationQueries, ModelInputs
from recsys.retrieval.blend.choices import queries_found
from recsys.retrieval.blend.demand import DAY, VISIT_SECONDS, days_away, demand_before, of_their_own
from recsys.retrieval.blend.learned import LearnedBlend
from recsys.retrieval.sources import Source, joined_lists, lists_of, lists_of_rows, rank_by_all

NUM_FOLDS = 2


def known_demand(inputs: ModelInputs, split: FitSplit) -> Tensor | None:
    """Measure each item's demand by the events that a model of a split may see, [N, D].

    None without times.
    """
    ends = inputs.sequences.visible_end(split)
    return demand_before(inputs.sequences, ends, inputs.sizes.num_item_rows)


def fold_of_users(num_user_rows: int, seed: int) -> Tensor:
    """Draw the half of each user row, [num_user_rows]."""
    order = np.random.default_rng([seed, num_user_rows]).permutation(num_user_rows)
    return torch.from_numpy(order % NUM_FOLDS)


@dataclass(frozen=True)
class SourceLists:
    """Queries with the lists of every source."""

    lists: dict[str, TopK]
    """By source, [U, k] each."""
    targets: Jagged
    """Item rows that followed, each once, the next one first."""
    history_lengths: Tensor
    """[U]"""
    folds: Tensor
    """Half of each query's user, [U]."""
    item_counts: Tensor
    """Events of each item that the sources were fitted on, [N]."""
    demand: Tensor | None = None
    """Demand of each item in the same events (``demand_before``), [N, D]; None without times."""
    days_away: Tensor | None = None
    """Days from each query's last event to the end of those events (``days_away``), [U]."""

    @classmethod
    def of_queries(
        cls,
        lists: dict[str, TopK],
        queries: EvaluationQueries,
        item_counts: Tensor,
        seed: int,
        demand: Tensor | None = None,
    ) -> SourceLists:
        """Put lists, by source, with the queries that they answer; the seed draws the halves."""
        folds = fold_of_users(queries.inputs.sequences.num_user_rows, seed)[queries.user_rows()]
        targets, lengths = queries.targets(), queries.history_lengths()
        away = days_away(queries.inputs.sequences, queries.held_out.positions)
        return cls(lists, targets, lengths, folds, item_counts, demand, away)

    def __len__(self) -> int:
        return self.targets.batch_size

    def of(self, rows: Tensor, sources: Sequence[str]) -> SourceLists:
        return SourceLists(
            {name: lists_of_rows(self.lists[name], rows) for name in sources},
            self.targets.take(rows),
            self.history_lengths[rows],
            self.folds[rows],
            self.item_counts,
            self.demand,
            None if self.days_away is None else self.days_away[rows],
        )

    def of_their_own(self, blend: LearnedBlend, length: int) -> SourceLists:
        """Rank users in the middle of a visit or away for long by their own history alone."""
        if self.days_away is None:
            return self
        away, longest = self.days_away.to(self.history_lengths.device), blend.config.absent_days
        is_own = away > (math.inf if longest is None else longest)
        if blend.own is not None:
            is_own |= away < VISIT_SECONDS / DAY
        lists, lengths = of_their_own(self.lists, self.history_lengths, is_own, length)
        return replace(self, lists=lists, history_lengths=lengths)

    def to(self, device: torch.device) -> SourceLists:
        return SourceLists(
            {name: TopK(*(part.to(device) for part in top)) for name, top in self.lists.items()},
            self.targets.to(device),
            self.history_lengths.to(device),
            self.folds.to(device),
            self.item_counts.to(device),
            None if self.demand is None else self.demand.to(device),
            self.days_away,
        )

    def with_first_targets(self) -> SourceLists:
        """Keep each query's next target alone."""
        has, places = self.targets.lengths() > 0, self.targets.offsets[:-1]
        targets = Jagged(self.targets.values[places[has]], cut_offsets(has.long()))
        return replace(self, targets=targets)

    def num_found(self) -> int:
        return len(queries_found(self.lists, self.targets))


def lists_by_source(sources: Mapping[str, Source], queries: EvaluationQueries) -> dict[str, TopK]:
    """Query every source, by model; the lists are by source, [U, k] each."""
    if len(queries) == 0:
        raise ValueError(
            "no user has a held-out event in the validation split, so there is nothing to "
            "choose a blend by; users need 3 or more events for leave_one_out"
        )
    parts = [
        lists_of(rank_by_all(sources, batch.queries, batch.allowed, queries.list_length))
        for batch in queries.batches()
    ]
    return {name: joined_lists([part[name] for part in parts]) for name in parts[0]}
