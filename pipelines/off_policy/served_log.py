"""Served lists with their propensities, and what users did with them.

The log is the folder ``requests`` of ``recsys data export``, next to the events. A list counts if
anything in it was drawn: without a draw nothing says what other lists would have earned. The reward
of an item is 1 if an event of the chosen types names its list and it, else 0.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.inputs.exported import RECEIVED_TIME, REQUESTS, list_parts, scan_parts
from recsys.evaluation.off_policy.logs import Floats, Integers
from serving.online.events import REFUSAL_TYPES
from serving.online.store import MAX_REFUSALS, RecentEvent, Visitor, in_force

IMPRESSION = "impression"
TEXTS = ("user_id", "bundle", "request")
COLUMNS = ("request_id", RECEIVED_TIME, *TEXTS, "item_id", "slot", "propensity")
NAMED = 8
"""Event types that an error lists."""


class ServedList(NamedTuple):
    """One list of the log."""

    request_id: str
    time_ms: int
    user_id: str | None
    bundle: str | None
    request: str
    """JSON of what the client sent."""
    item_ids: Sequence[str]


@dataclass(frozen=True, kw_only=True, eq=False)
class ServedLog:
    """Lists in the order in which they were served; [n, K] is padded after a list's end."""

    lists: Sequence[ServedList]
    rewards: Floats
    """[n, K], 0 after the end."""
    propensities: Floats
    """[n, K], 1 after the end."""
    lengths: Integers
    left_out: Mapping[str, int]
    """Lists that do not count, by the reason."""
    reward: str
    events: EventHistories = field(repr=False)

    def __len__(self) -> int:
        return len(self.lists)

    @property
    def users(self) -> Integers:
        """Number of each list's user; a list without one is one of its own, [n]."""
        names: dict[str, int] = {}
        found = []
        for place, one in enumerate(self.lists):
            key = f"list {place}" if one.user_id is None else f"user {one.user_id}"
            found.append(names.setdefault(key, len(names)))
        return np.array(found, np.int64)

    def take(self, places: Integers) -> ServedLog:
        """Keep some lists, ascending."""
        parts = {
            name: getattr(self, name)[places] for name in ("rewards", "propensities", "lengths")
        }
        return replace(self, lists=[self.lists[place] for place in places.tolist()], **parts)


class EventHistories:
    """Events of each user that the store had when a list was made."""

    def __init__(self, events: pl.DataFrame) -> None:
        """Take events with user_id, item_id, event_type, event_time and received_time."""
        kept = events.filter(pl.col("event_type") != IMPRESSION).sort(
            RECEIVED_TIME, maintain_order=True
        )
        self._received: defaultdict[str, list[int]] = defaultdict(list)
        self._events: defaultdict[str, list[RecentEvent]] = defaultdict(list)
        times = (pl.col(name).dt.epoch("ms") for name in (RECEIVED_TIME, "event_time"))
        rows = kept.select("user_id", *times, "item_id", "event_type").iter_rows()
        for user_id, received_ms, time_ms, item_id, event_type in rows:
            self._received[user_id].append(received_ms)
            self._events[user_id].append(RecentEvent(item_id, event_type, time_ms))

    def visitor(self, user_id: str | None, time_ms: int, limit: int) -> Visitor:
        """Return a user's newest events that had arrived by a moment, oldest first."""
        if user_id is None or user_id not in self._received:
            return Visitor()
        arrived = bisect_right(self._received[user_id], time_ms)
        ordered = sorted(self._events[user_id][:arrived], key=lambda event: event.time_ms)
        refusals = [event for event in ordered if event.event_type in REFUSAL_TYPES]
        others = [event for event in ordered if event.event_type not in REFUSAL_TYPES]
        return Visitor(others[-limit:], refused=in_force(refusals[-MAX_REFUSALS:]))


def read_served_log(log: Path, *, reward: Sequence[str] = ("click",)) -> ServedLog:
    """Read the served lists of an export, or of its folder ``requests``, and their rewards."""
    if not log.is_dir():
        raise ValueError(f"there is no folder {log}; name one that recsys data export wrote")
    requests = log / REQUESTS if (log / REQUESTS).is_dir() else log
    rows = _rows(requests)
    drawn = pl.col("propensity").is_not_null().all().over("request_id")
    undrawn = rows.filter(~drawn)["request_id"].n_unique()
    rows = rows.filter(drawn)
    if rows.is_empty():
        raise ValueError(
            f"{requests} has no list with propensities: nothing in its {undrawn:,} lists "
            "was drawn, so nothing says what other lists would have earned. Let a surface explore "
            '(exploration = {method = "epsilon", epsilon = 0.1} in serving.toml) and log again'
        )
    _check_propensities(rows, requests)
    happened = _events(requests.parent)
    rewarded = _rewarded(rows, happened, reward, requests.parent)
    left_out = {"nothing in the list was drawn": undrawn}
    return _assembled(rewarded, EventHistories(happened), left_out, reward)


