"""Say what a data set holds before anything is trained on it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import polars as pl

SUSPICIOUS_SHARE = 0.05


@dataclass(frozen=True, kw_only=True)
class Description:
    """Facts as (name, value) rows, and what a reader should know before trusting a number."""

    facts: list[tuple[str, str]]
    warnings: list[str]


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
        warnings.append(f"{repeated:,} events repeat a user and item seen before")
    if "event_time" in events.columns:
        facts.append(time_span(events))
        warnings += time_warnings(events)
    else:
        warnings.append("no event_time: only the order is known, time-aware parts are off")
    return Description(facts=facts, warnings=warnings)


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
    """Find tied, day-resolution, id-sorted and future times."""
    warnings = []
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
        warnings.append("event_time has the resolution of a day")
    if future := events.filter(pl.col("event_time") > datetime.now(UTC)).height:
        warnings.append(f"{future:,} events lie in the future")
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
