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

from pipelines.candidates.examples import Examples
from pipelines.inputs.tensors import HeldOut
from recsys.data.batch import JaggedBatch
from recsys.data.dataset import Rows, concatenated_ranges
from recsys.data.top_k import TopK
from recsys.fitting.inputs import ModelInputs
from recsys.models.ease import Ease, EaseConfig
from recsys.retrieval.blend.candidate_features import ranking_candidates
from recsys.retrieval.blend.history_features import HistoryFeatures
from recsys.retrieval.blend.learned import LearnedBlend
from recsys.training.ranking_examples import (
    UNOBSERVED,
    Candidates,
    Outcomes,
)

BLOCK = 512
"""Queries merged at a time."""
LED_TO_SECONDS = 1_800
"""From an event to another of the same user and item that it led to."""


def outcomes_of(features: Path, inputs: ModelInputs, held_out: HeldOut) -> Outcomes:
    """Look up the value of each held-out event, and the types of events it was and led to.

    It led to later events of its user with its item, within ``LED_TO_SECONDS`` and before what
    the next split asks for. An event is known by user, item and second; where events have no
    times, the user's latest with the item counts.
    """
    files = features / "events"
    if not files.exists():
        return Outcomes.of_values(torch.full((len(held_out.targets.values),), UNOBSERVED))
    events = pl.scan_parquet(files / "**" / "*.parquet")
    columns = events.collect_schema().names()
    key = ["user_row", "item_row"]
    wanted, timed = _wanted(inputs, held_out), inputs.sequences.times is not None
    empty = {"value": pl.lit(None, pl.Float64), "event_type": pl.lit("event")}
    found = (
        events.join(wanted.lazy(), on=key)
        .with_columns(**{name: one for name, one in empty.items() if name not in columns})
        .with_columns(pl.col("value").cast(pl.Float64), pl.col("event_type").cast(pl.String))
    )
    order = [name for name in ("event_time", "sequence_index") if name in columns]
    if timed:
        found = found.with_columns(taken=pl.col("event_time").dt.epoch("s"))
        found = found.filter(pl.col("taken").is_between("second", "until"))
        own = found.filter(pl.col("taken") == pl.col("second")).sort("place", *order)
    else:
        own = found = found.sort("place", *order).unique("place", keep="last", maintain_order=True)
    latest = (
        own.unique("place", keep="last", maintain_order=True).select("place", "value").collect()
    )
    values = torch.full((wanted.height,), UNOBSERVED)
    values[rows_of(latest["place"])] = torch.from_numpy(
        latest["value"].fill_null(np.nan).to_numpy().copy()
    ).float()
    # All types there are, so that the same names hold for every split.
    names = type_names(events) if "event_type" in columns else ()
    types = torch.zeros(wanted.height, len(names), dtype=torch.bool)
    led_to = found.select("place", "event_type").unique().collect()
    for column, name in enumerate(names):
        types[rows_of(led_to.filter(pl.col("event_type") == name)["place"]), column] = True
    return Outcomes(values, types, names)


def type_names(events: pl.LazyFrame) -> tuple[str, ...]:
    """Name the types of events, ascending; one alone is none to tell apart."""
    kinds = events.select(pl.col("event_type").cast(pl.String).unique()).collect().to_series()
    names = tuple(sorted(kinds.drop_nulls()))
    return names if len(names) > 1 else ()


def rows_of(places: pl.Series) -> Tensor:
    """Take a column of places as an index."""
    return torch.from_numpy(places.cast(pl.Int64).to_numpy().copy())


def _wanted(inputs: ModelInputs, held_out: HeldOut) -> pl.DataFrame:
    """Give each held-out event its place, user, item and, where there are times, its span."""
    sequences, positions = inputs.sequences, held_out.target_positions()
    users = sequences.users_of(positions)
    wanted = pl.DataFrame({"user_row": users, "item_row": held_out.targets.values.numpy()})
    if sequences.times is None:
        return wanted.with_row_index("place")
    bounds = (sequences.train_end[users], sequences.validation_end[users])
    ends = np.where(positions < bounds[0], bounds[0], bounds[1])
    ends = np.where(positions < ends, ends, sequences.offsets[users + 1])
    seconds = np.asarray(sequences.times[positions])
    until = np.minimum(np.asarray(sequences.times[ends - 1]), seconds + LED_TO_SECONDS)
    return wanted.with_columns(second=seconds, until=until).with_row_index("place")


class Tasks(NamedTuple):
    """What is predicted."""

    names: tuple[str, ...]
    why: str
    outcomes: Outcomes
    """Of each held-out event."""


def fit_ease(inputs: ModelInputs, ends: Rows, config: EaseConfig) -> Ease:
    """Fit item-to-item weights on each user's events before an end, [U]."""
    sequences = inputs.sequences
    visible = concatenated_ranges(np.asarray(sequences.offsets[:-1]), np.asarray(ends))
    return Ease.fit(
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


def candidates_for(
    asked: Asked, blend: LearnedBlend, against_history: HistoryFeatures, num_candidates: int
) -> Candidates:
    """Merge lists as serving does and number the first places.

    Args:
        asked: The queries.
        blend: Merges the lists.
        against_history: Numbers candidates, by what precedes the events.
        num_candidates: k.
    """
    parts, history = [], asked.queries["history"]
    for rows in torch.split(torch.arange(asked.queries.batch_size), BLOCK):
        part = asked.lists.of(rows, blend.sources)
        found = ranking_candidates(
            blend,
            part.lists,
            history.take(rows),
            part.item_counts,
            num_candidates,
            against_history,
        )
        parts.append((found.blended.scores, found.blended.item_rows, found.numbers))
    scores, item_rows, numbers = (torch.cat(part) for part in zip(*parts, strict=True))
    return Candidates(TopK(scores, item_rows), numbers)
