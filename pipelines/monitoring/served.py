"""What a server's export says of each day: lists, clicks, fallbacks, degraded lists."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import NamedTuple

import polars as pl

from pipelines.inputs.exported import RECEIVED_TIME, REQUESTS, list_parts, scan_parts

CLICKS = ("click", "like", "cart", "purchase")


class ServedDay(NamedTuple):
    """One day (UTC)."""

    num_lists: int
    num_clicked: int
    """Lists with at least one click, whenever that came."""
    num_fallback: int | None
    """None where the export does not say."""
    num_degraded: int | None


def served_days(folder: Path | None) -> Mapping[date, ServedDay]:
    """Read an export of ``recsys data export``; nothing where there is none."""
    if folder is None or not (folder / REQUESTS).is_dir():
        return {}
    lists = _read(list_parts(folder / REQUESTS))
    if lists is None:
        return {}
    return days_of_lists(lists, _read(list_parts(folder)))


def days_of_lists(served: pl.DataFrame, events: pl.DataFrame | None) -> dict[date, ServedDay]:
    """Count lists by day.

    Args:
        served: A row an item, see pipelines/inputs/online_events.py.
        events: With request_id.
    """
    clicked = pl.Series("request_id", [], pl.String)
    if events is not None and events.height:
        clicked = events.filter(pl.col("event_type").is_in(CLICKS))["request_id"].drop_nulls()
    known = [name for name in ("fallback", "degraded") if name in served.columns]
    lists = served.unique("request_id").select(
        pl.col(RECEIVED_TIME).dt.date().alias("day"),
        pl.col("request_id").is_in(clicked.unique().implode()).alias("clicked"),
        *(pl.col(name).is_not_null().alias(name) for name in known),
    )
    counted = lists.group_by("day").agg(pl.len().alias("lists"), pl.col("clicked", *known).sum())
    return {
        row["day"]: ServedDay(
            row["lists"], row["clicked"], row.get("fallback"), row.get("degraded")
        )
        for row in counted.sort("day").to_dicts()
    }


def _read(paths: list[Path]) -> pl.DataFrame | None:
    if not paths:
        return None
    wanted = ("request_id", RECEIVED_TIME, "event_type", "fallback", "degraded")
    rows = scan_parts(paths)
    known = rows.collect_schema().names()
    return rows.select([name for name in wanted if name in known]).collect()
