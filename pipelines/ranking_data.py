"""Events with the candidates that the blend gives for them: what a ranker learns from.

Axes: U queries, k candidates of each, M held-out events.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
import torch

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
    Outcomes,
    RankingExamples,
    labels_of,
)

BLOCK = 512
"""Queries merged at a time."""


def outcomes_of(features: Path, inputs: ModelInputs, held_out: HeldOut) -> Outcomes:
    """Look up the value and the type of each held-out event.

    An event is known by user, item and second. Where events have no times, or of several in one
    second, the latest counts.
    """
    values = torch.full((len(held_out.targets.values),), UNOBSERVED)
    files = features / "events"
    if not files.exists():
        return Outcomes.of_values(values)
    events = pl.scan_parquet(files / "**" / "*.parquet")
    columns = events.collect_schema().names()
    positions, sequences = held_out.target_positions(), inputs.sequences
    wanted = pl.DataFrame(
        {
            "user_row": sequences.users_of(positions),
            "item_row": held_out.targets.values.numpy(),
        }
    )
    key = ["user_row", "item_row"]
    if sequences.times is not None and "event_time" in columns:
        wanted = wanted.with_columns(second=np.asarray(sequences.times[positions]))
        events = events.with_columns(second=pl.col("event_time").dt.epoch("s"))
        key.append("second")
    order = [name for name in ("event_time", "sequence_index") if name in columns]
    told = [name for name in ("value", "event_type") if name in columns]
    known = (
        events.join(wanted.lazy().unique(), on=key, how="semi")
        .sort(*key, *order)
        .unique(key, keep="last", maintain_order=True)
        .select(*key, *told)
        .collect()
    )
    found = wanted.join(known, on=key, how="left", maintain_order="left")
    if "value" in told:
        numbers = found["value"].cast(pl.Float64).fill_null(np.nan)
        values = torch.from_numpy(numbers.to_numpy().copy()).float()
    if "event_type" not in told:
        return Outcomes.of_values(values)
    # All types there are, so that the same names hold for every split.
    names = sorted(
        events.select(pl.col("event_type").cast(pl.String).unique()).collect().to_series()
    )
    places = found.select(
        pl.col("event_type").cast(pl.String).replace_strict(names, range(len(names)), default=-1)
    )
    return Outcomes(values, torch.from_numpy(places.to_series().to_numpy().copy()), tuple(names))


class Tasks(NamedTuple):
    """What is predicted."""

    names: tuple[str, ...]
    why: str
    outcomes: Outcomes
    """Of each held-out event."""


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
    labels = labels_of(item_rows, targets, tasks.outcomes, tasks.names, training.like_from)
    return RankingExamples(asked.queries, Candidates(TopK(scores, item_rows), numbers), labels)
