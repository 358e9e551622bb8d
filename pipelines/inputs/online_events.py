"""Export an online store as Parquet: events for training, and served lists.

    OUT/date=2026-11-22/part-1-5000.parquet             events by their places in the store
    OUT/requests/date=2026-11-22/part-<id>-<id>.parquet served lists, a row an item

``slot`` counts from 0, as features/ has it; the API counts from 1. ``request`` is the JSON of what
the client sent, defaults left out. ``fallback`` and ``degraded`` (codes, by commas) are of the
whole list. Parts of earlier versions lack what came later.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from pipelines.inputs.exported import RECEIVED_TIME, REQUESTS, Exported, exporting
from serving.online.events import Event
from serving.online.store import OnlineStore, RequestRecord

EVENTS_PER_PART = 200_000
LISTS_PER_PART = 20_000
SETTLED_MS = 60_000
"""Served lists of the last minute wait for the next export: several servers write them a little
later than they were served, not in the order of their ids."""
TIME = pl.Datetime("ms", "UTC")
EVENTS = pl.Schema(
    {
        "user_id": pl.String(),
        "item_id": pl.String(),
        "event_time": TIME,
        "event_type": pl.String(),
        "value": pl.Float64(),
        "domain": pl.String(),
        "session_id": pl.String(),
        "request_id": pl.String(),
        "slot": pl.Int64(),
        "event_id": pl.String(),
        RECEIVED_TIME: TIME,
    }
)
SERVED = pl.Schema(
    {
        "request_id": pl.String(),
        RECEIVED_TIME: TIME,
        "user_id": pl.String(),
        "surface": pl.String(),
        "bundle": pl.String(),
        "experiment": pl.String(),
        "arm": pl.String(),
        "fallback": pl.String(),
        "degraded": pl.String(),
        "item_id": pl.String(),
        "slot": pl.Int64(),
        "score": pl.Float64(),
        "source": pl.String(),
        "propensity": pl.Float64(),
        "request": pl.String(),
    }
)


@dataclass(frozen=True, kw_only=True)
class ExportReport:
    """Counts of an export."""

    new: int
    """Events, or served lists."""
    removed: int
    """Rows of users who were forgotten since the last export."""
    rows: int
    parts: int

    @classmethod
    def of(cls, exported: Exported, new: int, removed: int) -> ExportReport:
        return cls(new=new, removed=removed, rows=exported.rows, parts=len(exported.parts))


def export_events(store: OnlineStore, out: Path) -> ExportReport:
    """Write the events that arrived since the last export, and take out who was forgotten."""
    with exporting(out) as exported:
        # Read before the events: who is forgotten later is taken out by the next export.
        removed, new = exported.forget(out, store.forgotten()), 0
        while events := store.events_after(int(exported.last or 0), EVENTS_PER_PART):
            rows = [event_row(event) for _, event in events]
            frame = pl.DataFrame(rows, schema=EVENTS, orient="row")
            first, last = str(events[0][0]), str(events[-1][0])
            exported.add_days(out, frame, first, last)
            exported.last = last
            exported.write(out)
            new += len(events)
        exported.write(out)
        return ExportReport.of(exported, new, removed)


def export_requests(store: OnlineStore, out: Path, now_ms: int | None = None) -> ExportReport:
    """Write the lists that were served since the last export, likewise."""
    now_ms = int(1_000 * time.time()) if now_ms is None else now_ms
    folder = out / REQUESTS
    with exporting(folder) as exported:
        removed, new = exported.forget(folder, store.forgotten()), 0
        while records := store.requests_between(
            served_ms(exported.last), now_ms - SETTLED_MS, LISTS_PER_PART, exported.last
        ):
            rows = [row for record in records for row in list_rows(record)]
            frame = pl.DataFrame(rows, schema=SERVED, orient="row")
            first, last = records[0].request_id, records[-1].request_id
            exported.add_days(folder, frame, first, last)
            exported.last = last
            exported.write(folder)
            new += len(records)
        exported.write(folder)
        return ExportReport.of(exported, new, removed)


def served_ms(request_id: str) -> int:
    """Unix milliseconds at which a list was served, by its id; 0 for none."""
    return int(request_id[:12], 16) if request_id else 0


def event_row(event: Event) -> tuple[Any, ...]:
    """Return an event as a row of `EVENTS`."""
    return (
        event.user_id,
        event.item_id,
        event.time_ms,
        event.event_type,
        event.value,
        event.domain,
        event.session_id,
        event.request_id,
        None if event.slot is None else event.slot - 1,
        event.event_id,
        event.received_ms,
    )


def list_rows(record: RequestRecord) -> Iterator[tuple[Any, ...]]:
    """Yield a served list as rows of `SERVED`, best first."""
    document = json.loads(record.document)
    experiment = document.get("experiment") or {}
    request = json.dumps(document.get("request") or {})
    of_list = (
        record.request_id,
        record.time_ms,
        record.user_id,
        document.get("surface"),
        document.get("bundle"),
        experiment.get("name"),
        experiment.get("arm"),
        document.get("fallback"),
        ",".join(document.get("degraded", [])) or None,
    )
    for slot, item in enumerate(document["items"]):
        own = (item["item_id"], slot, item.get("score"), item.get("source"), item.get("propensity"))
        yield (*of_list, *own, request)
