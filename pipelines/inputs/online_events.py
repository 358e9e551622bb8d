"""Export an online store as Parquet: events for training, and served lists; and forget users.

    OUT/date=2026-11-22/part-1-5000.parquet             events by their places in the store
    OUT/requests/date=2026-11-22/part-<id>-<id>.parquet served lists, a row an item

``slot`` counts from 0, as features/ has it; the API counts from 1. ``request`` is the JSON of what
the client sent, defaults left out. ``fallback`` and ``degraded`` (codes, by commas) are of the
whole list. Parts of earlier versions lack what came later.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from features.reading.databases import masked
from pipelines.config.run import RunConfig
from pipelines.engine.forgotten import add_to_list, list_path
from pipelines.engine.workspace import bundles_dir
from pipelines.inputs.exported import RECEIVED_TIME, REQUESTS, Exported, exporting
from serving.online.opening import NO_STORE, SQLITE, is_store, open_store
from serving.online.store import OnlineStore, RequestRecord, StoreError

EVENTS_PER_PART = 200_000
LISTS_PER_PART = 20_000
SETTLED_MS = 60_000
"""Served lists of the last minute wait for the next export: several servers write them a little
later than they were served, not in the order of their ids."""
TIME = pl.Datetime("ms", "UTC")
TEXT, NUMBER, PLACE = pl.String(), pl.Float64(), pl.Int64()
EVENTS = pl.Schema({
    "user_id": TEXT, "item_id": TEXT, "event_time": TIME, "event_type": TEXT, "value": NUMBER,
    "domain": TEXT, "session_id": TEXT, "request_id": TEXT, "slot": PLACE, "event_id": TEXT,
    RECEIVED_TIME: TIME,
})  # fmt: skip
SERVED = pl.Schema({
    "request_id": TEXT, RECEIVED_TIME: TIME, "user_id": TEXT, "surface": TEXT, "bundle": TEXT,
    "experiment": TEXT, "arm": TEXT, "fallback": TEXT, "degraded": TEXT, "item_id": TEXT,
    "slot": PLACE, "score": NUMBER, "source": TEXT, "propensity": NUMBER, "request": TEXT,
})  # fmt: skip
STORED = {"event_time": "time_ms", RECEIVED_TIME: "received_ms"}
"""Names of an event's fields in the store, if they differ."""
event_row = attrgetter(*(STORED.get(name, name) for name in EVENTS))


@dataclass(frozen=True, kw_only=True)
class ExportReport:
    """Counts of an export."""

    new: int
    """Events, or served lists."""
    removed: int
    """Rows of users who were forgotten since the last export."""
    rows: int
    parts: int


class Batch(NamedTuple):
    """Events read from a store at a time."""

    first: str
    last: str
    """Keys of the first and the last one."""
    size: int
    rows: pl.DataFrame


def export_events(store: OnlineStore, out: Path) -> ExportReport:
    """Write the events that arrived since the last export, and take out who was forgotten."""

    def read(last: str) -> Batch | None:
        found = store.events_after(int(last or 0), EVENTS_PER_PART)
        if not found:
            return None
        rows = pl.DataFrame([event_row(event) for _, event in found], EVENTS, orient="row")
        rows = rows.with_columns(pl.col("slot") - 1)
        return Batch(str(found[0][0]), str(found[-1][0]), len(found), rows)

    return _export(store, out, read)


def export_requests(store: OnlineStore, out: Path, now_ms: int | None = None) -> ExportReport:
    """Write the lists that were served since the last export, likewise."""
    until_ms = (int(1_000 * time.time()) if now_ms is None else now_ms) - SETTLED_MS

    def read(last: str) -> Batch | None:
        found = store.requests_between(served_ms(last), until_ms, LISTS_PER_PART, last)
        if not found:
            return None
        rows = [row for record in found for row in list_rows(record)]
        frame = pl.DataFrame(rows, SERVED, orient="row")
        return Batch(found[0].request_id, found[-1].request_id, len(found), frame)

    return _export(store, out / REQUESTS, read)


def _export(store: OnlineStore, out: Path, read: Callable[[str], Batch | None]) -> ExportReport:
    with exporting(out) as exported:
        # Read before the rows: who is forgotten later is taken out by the next export.
        removed, new = exported.forget(out, store.forgotten()), 0
        while batch := read(exported.last):
            exported.add_days(out, batch.rows, batch.first, batch.last)
            exported.last = batch.last
            exported.write(out)
            new += batch.size
        exported.write(out)
        return ExportReport(new=new, removed=removed, rows=exported.rows, parts=len(exported.parts))


def served_ms(request_id: str) -> int:
    """Unix milliseconds at which a list was served, by its id; 0 for none."""
    return int(request_id[:12], 16) if request_id else 0


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


TIMEOUT_MS = 10_000.0


class UnreadableStoreError(ValueError):
    """The store did not answer or is broken; it may answer later."""


class StoreReport(NamedTuple):
    """Reports of an export."""

    events: ExportReport
    requests: ExportReport


def export_store(url: str, out: Path) -> StoreReport:
    """Write events and served lists that are new."""
    with opened(url) as store:
        # Lists first: an event that a list was made of is exported then too.
        lists = export_requests(store, out)
        return StoreReport(export_events(store, out), lists)


@contextmanager
def opened(url: str, *, readonly: bool = True) -> Iterator[OnlineStore]:
    """Open the store of an address until the block ends; one that is written may be new."""
    place = Path(url.removeprefix(SQLITE))
    if readonly and url.startswith(SQLITE) and not place.is_dir():
        raise ValueError(
            f"there is no online store in {place}; it is made by the first recsys serve, in the "
            "folder online of the run's workspace unless --store says otherwise"
        )
    try:
        store = open_store(url, timeout_ms=TIMEOUT_MS, readonly=readonly)
        if store is None:
            raise ValueError(f"store {url!r} holds nothing; name sqlite:FOLDER or redis://HOST")
        try:
            yield store
        finally:
            store.close()
    except StoreError as error:
        raise UnreadableStoreError(f"cannot read the store {masked(url)}: {error}") from error


def with_forgotten(config: RunConfig) -> RunConfig:
    """Add to the list whom the online store, or the export that is read, has forgotten.

    Returns:
        The configuration with the list's place, which a run's other workspaces read too.
    """
    path, place = list_path(config).absolute(), config.data.online_events
    if place is not None:
        if is_store(place):
            with opened(place) as store:
                forgotten = store.forgotten()
        else:
            forgotten = Exported.read(Path(place)).forgotten
        add_to_list(path, forgotten)
    return replace(config, data=replace(config.data, forgotten=path))


def find_store(config: RunConfig) -> str | None:
    """Return the address of a run's online store, by default the folder next to its bundles."""
    place = config.data.online_events
    if place is not None and is_store(place):
        return place
    folder = bundles_dir(config).parent / "online"
    return f"{SQLITE}{folder}" if (folder / "events.db").exists() else None


def forget_in_store(url: str, user_ids: Sequence[str], now_ms: int) -> dict[str, int]:
    """Forget users in an online store; return the removed rows by where they were."""
    removed: Counter[str] = Counter()
    if url == NO_STORE:
        return {}
    try:
        with opened(url, readonly=False) as store:
            for user_id in user_ids:
                gone = store.forget(user_id, now_ms)
                removed["events of the online store"] += gone.num_events
                removed["lists of the online store"] += gone.num_requests
    except UnreadableStoreError as error:
        raise ValueError(
            f"the list has them, and the online store does not know it: {error}; run it again"
        ) from error
    return dict(removed)
