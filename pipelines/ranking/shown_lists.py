"""Lists that were shown before validation, as questions to sources that have not seen them.

An item of a list was taken where an event of the same request names it or, where events name no
requests, one of the same user within half an hour.

Axes: U lists, I shown items of all, T tasks, P positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
import torch
from torch import Tensor

from pipelines.inputs.tensors import HeldOut, ragged
from pipelines.ranking.earlier_sources import asked_at
from pipelines.ranking.examples import LED_TO_SECONDS, rows_of
from recsys.data.dataset import Rows, Sequences
from recsys.fitting.inputs import ModelInputs
from recsys.training.ranking_examples import LIKE, NEXT, UNOBSERVED
from recsys.training.shown_lists import Shown

FOLDER = "shown"
MOST_SLOTS = 50
"""Later slots count as the last of these."""


class ShownBefore(NamedTuple):
    """Lists as questions, and what came of them."""

    held_out: HeldOut
    """One query for each list; its targets are not read."""
    shown: Shown

    @property
    def num_slots(self) -> int:
        """Slots that the lists have, at most ``MOST_SLOTS``."""
        return min(int(self.shown.slots.max()) + 1, MOST_SLOTS)


def shown_before(
    features: Path,
    inputs: ModelInputs,
    ends: Rows,
    tasks: Sequence[str],
    like_from: float,
    most: int,
    seed: int,
) -> ShownBefore | None:
    """Read lists that were shown after the events of earlier sources and before validation.

    Args:
        features: The artefact of build_features.
        inputs: Of a tie order.
        ends: Where each user's events end that earlier sources have seen, [U].
        tasks: ``next``, ``like`` or types of events, T names.
        like_from: Least value of a like.
        most: Lists, drawn once by the seed.
        seed: Of the draw.

    Returns:
        None where nothing was shown or events have no times.
    """
    sequences = inputs.sequences
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
    if lists.height > most:
        rng = np.random.default_rng([seed, lists.height])
        lists = lists[np.sort(rng.choice(lists.height, most, replace=False))]
    found = found.join(
        lists.select("user_row", "list").with_row_index("number"), ["user_row", "list"]
    )
    found = found.sort("number", "slot")
    counts = lists["len"].cast(pl.Int64).to_numpy()
    positions = _positions(sequences, lists["user_row"].to_numpy(), lists["second"].to_numpy())
    labels = _labels(features, found, tasks, like_from)
    slots = torch.from_numpy(found["slot"].cast(pl.Int64).to_numpy().copy())
    shown = Shown(ragged(found["item_row"].to_numpy().copy(), counts), slots, labels)
    return ShownBefore(asked_at(sequences, positions), shown)


def _shown_after(features: Path, sequences: Sequences, ends: Rows) -> pl.DataFrame:
    """Read what was shown between two events of a user: the last that sources saw, and train's."""
    assert sequences.times is not None
    times, train_end = np.asarray(sequences.times), np.asarray(sequences.train_end)
    asked = np.flatnonzero((ends > sequences.offsets[:-1]) & (ends < train_end))
    users = pl.DataFrame(
        {"user_row": asked, "after": times[ends[asked] - 1], "until": times[train_end[asked] - 1]}
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
    """Say before which event of its user each list was shown, [P]."""
    assert sequences.times is not None
    positions = np.empty(len(users), np.int64)
    for place, (user, second) in enumerate(zip(users.tolist(), seconds.tolist(), strict=True)):
        begin, end = sequences.offsets[user], sequences.offsets[user + 1]
        positions[place] = begin + np.searchsorted(sequences.times[begin:end], second, "left")
    return positions


def _labels(features: Path, shown: pl.DataFrame, tasks: Sequence[str], like_from: float) -> Tensor:
    """Say what came of each shown item, [I, T].

    A list of which something was taken later than train is not known: validation asks for that.
    """
    events = pl.scan_parquet(features / "events" / "**" / "*.parquet")
    columns = events.collect_schema().names()
    shown = shown.with_row_index("place")
    key = ["user_row", "item_row"]
    if "request_id" in columns and shown["request_id"].null_count() == 0:
        key.append("request_id")
    told = [name for name in ("event_type", "value") if name in columns]
    found = (
        events.select(*key, pl.col("event_time").dt.epoch("s").alias("taken"), *told)
        .join(shown.lazy().select("place", "number", "second", "until", *key), on=key)
        .filter(pl.col("taken") >= pl.col("second"))
        .collect()
    )
    if "request_id" not in key:
        found = found.filter(pl.col("taken") - pl.col("second") <= LED_TO_SECONDS)
    labels = torch.zeros(shown.height, len(tasks))
    for task, name in enumerate(tasks):
        if name == LIKE:
            best = found.group_by("place").agg(pl.col("value").max())
            liked = best["value"].ge(like_from).cast(pl.Float32).fill_null(float("nan"))
            labels[rows_of(best["place"]), task] = torch.from_numpy(liked.to_numpy().copy())
        else:
            rows = found if name == NEXT else found.filter(pl.col("event_type") == name)
            labels[rows_of(rows["place"]), task] = 1
    later = found.filter(pl.col("taken") > pl.col("until"))["number"].unique()
    labels[rows_of(shown["place"].filter(shown["number"].is_in(later.implode())))] = UNOBSERVED
    return labels
