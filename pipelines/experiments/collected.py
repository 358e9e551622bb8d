"""Data of experiments: lists served in their arms, and events that name a list."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import NamedTuple

import polars as pl

from pipelines.inputs.exported import RECEIVED_TIME, REQUESTS, list_parts, scan_parts
from pipelines.inputs.opened_store import opened
from serving.online.store import OnlineStore

LISTS = pl.Schema(
    {
        "request_id": pl.String(),
        "user_id": pl.String(),
        "experiment": pl.String(),
        "arm": pl.String(),
        "served_ms": pl.Int64(),
    }
)
EVENTS = pl.Schema({"request_id": pl.String(), "received_ms": pl.Int64()})
PAGE = 20_000


class Collected(NamedTuple):
    """Lists of all experiments, and the events of one type that name a list."""

    lists: pl.DataFrame
    """`LISTS`, each list once."""
    events: pl.DataFrame
    """`EVENTS`."""
    as_of_ms: int
    """Until when everything that happened is here."""


def from_store(url: str, event_type: str) -> Collected:
    """Read an online store."""
    as_of_ms = int(1_000 * time.time())
    with opened(url) as store:
        return Collected(_lists(store, as_of_ms), _events(store, event_type), as_of_ms)


def from_export(folder: Path, event_type: str) -> Collected:
    """Read what ``recsys data export`` wrote; a list without items is not there."""
    if not (folder / REQUESTS).is_dir():
        raise ValueError(
            f"{folder} holds no served lists; name a folder that recsys data export wrote"
        )
    in_arms = pl.col("experiment").is_not_null() & pl.col("slot").eq(0)
    named = pl.col("request_id").is_not_null() & pl.col("event_type").eq(event_type)
    lists, served_ms = _exported(folder / REQUESTS, "served_ms", in_arms, LISTS)
    events, received_ms = _exported(folder, "received_ms", named, EVENTS)
    return Collected(lists, events, max(served_ms, received_ms))


def _exported(
    folder: Path, time: str, kept: pl.Expr, schema: pl.Schema
) -> tuple[pl.DataFrame, int]:
    """Read some rows of an export, and the time of its newest row; 0 without any."""
    parts = list_parts(folder)
    if not parts:
        return pl.DataFrame(schema=schema), 0
    rows = scan_parts(parts).with_columns(pl.col(RECEIVED_TIME).dt.epoch("ms").alias(time))
    newest = rows.select(pl.col(time).max()).collect().item()
    return rows.filter(kept).select(list(schema)).collect(), newest or 0


def _lists(store: OnlineStore, before_ms: int) -> pl.DataFrame:
    rows: list[tuple[str, str | None, str, str, int]] = []
    last, since_ms = "", 0
    while records := store.requests_between(since_ms, before_ms, PAGE, last):
        for record in records:
            # Parsing a document costs more than a look for the word.
            if b'"experiment"' not in record.document:
                continue
            found = json.loads(record.document).get("experiment")
            if found:
                ids = record.request_id, record.user_id
                rows.append((*ids, found["name"], found["arm"], record.time_ms))
        last, since_ms = records[-1].request_id, records[-1].time_ms
    return pl.DataFrame(rows, schema=LISTS, orient="row")


def _events(store: OnlineStore, event_type: str) -> pl.DataFrame:
    rows: list[tuple[str, int]] = []
    place = 0
    while events := store.events_after(place, PAGE):
        rows += [
            (event.request_id, event.received_ms)
            for _, event in events
            if event.request_id is not None and event.event_type == event_type
        ]
        place = events[-1][0]
    return pl.DataFrame(rows, schema=EVENTS, orient="row")
