"""TODO-DOC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pipelines.candidates.blends import (
    ProfileBlend,
    fold_of_users,
    single_of,
    taken,
)
from pipelines.candidates.sources import Source, ask_all, lists_of
from pipelines.config.run import RunConfig
from pipelines.inputs.tensors import HeldOut, batches
from recsys.data.batch import Jagged
from recsys.data.top_k import TopK
from recsys.evaluation.ranking import list_ranks, per_user_metric
from recsys.fitting.inputs import ModelInputs
from recsys.retrieval.blend.learned import LearnedBlend
from recsys.retrieval.blend.source_lists import fitted_blend

NOISE = 2.0
"""Standard errors of the paired difference that another way must be ahead of learned weights."""


BLOCK = 512
"""Queries blended at a time."""


class Examples(NamedTuple):
    """Validation users with the lists of every source."""

    lists: dict[str, TopK]
    targets: Jagged
    history_lengths: Tensor
    """[U]"""
    folds: Tensor
    """[U]"""
    item_counts: Tensor
    """[N]"""

    def of(self, rows: Tensor, sources: Sequence[str]) -> Examples:
        """Take some users and sources."""
        return Examples(
            {name: taken(self.lists[name], rows) for name in sources},
            self.targets.take(rows),
            self.history_lengths[rows],
            self.folds[rows],
            self.item_counts,
        )

    def num_found(self) -> int:
        """Count users with a target in any list."""
        ranks = [list_ranks(top.item_rows, self.targets).values for top in self.lists.values()]
        found = torch.zeros(self.targets.batch_size, dtype=torch.int64)
        found.index_add_(0, self.targets.segments(), torch.stack(ranks).sum(0))
        return int((found > 0).sum())


def collect_examples(
    sources: Mapping[str, Source], inputs: ModelInputs, config: RunConfig
) -> Examples:
    """Ask every source for its lists for (a sample of) the validation users."""
    sequences = inputs.sequences
    held_out = HeldOut.of(sequences, "validation").sample(config.blend.max_queries, config.seed)
    counts = sequences.item_counts(sequences.train_end, inputs.sizes.num_item_rows)
    return examples_of(sources, inputs, held_out, counts, config)


def examples_of(
    sources: Mapping[str, Source],
    inputs: ModelInputs,
    held_out: HeldOut,
    item_counts: Tensor,
    config: RunConfig,
) -> Examples:
    """Ask every source for its lists for some held-out events.

    Args:
        sources: By model.
        inputs: What queries are built from.
        held_out: The queries.
        item_counts: Events of each item that the sources were fitted on, [N].
        config: The run's.
    """
    sequences, num_item_rows = inputs.sequences, inputs.sizes.num_item_rows
    parts: list[dict[str, TopK]] = []
    lengths, users = [], []
    for queries in batches(inputs, held_out, config):
        parts.append(lists_of(ask_all(sources, queries, num_item_rows)))
        lengths.append(queries["history"].lengths())
        users.append(queries["user"].values)
    if not parts:
        raise ValueError(
            "no user has a held-out event in the validation split, so there is nothing to choose "
            "a blend by; users need 3 or more events for leave_one_out"
        )
    folds = fold_of_users(sequences.num_user_rows, config.seed)
    return Examples(
        {
            name: TopK(
                torch.cat([part[name].scores for part in parts]),
                torch.cat([part[name].item_rows for part in parts]),
            )
            for name in parts[0]
        },
        held_out.targets,
        torch.cat(lengths),
        folds[torch.cat(users)],
        item_counts,
    )


def learned_blend(examples: Examples, config: RunConfig) -> LearnedBlend:
    """Fit weights on users."""
    return fitted_blend(
        examples.lists,
        examples.targets,
        examples.history_lengths,
        examples.item_counts,
        config.blend.learned(),
    )


def measured(
    blend: ProfileBlend, examples: Examples, metric: str, *, by_half: bool = False
) -> Tensor:
    """Measure merged lists for every user, [U] float64; NaN without a target."""
    ranks = []
    for rows in torch.split(torch.arange(examples.targets.batch_size), BLOCK):
        part = examples.of(rows, tuple(examples.lists))
        folds = part.folds if by_half else None
        top = blend.lists(part.lists, part.history_lengths, part.item_counts, folds)
        ranks.append(list_ranks(top.item_rows, part.targets).values)
    return per_user_metric(Jagged(torch.cat(ranks), examples.targets.offsets), metric)


def measured_source(examples: Examples, source: str, metric: str) -> Tensor:
    """Measure one source's lists for every user, [U] float64; NaN without a target.

    Lists shorter than the metric's k are filled up by the other sources, as in serving.
    """
    rows = examples.lists[source].item_rows
    k = int(metric.partition("@")[2])
    if rows.shape[1] < k or bool((rows[:, :k] < 1).any()):
        blend = single_of(tuple(examples.lists), source)
        return measured(ProfileBlend(served=blend, folds=()), examples, metric)
    return per_user_metric(list_ranks(rows, examples.targets), metric)


def standard_error(differences: Tensor) -> float:
    """Estimate how far a mean of paired differences [U] may be off."""
    if len(differences) < 2:
        return float("inf")
    return float(differences.std() / len(differences) ** 0.5)