def _rows(requests: Path) -> pl.DataFrame:
    parts = list_parts(requests)
    if not parts:
        raise ValueError(
            f"{requests} holds no served lists; name the folder {REQUESTS} of what recsys data "
            "export wrote, or export again: the lists of the last minute wait"
        )
    found = scan_parts(parts)
    names = found.collect_schema().names()
    if missing := [name for name in COLUMNS if name not in names]:
        raise ValueError(
            f"{requests} has no column {', '.join(missing)}; name the folder {REQUESTS} of what "
            "recsys data export wrote, or export again"
        )
    columns = found.select(COLUMNS).collect()
    return columns.sort(RECEIVED_TIME, "request_id", "slot").unique(
        ["request_id", "slot"], keep="first", maintain_order=True
    )


def _check_propensities(rows: pl.DataFrame, requests: Path) -> None:
    value = pl.col("propensity")
    wrong = rows.filter((value <= 0) | (value > 1) | value.is_nan())
    if not wrong.is_empty():
        first = wrong.row(0, named=True)
        raise ValueError(
            f"{requests}: the propensity of item {first['item_id']} in slot {first['slot']} of "
            f"list {first['request_id']} is {first['propensity']} ({wrong.height} such); "
            "propensities must be in (0, 1]"
        )
    last = pl.col("slot").max().over("request_id")
    gaps = rows.filter(last + 1 != pl.len().over("request_id"))
    if not gaps.is_empty():
        raise ValueError(
            f"{requests}: list {gaps['request_id'][0]} lacks slots; a list must be whole, with "
            "slots from 0. Export again into an empty folder"
        )


def _events(folder: Path) -> pl.DataFrame:
    parts = [path for path in list_parts(folder) if REQUESTS not in path.relative_to(folder).parts]
    if not parts:
        raise ValueError(f"{folder} holds no events; name a folder that recsys data export wrote")
    columns = ("user_id", "item_id", "event_type", "event_time", "request_id", RECEIVED_TIME)
    return scan_parts(parts).select(columns).collect()


def _rewarded(
    rows: pl.DataFrame, events: pl.DataFrame, reward: Sequence[str], folder: Path
) -> pl.DataFrame:
    """Add the column ``reward``."""
    of_lists = events.join(rows.select("request_id").unique(), on="request_id", how="semi")
    chosen = of_lists.filter(pl.col("event_type").is_in(list(reward)))
    pairs = chosen.select("request_id", "item_id").unique()
    found = rows.join(
        pairs.with_columns(pl.lit(1.0).alias("reward")),
        on=["request_id", "item_id"],
        how="left",
        maintain_order="left",
    )
    found = found.with_columns(pl.col("reward").fill_null(0.0))
    if not (found["reward"] > 0).any():
        counts = of_lists["event_type"].value_counts(sort=True)["event_type"].to_list()
        there = ", ".join(counts[:NAMED]) or "none"
        raise ValueError(
            f"{folder} has no event of type {' or '.join(reward)} that names a list of the log and "
            f"an item in it, so every estimate would be 0; types that do: {there}. Choose one with "
            "--reward, and let clients send request_id with their events"
        )
    return found


def _assembled(
    rows: pl.DataFrame, events: EventHistories, left_out: Mapping[str, int], reward: Sequence[str]
) -> ServedLog:
    grouped = rows.group_by("request_id", maintain_order=True).agg(
        pl.col(RECEIVED_TIME).first().dt.epoch("ms").alias("time_ms"),
        pl.col(TEXTS).first(),
        pl.col("item_id", "propensity", "reward"),
    )
    lengths = grouped["item_id"].list.len().to_numpy().astype(np.int64)
    shape = (len(lengths), int(lengths.max()))
    there: NDArray[np.bool_] = np.arange(shape[1]) < lengths[:, None]
    rewards, chances = np.zeros(shape), np.ones(shape)
    rewards[there] = grouped["reward"].explode().to_numpy()
    chances[there] = grouped["propensity"].explode().to_numpy()
    fields = grouped.select("request_id", "time_ms", *TEXTS, "item_id")
    return ServedLog(
        lists=[ServedList(*row) for row in fields.iter_rows()],
        rewards=rewards,
        propensities=chances,
        lengths=lengths,
        left_out=left_out,
        reward=" or ".join(reward),
        events=events,
    )
