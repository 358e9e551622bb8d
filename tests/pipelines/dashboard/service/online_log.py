"""A request log made by hand: one list a second, of which everything is known."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from serving.online.sqlite_store import SqliteStore
from serving.online.store import RequestRecord

BEGIN_MS = 1_767_225_600_000
"""2026-01-01 00:00 UTC."""


def record(number: int, time_ms: int, **changes: object) -> RequestRecord:
    """Make the record of a list."""
    request_id = f"{time_ms:012x}{number:020x}"
    document = {
        "request_id": request_id,
        "unix_ms": time_ms,
        "bundle": "v1",
        "profile": "fast",
        "surface": "home",
        "user_id": f"u{number}",
        "request": {"k": 2},
        "items": [{"item_id": f"i{slot}", "score": 1.0, "source": "ease"} for slot in range(2)],
        "digest": "0" * 64,
        "configuration": "built-in",
        "unix_time": time_ms // 1_000,
        **changes,
    }
    kept = {name: value for name, value in document.items() if value is not None}
    return RequestRecord(request_id, time_ms, kept.get("user_id"), json.dumps(kept).encode())


def write_log(
    folder: Path,
    num_lists: int,
    of: Callable[[int], Mapping[str, object]],
    *,
    begin_ms: int = BEGIN_MS,
    every_ms: int = 1_000,
    first: int = 0,
) -> list[RequestRecord]:
    """Append lists; ``of`` says what is special about each."""
    records = [
        record(number, begin_ms + number * every_ms, **of(number))
        for number in range(first, first + num_lists)
    ]
    store = SqliteStore(folder)
    store.add_requests(records)
    store.close()
    return records
