"""Describe a data set before anything is trained on it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import polars as pl

from features.events import typed_columns
from features.ingest import EventFile
from features.scan import naming, read_whole
from features.schema import EARLIEST_YEAR, SourceConfig
from pipelines.engine.memory import free_memory

SUSPICIOUS_SHARE = 0.05
MANY_USERS_SHARE = 0.3
DOMINANT_SHARE = 0.2
MIN_EVENTS_FOR_SHARES = 10
"""Shares of fewer events mean nothing."""


@dataclass(frozen=True, kw_only=True)
class Description:
    """Facts as (name, value) rows, and what a reader should know before trusting a number."""

    facts: list[tuple[str, str]]
    warnings: list[str]


MEMORY_PER_BYTE = {".parquet": 30}
"""Bytes of memory that a byte of a file takes to describe."""
MEMORY_PER_BYTE_OF_TEXT = 8


def share_that_fits(source: SourceConfig, memory: int) -> int:
    """Choose N such that the events of one user in N fit into half of the memory."""
    needed = sum(
        path.stat().st_size * MEMORY_PER_BYTE.get(path.suffix, MEMORY_PER_BYTE_OF_TEXT)
        for path in source.paths
        if path.exists()
    )
    return max(1, -(-2 * needed // max(1, memory)))


def typed_events(source: SourceConfig, one_in: int = 1) -> pl.DataFrame:
    """Read event files as features/ reads them; what it cannot read is null.

    Args:
        source: The files.
        one_in: Read the events of one user in n, drawn by the hash of the id.
    """
    frames = []
    for path in source.paths:
        file = EventFile.open(path, source)
        with naming(path):
            frame = file.frame.select(typed_columns(file.schema, source))
            if one_in > 1:
                frame = frame.filter(pl.col("user_id").hash() % one_in == 0)
            frames.append(frame.collect())
    events = pl.concat(frames, how="diagonal_relaxed")
    if "event_time" in events.columns:
        events = events.with_columns(pl.col("event_time").cast(pl.Datetime("us", "UTC")))
    return events


def describe_tables(events: SourceConfig, items: SourceConfig | None) -> Description:
    """Describe raw tables; a sample of the users if the events do not fit into memory."""
    catalogue = None
    if items is not None:
        parts = [read_whole(path, items, ("item_id",)) for path in items.paths]
        catalogue = pl.concat(parts, how="diagonal_relaxed")
    share = share_that_fits(events, free_memory())
    description = describe(typed_events(events, share), catalogue)
    if share > 1:
        sample = f"one user in {share}, as all do not fit into memory; counts are of the sample"
        description.facts.insert(0, ("sample", sample))
    return description


def describe(events: pl.DataFrame, items: pl.DataFrame | None = None) -> Description:
    """Count a table of events with user_id, item_id, event_time and/or sequence_index."""
    num_users, num_items = events["user_id"].n_unique(), events["item_id"].n_unique()
    per_user = events.group_by("user_id").len()["len"]
    per_item = events.group_by("item_id").len()["len"]
    pairs = events.select("user_id", "item_id").n_unique()
    density = pairs / max(num_users * num_items, 1)
    facts = [
        ("events", f"{events.height:,}"),
        ("users", f"{num_users:,}"),
        ("items with events", f"{num_items:,}"),
        ("density", f"{density:.3%} of all user-item pairs"),
        ("events a user", quartiles(per_user)),
        ("events an item", quartiles(per_item)),
    ]
    if items is not None:
        facts.append(("catalogue", f"{items.height:,} items: {', '.join(items.columns)}"))
    warnings = []
    if repeated := events.height - pairs:
        warnings.append(
            f"{repeated:,} events repeat a user and item seen before; lists leave out a user's "
            "history, so where users repeat items set evaluation.exclude_history = false"
        )
    warnings += shape_warnings(events, per_user, per_item)
    if "event_time" in events.columns:
        facts.append(time_span(events))
        warnings += time_warnings(events)
    else:
        warnings.append(
            "no event_time: only the order is known, time-aware parts are off; name the column in "
            "[data.columns] if there is one"
        )
    return Description(facts=facts, warnings=warnings)


def shape_warnings(events: pl.DataFrame, per_user: pl.Series, per_item: pl.Series) -> list[str]:
    """Warn of users with one event, a dominating item, and constant columns."""
    warnings: list[str] = []
    if events.height < MIN_EVENTS_FOR_SHARES:
        return warnings
    once = int((per_user == 1).sum())
    if once / max(len(per_user), 1) > MANY_USERS_SHARE:
        warnings.append(
            f"{once:,} of {len(per_user):,} users have one event, so they give nothing to train or "
            "measure on; is user_id a session? Else set filters.min_user_events = 3"
        )
    top = per_item.max()
    if len(per_item) > 1 and isinstance(top, int) and top / events.height > DOMINANT_SHARE:
        item_id = events["item_id"].value_counts(sort=True)["item_id"][0]
        warnings.append(
            f"item {item_id!r} has {top / events.height:.0%} of the events; if it is no item (a "
            "bag, a voucher, a default), remove its rows"
        )
    if "value" in events.columns and events.height > 1 and events["value"].n_unique() == 1:
        warnings.append("value is the same in every event; leave filters.min_value unset")
    return warnings


def quartiles(counts: pl.Series) -> str:
    """Write least, median and most of a series of counts."""
    if counts.is_empty():
        return "none"
    ordered = sorted(counts.to_list())
    middle = ordered[len(ordered) // 2]
    return f"{ordered[0]:,} least, {middle:,} median, {ordered[-1]:,} most"


def time_span(events: pl.DataFrame) -> tuple[str, str]:
    """Write the first and the last day as a fact."""
    first, last = events["event_time"].min(), events["event_time"].max()
    if not isinstance(first, datetime) or not isinstance(last, datetime):
        return ("time span", "no times")
    days = (last - first).total_seconds() / 86_400
    return ("time span", f"{first:%Y-%m-%d} to {last:%Y-%m-%d} ({days:,.0f} days)")


def time_warnings(events: pl.DataFrame) -> list[str]:
    """Warn of unreadable, tied, day-resolution, id-sorted, future and early times."""
    warnings = []
    if unreadable := events["event_time"].null_count():
        warnings.append(
            f"{unreadable:,} events have no readable event_time and will be quarantined; see "
            "data.time_unit and data.time_format"
        )
        events = events.drop_nulls("event_time")
    keys = ["user_id", "event_time"]
    tied = events.filter(pl.struct(keys).is_duplicated())
    if (share := tied.height / max(events.height, 1)) > SUSPICIOUS_SHARE:
        warnings.append(
            f"{share:.0%} of the events share their time with another of the same user, so the "
            "order within a tie decides what is predicted; evaluate with "
            'splits.tie_orders = ["given", "shuffled"] and read both'
        )
        if id_sorted_share(tied) > 1 - SUSPICIOUS_SHARE:
            warnings.append(
                "tied events stand in ascending order of item_id: the file was sorted by id, and "
                "the given order leaks nothing true about what came first"
            )
    whole_days = (events["event_time"] == events["event_time"].dt.truncate("1d")).all()
    if whole_days and events.height > 0:
        warnings.append(
            "event_time has the resolution of a day, so the order within one is unknown; if the "
            "source has the time, export it, or name the column of the order as sequence_index"
        )
    if future := events.filter(pl.col("event_time") > datetime.now(UTC)).height:
        warnings.append(
            f"{future:,} events lie in the future and will be quarantined; is data.time_unit right "
            "(s, ms, us), or data.time_zone?"
        )
    if early := events.filter(pl.col("event_time").dt.year() < EARLIEST_YEAR).height:
        warnings.append(
            f"{early:,} events lie before {EARLIEST_YEAR} and will be quarantined; is "
            "data.time_unit right, or is 0 written where a time is unknown?"
        )
    return warnings


def id_sorted_share(tied: pl.DataFrame) -> float:
    """Share of neighbouring tied events whose item ids ascend."""
    order = ["user_id", "event_time"]
    if "sequence_index" in tied.columns:
        order.append("sequence_index")
    neighbours = (
        tied.sort(order, maintain_order=True)
        .with_columns(pl.col("item_id").shift(1).over("user_id", "event_time").alias("before"))
        .drop_nulls("before")
    )
    if neighbours.is_empty():
        return 0.0
    return neighbours.filter(pl.col("item_id") > pl.col("before")).height / neighbours.height
