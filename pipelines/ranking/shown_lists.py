"""Impressions before validation, as queries for retrievers that were refitted without them.

A shown item is a positive where an event of the same request names it or, where events name no
requests, one of the same user within half an hour.

Axes: U lists, I impressions, T tasks, P positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
import torch
from torch import Tensor

from pipelines.config.run import RunConfig
from pipelines.inputs.tensors import HeldOut, ragged
from pipelines.ranking.examples import LED_TO_SECONDS, to_index
from pipelines.ranking.out_of_sample import queries_at
from recsys.data.dataset import Rows, Sequences
from recsys.fitting.queries import ModelInputs
from recsys.training.ranking_examples import LIKE, NEXT, UNOBSERVED
from recsys.training.shown_lists import Impressions

FOLDER = "shown"
MAX_SLOTS = 50
"""Later slots count as the last one."""


class ShownLists(NamedTuple):
    """Shown lists as queries, with their impressions."""

    held_out: HeldOut
    """One query for each list; its target is the event that followed."""
    impressions: Impressions

    @property
    def num_slots(self) -> int:
        """Count the slots of the longest list, at most ``MAX_SLOTS``."""
        return min(int(self.impressions.slots.max()) + 1, MAX_SLOTS)


def shown_lists(
    features: Path, inputs: ModelInputs, ends: Rows, tasks: Sequence[str], config: RunConfig
) -> ShownLists | None:
    """Read lists that were shown after the events of refitted retrievers and before validation.

    Args:
        ends: Where each user's events end that the retrievers were fitted on, [U].
    """
    sequences, training = inputs.sequences, config.ranker_training
    if sequences.times is None or not (features / FOLDER).exists():
        return None
    found = _shown_after(features, sequences, ends)
    if "slot" not in found.columns or not found.height:
        return None
    lists = (
        found.group_by("user_row", "list")
        .agg(pl.col("second").min(), pl.len(), pl.col("until").first())
        .sort("user_row", "list")
    )
    if lists.height > training.max_queries:
        rng = np.random.default_rng([config.seed, lists.height])
        lists = lists[np.sort(rng.choice(lists.height, training.max_queries, replace=False))]
    found = found.join(
        lists.select("user_row", "list").with_row_index("number"), ["user_row", "list"]
    )
    found = found.sort("number", "slot")
    counts = lists["len"].cast(pl.Int64).to_numpy()
    positions = _positions(sequences, lists["user_row"].to_numpy(), lists["second"].to_numpy())
    labels = _labels(features, found, tasks, training.like_from)
    slots = torch.from_numpy(found["slot"].cast(pl.Int64).to_numpy().copy())
    rows = ragged(found["item_row"].to_numpy().copy(), counts)
    return ShownLists(queries_at(sequences, positions), Impressions(rows, slots, labels))


def _shown_after(features: Path, sequences: Sequences, ends: Rows) -> pl.DataFrame:
    """Read the lists shown between the last event before an end and the last of train, by user."""
    assert sequences.times is not None
    times, train_end = np.asarray(sequences.times), np.asarray(sequences.train_end)
    users_read = np.flatnonzero((ends > sequences.offsets[:-1]) & (ends < train_end))
    users = pl.DataFrame(
        {
            "user_row": users_read,
            "after": times[ends[users_read] - 1],
            "until": times[train_end[users_read] - 1],
        }
    )
    rows = pl.scan_parquet(features / FOLDER / "*.parquet")
    names = rows.collect_schema().names()
    rows = rows.with_columns(second=pl.col("event_time").dt.epoch("s"))
    of_request = [pl.col("request_id")] if "request_id" in names else []
    moment = pl.format("{} {}", "user_row", "second")
    return (
        rows.filter(pl.col("slot").is_not_null() if "slot" in names else pl.lit(True))
        .join(users.lazy(), on="user_row")
        .filter((pl.col("second") > pl.col("after")) & (pl.col("second") <= pl.col("until")))
        .with_columns(list=pl.coalesce(*of_request, moment))
        .unique(["list", "user_row", "item_row"], keep="first", maintain_order=True)
        .collect()
    )


def _positions(sequences: Sequences, users: Rows, seconds: Rows) -> Rows:
    """Find the event of its user that each list was shown before, [P]."""
    assert sequences.times is not None
    positions = np.empty(len(users), np.int64)
    for place, (user, second) in enumerate(zip(users.tolist(), seconds.tolist(), strict=True)):
        begin, end = sequences.offsets[user], sequences.offsets[user + 1]
        positions[place] = begin + np.searchsorted(sequences.times[begin:end], second, "left")
    return positions


def _labels(features: Path, shown: pl.DataFrame, tasks: Sequence[str], like_from: float) -> Tensor:
    """Label each impression, [I, T].

    Lists with a positive after train are unobserved: that event is validation's label.
    """
    events = pl.scan_parquet(features / "events" / "**" / "*.parquet")
    columns = events.collect_schema().names()
    shown = shown.with_row_index("place")
    key = ["user_row", "item_row"]
    if "request_id" in columns and shown["request_id"].null_count() == 0:
        key.append("request_id")
    outcomes = [name for name in ("event_type", "value") if name in columns]
    found = (
        events.select(*key, pl.col("event_time").dt.epoch("s").alias("at"), *outcomes)
        .join(shown.lazy().select("place", "number", "second", "until", *key), on=key)
        .filter(pl.col("at") >= pl.col("second"))
        .collect()
    )
    if "request_id" not in key:
        found = found.filter(pl.col("at") - pl.col("second") <= LED_TO_SECONDS)
    labels = torch.zeros(shown.height, len(tasks))
    for task, name in enumerate(tasks):
        if name == LIKE:
            best = found.group_by("place").agg(pl.col("value").max())
            liked = best["value"].ge(like_from).cast(pl.Float32).fill_null(float("nan"))
            labels[to_index(best["place"]), task] = torch.from_numpy(liked.to_numpy().copy())
        else:
            rows = found if name == NEXT else found.filter(pl.col("event_type") == name)
            labels[to_index(rows["place"]), task] = 1
    later = found.filter(pl.col("at") > pl.col("until"))["number"].unique()
    labels[to_index(shown["place"].filter(shown["number"].is_in(later.implode())))] = UNOBSERVED
    return labels
