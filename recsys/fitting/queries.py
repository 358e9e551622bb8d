"""The held-out events of a split as queries that sources rank the catalogue for.

Axes: B queries of a batch, U queries of a split, M targets, N item rows, k list length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recsys.data.batch import Jagged, JaggedBatch
from recsys.data.dataset import FitSplit, HeldOut, Rows, Sequences, Split
from recsys.data.top_k import TopK
from recsys.data.windows import Windows
from recsys.evaluation.ranking import (
    RankingConfig,
    distinct_targets,
    list_ranks,
    mean_metrics,
    target_ranks,
)
from recsys.models.item_tower import FeatureSizes, ItemCatalogue
from recsys.retrieval.sources import (
    ScoredSource,
    Source,
    allowed_items,
    eligible_scores,
    joined_lists,
)

GIVEN = "given"
"""Folder of what a stage makes of the sequences, in which events of one time are as given."""


@dataclass(frozen=True, kw_only=True)
class ModelInputs:
    """The sequences with the catalogue and the users' features."""

    sequences: Sequences
    catalogue: ItemCatalogue
    sizes: FeatureSizes
    user_features: Mapping[str, Rows] = field(default_factory=dict)
    """Categorical rows by user row, each [U]."""

    def queries(self, positions: Rows, *, max_history: int) -> JaggedBatch:
        """Build the query before each event at ``positions`` [P], user features included."""
        return self.sequences.queries(
            positions, max_history=max_history, user_features=self.user_features
        )

    def item_counts(self, split: FitSplit) -> Tensor:
        """Count each item's events that a model fitted on ``split`` may see, [N]."""
        sequences = self.sequences
        return sequences.item_counts(sequences.visible_end(split), self.sizes.num_item_rows)


@dataclass(frozen=True, kw_only=True)
class NewEvents:
    """Events since the weights that a training continues."""

    starts: Rows
    """Position of each user's first new event, or the end of the user's events, [U]."""
    seed: int
    replay_share: float = 0.25
    """Share of the older examples that are trained on as well."""

    def windows(self, windows: Windows, sequences: Sequences) -> Windows:
        """Keep windows that end in new events, and some of the others."""
        # A window's last event is its last label.
        is_new = windows.ends > self.starts[sequences.users_of(windows.ends - 1)]  # [W]
        kept = is_new | self._drawn(len(windows))
        return Windows(windows.starts[kept], windows.ends[kept])

    def labels(self, positions: Rows, sequences: Sequences) -> Rows:
        """Keep labels that are new, and some of the others."""
        is_new = positions >= self.starts[sequences.users_of(positions)]  # [P]
        kept: Rows = positions[is_new | self._drawn(len(positions))]
        return kept

    def _drawn(self, number: int) -> NDArray[np.bool_]:
        drawn: NDArray[np.bool_] = (
            np.random.default_rng([self.seed, number]).random(number) < self.replay_share
        )
        return drawn


MAX_QUERIES = 512
"""Scored at a time; more is no faster."""


