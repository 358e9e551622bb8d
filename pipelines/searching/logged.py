"""Queries of the log: the exported lists of searches, with the events that name them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import polars as pl

from pipelines.inputs.exported import RECEIVED_TIME, list_parts, list_served, scan_parts
from recsys.models.text_search.logged import LoggedQuery

MAX_LOGGED = 5_000
"""Queries of the log that are read, the latest."""


def read_logged(folder: Path, rows: Mapping[str, int], types: Collection[str]) -> list[LoggedQuery]:
    """Read the queries of an export, oldest first.

    Args:
        rows: Item rows by id.
        types: Event types by which an item is chosen.
    """
    lists = list_served(folder)
    events = [path for path in list_parts(folder) if path not in lists]
    if not lists or not events:
        return []
    text = pl.col("request").str.json_path_match("$.query").alias("text")
    searches = (
        scan_parts(lists)
        .select("request_id", RECEIVED_TIME, text, "item_id", "slot")
        .filter(pl.col("text").is_not_null())
        .unique(["request_id", "slot"])
        .sort(RECEIVED_TIME, "request_id", "slot")
        .group_by("request_id", maintain_order=True)
        .agg(pl.col("text").first(), pl.col("item_id"))
    )
    chosen = scan_parts(events).filter(pl.col("event_type").is_in(list(types)))
    chosen = chosen.select("request_id", chosen="item_id").unique(maintain_order=True)
    pairs = searches.join(chosen, on="request_id", how="inner", maintain_order="left_right")
    found = []
    for text, items, item in pairs.drop("request_id").tail(MAX_LOGGED).collect().iter_rows():
        listed = tuple(rows.get(one, 0) for one in items)
        if item in items and item in rows:
            found.append(LoggedQuery(text, listed, items.index(item)))
    return found
