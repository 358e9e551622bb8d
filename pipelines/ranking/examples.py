"""Labels and candidates of held-out events, as examples of a ranker.

Axes: U queries, k candidates of each, M held-out events.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
import torch
from torch import Tensor

from features.shown import SHOWN_FILE, read_refused
from pipelines.config.trainings import RankerTrainingConfig
from pipelines.inputs.tensors import HeldOut
from recsys.data.batch import JaggedBatch
from recsys.data.dataset import Rows
from recsys.fitting.queries import ModelInputs
from recsys.fitting.source_lists import SourceLists
from recsys.models.item_weights.ease import fit_ease
from recsys.models.ranker.network import Candidates
from recsys.retrieval.blend.candidate_features import CandidateBuilder
from recsys.retrieval.blend.history_features import HistoryFeatures
from recsys.retrieval.blend.learned import LearnedBlend
from recsys.training.ranking_examples import UNOBSERVED, Outcomes, RankingExamples, labels_of
from serving.surfaces import HOME

BLOCK = 512
"""Queries whose lists are merged at a time."""
LED_TO_SECONDS = 1_800
"""Longest time from an event to another of the same user and item that it led to."""


def read_outcomes(features: Path, inputs: ModelInputs, held_out: HeldOut) -> Outcomes:
    """Look up the value of each held-out event, its type, and the types of events it led to.

    It led to later events of its user with its item, within ``LED_TO_SECONDS`` and before the
    labels of the next split. An event is found by user, item and second; where events have no
    times, by the user's latest with the item.
    """
    files = features / "events"
    if not files.exists():
        return Outcomes.of_values(torch.full((len(held_out.targets.values),), UNOBSERVED))
    events = pl.scan_parquet(files / "**" / "*.parquet")
    columns = events.collect_schema().names()
    if inputs.sequences.negative is not None and inputs.sequences.event_types is not None:
        refusals = np.unique(inputs.sequences.event_types[inputs.sequences.negative]).tolist()
        said_no = [inputs.sizes.event_types[row - 1] for row in refusals]
        events = events.filter(~pl.col("event_type").cast(pl.String).is_in(said_no))
    key = ["user_row", "item_row"]
    wanted, timed = _describe_events(inputs, held_out), inputs.sequences.times is not None
    empty = {"value": pl.lit(None, pl.Float64), "event_type": pl.lit("event")}
    found = (
        events.join(wanted.lazy(), on=key)
        .with_columns(**{name: one for name, one in empty.items() if name not in columns})
        .with_columns(pl.col("value").cast(pl.Float64), pl.col("event_type").cast(pl.String))
    )
    order = [name for name in ("event_time", "sequence_index") if name in columns]
    if timed:
        found = found.with_columns(at=pl.col("event_time").dt.epoch("s"))
        found = found.filter(pl.col("at").is_between("second", "until"))
        own = found.filter(pl.col("at") == pl.col("second")).sort("place", *order)
    else:
        own = found = found.sort("place", *order).unique("place", keep="last", maintain_order=True)
    latest = (
        own.unique("place", keep="last", maintain_order=True).select("place", "value").collect()
    )
    values = torch.full((wanted.height,), UNOBSERVED)
    values[to_index(latest["place"])] = torch.from_numpy(
        latest["value"].fill_null(np.nan).to_numpy().copy()
    ).float()
    # Of all events, so that the names are the same for every split.
    names = type_names(events) if "event_type" in columns else ()
    types = torch.zeros(wanted.height, len(names), dtype=torch.bool)
    led_to = found.select("place", "event_type").unique().collect()
    for column, name in enumerate(names):
        types[to_index(led_to.filter(pl.col("event_type") == name)["place"]), column] = True
    return Outcomes(values, types, names)


def shown_candidates(
    features: Path, inputs: ModelInputs, held_out: HeldOut, item_rows: Tensor
) -> Tensor | None:
    """Mark the candidates [U, k] that were shown next to each query's event and not chosen.

    None without impressions, or without the events of the artefact.
    """
    files = [features / SHOWN_FILE, features / "events"]
    if inputs.sequences.times is None or not all(file.exists() for file in files):
        return None
    refused = read_refused(features, _describe_events(inputs, held_out), LED_TO_SECONDS)
    size = inputs.sizes.num_item_rows
    marked = to_index(refused["place"]) * size + to_index(refused["item_row"])
    return torch.isin(torch.arange(len(item_rows))[:, None] * size + item_rows, marked)


def type_names(events: pl.LazyFrame) -> tuple[str, ...]:
    """List the types of events, ascending; none if there is only one."""
    kinds = events.select(pl.col("event_type").cast(pl.String).unique()).collect().to_series()
    names = tuple(sorted(kinds.drop_nulls()))
    return names if len(names) > 1 else ()


def to_index(places: pl.Series) -> Tensor:
    """Convert a column of places to an index."""
    return torch.from_numpy(places.cast(pl.Int64).to_numpy().copy())


def _describe_events(inputs: ModelInputs, held_out: HeldOut) -> pl.DataFrame:
    """Describe each held-out event: place, user, item and, where there are times, its span."""
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


def candidate_builder(
    blend: LearnedBlend,
    inputs: ModelInputs,
    ends: Rows,
    vectors: Tensor | None,
    config: RankerTrainingConfig,
) -> CandidateBuilder:
    """Fit history features on each user's events before an end, ``ends`` [U].

    Args:
        vectors: Item vectors of a sequence model fitted on the same events, [N, D].
    """
    sequences = inputs.sequences
    visible = sequences.without_negative(sequences.positions_before(ends))
    ease = fit_ease(
        sequences.users_of(visible),
        np.asarray(sequences.item_rows[visible]),
        inputs.sizes.num_item_rows,
    )
    return CandidateBuilder(
        blend=blend,
        history_features=HistoryFeatures(inputs.catalogue, ease, vectors),
        num_candidates=config.num_candidates,
    )


def with_candidates(
    builder: CandidateBuilder, inputs: ModelInputs, positions: Rows, lists: SourceLists
) -> tuple[JaggedBatch, Candidates]:
    """Build queries and their candidates as serving does.

    Args:
        positions: Of the events that the queries end before, [U].
    """
    queries = inputs.queries(positions, max_history=HOME.max_history).positive
    parts = []
    for rows in torch.split(torch.arange(queries.batch_size), BLOCK):
        part = lists.of(rows, builder.blend.sources)
        history = queries["history"].take(rows)
        parts.append(builder.candidates(part.lists, history, part.item_counts))
    item_rows, features = (torch.cat(part) for part in zip(*parts, strict=True))
    return queries, Candidates(item_rows, features)


def ranking_examples(
    builder: CandidateBuilder,
    inputs: ModelInputs,
    held_out: HeldOut,
    lists: SourceLists,
    outcomes: Outcomes,
    tasks: Sequence[str],
    like_from: float,
) -> RankingExamples:
    """Label the candidates of held-out events for T tasks; lists and outcomes are of them."""
    queries, candidates = with_candidates(builder, inputs, held_out.positions, lists)
    labels = labels_of(candidates.item_rows, held_out.targets, outcomes, tasks, like_from)
    return RankingExamples(queries, held_out.targets, candidates, labels)