@dataclass(frozen=True, kw_only=True)
class RetrievalSettings:
    """How serving requests lists, which is how they are fitted on and measured too."""

    num_candidates: int = 200
    """Items of each source's list."""
    max_history: int = 200
    """Latest events that a source may read."""
    beam_width: int = 50
    """Beams of generative retrieval."""
    exclude_history: bool = True
    """Whether lists leave out what the user already interacted with."""
    max_scores: int = 1 << 24
    """Scores that are in memory at a time: queries of a batch times items."""

    def list_length(self, num_item_rows: int) -> int:
        """Return k, which no catalogue is too small for."""
        return max(1, min(self.num_candidates, num_item_rows - 1))

    def batch_size(self, num_item_rows: int) -> int:
        """Choose how many queries to score at a time, so that the scores fit into memory."""
        return max(1, min(MAX_QUERIES, self.max_scores // num_item_rows))


class QueryBatch(NamedTuple):
    """Some queries, on the device of the source."""

    queries: JaggedBatch
    allowed: Tensor
    """Items that each may be shown, [B, N] bool."""
    rows: Tensor
    """Their places among all queries, [B], on the host."""


@dataclass(frozen=True, kw_only=True)
class EvaluationQueries:
    """One query for each user of a split, with the items it may be shown and those held out."""

    inputs: ModelInputs
    held_out: HeldOut
    settings: RetrievalSettings
    eligible: Tensor | None = None
    """Items that any list may hold, [N] bool; None for all."""
    extra: Jagged | None = None
    """Further items that each query's list may hold, U queries."""

    @classmethod
    def of(
        cls, inputs: ModelInputs, split: Split, settings: RetrievalSettings
    ) -> EvaluationQueries:
        """Collect the users that have a target in a split."""
        held_out = HeldOut.of(inputs.sequences, split)
        return cls(inputs=inputs, held_out=held_out, settings=settings)

    def sample(self, num_queries: int, seed: int) -> EvaluationQueries:
        """Keep at most ``num_queries``, drawn once by the seed."""
        return replace(self, held_out=self.held_out.sample(num_queries, seed))

    def __len__(self) -> int:
        return len(self.held_out.positions)

    @property
    def num_item_rows(self) -> int:
        return self.inputs.sizes.num_item_rows

    @property
    def list_length(self) -> int:
        return self.settings.list_length(self.num_item_rows)

    def history_lengths(self) -> Tensor:
        """Count the events of each query that sources read, [U]."""
        return self.held_out.seen.lengths().clamp(max=self.settings.max_history)

    def user_rows(self) -> Tensor:
        """Return the user of each query, [U]."""
        return torch.from_numpy(np.asarray(self.inputs.sequences.users_of(self.held_out.positions)))

    def targets(self) -> Jagged:
        """Return the held-out items of each query, each once."""
        return distinct_targets(self.held_out.targets)

    def batches(self, device: torch.device | str = "cpu") -> Iterator[QueryBatch]:
        """Build the queries, in batches whose scores fit into memory."""
        size = self.settings.batch_size(self.num_item_rows)
        for rows in torch.split(torch.arange(len(self)), size):
            queries = self.inputs.queries(
                self.held_out.positions[rows.numpy()], max_history=self.settings.max_history
            )
            yield QueryBatch(queries.to(device), self._allowed(rows, device), rows)

    def _allowed(self, rows: Tensor, device: torch.device | str) -> Tensor:
        seen = self.held_out.seen.take(rows).to(device) if self.settings.exclude_history else None
        allowed = allowed_items(seen, len(rows), self.num_item_rows, device)
        if self.eligible is not None:
            extra = torch.zeros_like(allowed)
            if self.extra is not None:
                further = self.extra.take(rows).to(device)
                extra[further.segments(), further.values] = True
            allowed &= self.eligible.to(device) | extra
        return allowed


class RankedQueries(NamedTuple):
    """A source's lists for the queries of a split, and where the targets rank."""

    lists: TopK
    """[U, k]"""
    ranks: Tensor
    """[M] int64 rank of each distinct target from 1 in the catalogue, or in the list where the
    source knows nothing beyond it; `UNRANKED` where it has none."""


def rank_queries(
    source: Source, queries: EvaluationQueries, device: torch.device | str = "cpu"
) -> RankedQueries:
    """Rank every query of a split; everything comes back to the host."""
    targets, lists, ranks = queries.targets(), [], []
    for batch in queries.batches(device):
        ranking = source(batch.queries, batch.allowed, queries.list_length)
        own = targets.take(batch.rows).to(device)
        if ranking.scores is None:
            found = list_ranks(ranking.lists.item_rows, own).values
        else:
            found = target_ranks(eligible_scores(ranking.scores, batch.allowed), own)
        lists.append(TopK(*(part.cpu() for part in ranking.lists)))
        ranks.append(found.cpu())
    return RankedQueries(joined_lists(lists), torch.cat(ranks))


def measure(
    source: Source,
    queries: EvaluationQueries,
    device: torch.device | str = "cpu",
    *,
    ks: tuple[int, ...] = (10,),
) -> dict[str, float]:
    """Measure a source on the queries of a split: means over those with a target."""
    targets, ranks = queries.targets(), []
    for batch in queries.batches(device):
        own = targets.take(batch.rows).to(device)
        if isinstance(source, ScoredSource):
            scores = source.scores(batch.queries, batch.allowed)
            if scores.isnan().any():
                raise ValueError(
                    "scores hold NaN; check the model's weights and inputs for NaN and infinity"
                )
            found = target_ranks(eligible_scores(scores, batch.allowed), own)
        else:
            lists = source(batch.queries, batch.allowed, queries.list_length).lists
            found = list_ranks(lists.item_rows, own).values
        ranks.append(found.cpu())
    if not len(targets.values):
        raise ValueError(
            "no query has a target, so there is nothing to measure; check the split, or "
            "evaluate on one with held-out events"
        )
    return mean_metrics(Jagged(torch.cat(ranks), targets.offsets), RankingConfig(ks=ks))
