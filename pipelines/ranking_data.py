"""Events with the candidates that the blend gives for them: what a ranker learns from.

Axes: U queries, k candidates of each, M held-out events.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
import torch
from torch import Tensor

from pipelines.config import RunConfig
from pipelines.fit_blend import Examples
from pipelines.model_inputs import HeldOut, ModelInputs
from recsys.data.batch import JaggedBatch
from recsys.data.dataset import Rows, concatenated_ranges
from recsys.data.top_k import TopK
from recsys.models.linear_items import LinearItems, LinearItemsConfig
from recsys.retrieval.candidate_numbers import ranking_candidates
from recsys.retrieval.history_numbers import HistoryNumbers
from recsys.retrieval.learned_blend import LearnedBlend
from recsys.training.ranking_examples import (
    UNOBSERVED,
    Candidates,
    RankingExamples,
    labels_of,
)

BLOCK = 512
"""Queries merged at a time."""


def values_of_targets(features: Path, inputs: ModelInputs, held_out: HeldOut) -> Tensor:
    """Look up the value of each held-out event, NaN where it has none, [M].

    Of several events of one user and item the latest counts.
    """
    targets = held_out.targets
    nothing = torch.full((len(targets.values),), UNOBSERVED)
    files = features / "events"
    if not files.exists():
        return nothing
    events = pl.scan_parquet(files / "**" / "*.parquet")
    columns = events.collect_schema().names()
    if "value" not in columns:
        return nothing
    order = [name for name in ("event_time", "sequence_index") if name in columns]
    users = inputs.sequences.users_of(held_out.positions)[targets.segments().numpy()]
    wanted = pl.DataFrame({"user_row": users, "item_row": targets.values.numpy()})
    known = (
        events.join(wanted.lazy().unique(), on=["user_row", "item_row"], how="semi")
        .sort("user_row", "item_row", *order)
        .unique(["user_row", "item_row"], keep="last", maintain_order=True)
        .select("user_row", "item_row", pl.col("value").cast(pl.Float64))
        .collect()
    )
    found = wanted.join(known, on=["user_row", "item_row"], how="left", maintain_order="left")
    return torch.from_numpy(found["value"].fill_null(np.nan).to_numpy().copy()).float()


class Tasks(NamedTuple):
    """What is predicted."""

    names: tuple[str, ...]
    why: str
    values: Tensor
    """Of each held-out event, [M]; NaN where it has none."""


def linear_items(inputs: ModelInputs, ends: Rows, config: LinearItemsConfig) -> LinearItems:
    """Fit item-to-item weights on each user's events before an end, [U]."""
    sequences = inputs.sequences
    visible = concatenated_ranges(np.asarray(sequences.offsets[:-1]), np.asarray(ends))
    return LinearItems.fit(
        sequences.users_of(visible),
        np.asarray(sequences.item_rows[visible]),
        inputs.sizes.num_item_rows,
        config,
    )


class Asked(NamedTuple):
    """Queries with the lists of every source."""

    held_out: HeldOut
    lists: Examples
    queries: JaggedBatch
    """With as much of the history as sources read."""


def examples_for(
    asked: Asked,
    blend: LearnedBlend,
    against_history: HistoryNumbers,
    tasks: Tasks,
    config: RunConfig,
) -> RankingExamples:
    """Merge lists as serving does, number the candidates and say what came of them.

    Args:
        asked: The queries.
        blend: Merges the lists.
        against_history: Numbers candidates, by what precedes the events.
        tasks: What is predicted.
        config: The run's.
    """
    training = config.ranker_training
    parts, history = [], asked.queries["history"]
    for rows in torch.split(torch.arange(asked.queries.batch_size), BLOCK):
        part = asked.lists.of(rows, blend.sources)
        found = ranking_candidates(
            blend,
            part.lists,
            history.take(rows),
            part.item_counts,
            training.num_candidates,
            against_history,
        )
        parts.append((found.blended.scores, found.blended.item_rows, found.numbers))
    scores, item_rows, numbers = (torch.cat(part) for part in zip(*parts, strict=True))
    targets = asked.held_out.targets
    labels = labels_of(item_rows, targets, tasks.values, tasks.names, training.like_from)
    return RankingExamples(asked.queries, Candidates(TopK(scores, item_rows), numbers), labels)
