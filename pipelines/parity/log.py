"""What was logged: records of served lists, and the events of those users in order of arrival."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from features.forget_list import NOBODY, ForgetList
from pipelines.inputs.exported import RECORDS, Exported, list_parts
from pipelines.inputs.online_events import EVENTS_PER_PART, LISTS_PER_PART
from serving.online.events import HISTORY_TYPES
from serving.online.store import OnlineStore, RecentEvent

OF_STORE = "serving.online.store.OnlineStore.visitor"
OF_EXPORT = "pipelines.inputs.online_events.export_events"
Document = Mapping[str, Any]
END_MS = 1 << 48


class StoredEvent(NamedTuple):
    """An event of a user's history."""

    event: RecentEvent
    received_ms: int


@dataclass(frozen=True, kw_only=True)
class Log:
    """A sample of the served lists with all that their histories may hold."""

    documents: Sequence[Document]
    """In the order of their ids."""
    num_requests: int
    """Lists there are, sampled or not."""
    events: Mapping[str, Sequence[StoredEvent]]
    """By user, in the order of arrival."""
    forgotten: ForgetList = NOBODY
    """When users were forgotten."""
    items_version: int | None = None
    """Of the store; None where an export does not say."""
    hidden: Sequence[str] = ()
    """Items that are hidden as of that version."""
    reader: str = OF_STORE
    """The code that histories come from."""

    def forgotten_ms(self, user_id: str | None) -> int | None:
        """Return when a user was forgotten; None if never."""
        return None if user_id is None else self.forgotten.moment(user_id)


def log_of_store(store: OnlineStore, sample: int, since_ms: int = 0) -> Log:
    """Sample the lists of a store.

    Raises:
        StoreError: It cannot be read.
    """
    documents, number = _sampled(_stored(store, since_ms), sample)
    users = {document.get("user_id") for document in documents}
    events: dict[str, list[StoredEvent]] = {}
    place = 0
    while found := store.events_after(place, EVENTS_PER_PART):
        place = found[-1][0]
        for _, event in found:
            if event.user_id in users and event.event_type in HISTORY_TYPES:
                recent = RecentEvent(event.item_id, event.event_type, event.time_ms)
                own = events.setdefault(event.user_id, [])
                own.append(StoredEvent(recent, event.received_ms))
    version, hidden = store.hidden_items()
    return Log(
        documents=documents,
        num_requests=number,
        events=events,
        forgotten=store.forgotten(),
        items_version=version,
        hidden=hidden,
    )


def log_of_export(folder: Path, sample: int, since_ms: int = 0) -> Log:
    """Sample the lists of a folder that ``recsys data export --records`` wrote.

    Raises:
        ValueError: It holds no records.
    """
    records = folder / RECORDS
    if not records.is_dir():
        raise ValueError(
            f"{folder} holds no records of served lists: there is no folder {RECORDS} in it; write "
            "them with recsys data export --records, or name the store with --store"
        )
    documents, number = _sampled(_exported(list_parts(records), since_ms), sample)
    users = pl.Series([document.get("user_id") for document in documents], dtype=pl.String)
    kept = pl.col("user_id").is_in(users.drop_nulls().unique().implode())
    kept &= pl.col("event_type").is_in(HISTORY_TYPES)
    columns = ("user_id", "item_id", "event_type", "event_time", "received_time")
    events: dict[str, list[StoredEvent]] = {}
    for path in sorted(list_parts(folder), key=_first_place):
        rows = pl.read_parquet(path, columns=list(columns), hive_partitioning=False).filter(kept)
        times = [rows[name].dt.epoch("ms").to_list() for name in columns[3:]]
        texts = [rows[name].to_list() for name in columns[:3]]
        for user, item, kind, time_ms, received_ms in zip(*texts, *times, strict=True):
            own = events.setdefault(user, [])
            own.append(StoredEvent(RecentEvent(item, kind, time_ms), received_ms))
    return Log(
        documents=documents,
        num_requests=number,
        events=events,
        forgotten=Exported.read(folder).forgotten,
        reader=OF_EXPORT,
    )


def _first_place(path: Path) -> tuple[int, str]:
    """Order parts as their events arrived: part-<first>-<last>, a day's beside the next one's."""
    return int(path.stem.split("-")[1]), path.parent.name


def _stored(store: OnlineStore, since_ms: int) -> Iterator[tuple[str, bytes]]:
    last = ""
    while records := store.requests_between(since_ms, END_MS, LISTS_PER_PART, last):
        last = records[-1].request_id
        for record in records:
            yield record.request_id, record.document


def _exported(paths: Sequence[Path], since_ms: int) -> Iterator[tuple[str, bytes]]:
    for path in paths:
        rows = pl.read_parquet(path, columns=["request_id", "document"], hive_partitioning=False)
        for request_id, document in rows.iter_rows():
            if int(request_id[:12], 16) >= since_ms:
                yield request_id, document.encode()


def _sampled(records: Iterable[tuple[str, bytes]], sample: int) -> tuple[list[Document], int]:
    """Choose by the drawn part of the ids, the same ones each time.

    Those with the lowest digits keep their features too (`is_kept` of
    serving/snapshot.py): of a long log the sample is made of them.
    """
    number = 0

    def counted() -> Iterator[tuple[str, bytes]]:
        nonlocal number
        for record in records:
            number += 1
            yield record

    chosen = heapq.nsmallest(sample, counted(), key=lambda record: record[0][12:])
    return [json.loads(document) for _, document in sorted(chosen)], number
