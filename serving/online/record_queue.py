"""Records of served lists that wait for the store, and counts of what a writer has done.

Where the store fails they wait for the next time, and the oldest are dropped where too many do.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from logging import ERROR, WARNING
from threading import Lock

from serving.log import is_logged, log
from serving.online.store import OnlineStore, RequestRecord, StoreError

MAX_WAITING_RECORDS = 10_000
MAX_RECORDS = 1_000
"""Records of one commit."""


@dataclass
class Written:
    """What a writer has done so far."""

    num_events: dict[str, int] = field(default_factory=dict)
    """New events by type."""
    num_duplicates: int = 0
    """Events that were there already, or were forgotten on their way."""
    num_records: int = 0
    num_dropped: int = 0
    """Records that the store could not follow."""
    num_commits: int = 0
    num_failures: int = 0
    commit_seconds: float = 0.0

    def failed(self, error: Exception) -> None:
        """Count a failure; the log has the first, then every 2nd, 4th, 8th."""
        self.num_failures += 1
        times = self.num_failures
        if is_logged(times):
            level = WARNING if isinstance(error, StoreError) else ERROR
            log("store_write_failed", {"times": times, "error": str(error)}, level=level)


class RecordQueue:
    """Filled by any thread, written by one."""

    def __init__(self, store: OnlineStore, written: Written) -> None:
        self._store, self._written = store, written
        self._records: deque[RequestRecord] = deque()
        self._lock = Lock()

    def __len__(self) -> int:
        """Number of waiting records."""
        return len(self._records)

    def add(self, record: RequestRecord) -> None:
        """Keep a record, soon; the oldest are dropped where too many wait."""
        with self._lock:
            if len(self._records) >= MAX_WAITING_RECORDS:
                self._records.popleft()
                self._written.num_dropped += 1
            self._records.append(record)

    def write(self) -> None:
        """Write what waits; where the store fails it goes on waiting."""
        while self._records:
            with self._lock:
                count = min(MAX_RECORDS, len(self._records))
                records = [self._records.popleft() for _ in range(count)]
            try:
                self._store.add_requests(records)
            except StoreError as error:
                self._written.failed(error)
                with self._lock:
                    room = max(0, MAX_WAITING_RECORDS - len(self._records))
                    kept = records[-room:] if room else []
                    self._records.extendleft(reversed(kept))
                    self._written.num_dropped += len(records) - len(kept)
                return
            except Exception as error:
                self._written.failed(error)
                self._written.num_dropped += len(records)
            else:
                self._written.num_records += len(records)

    def drop(self) -> None:
        """Count what waits as dropped: nobody will write it."""
        with self._lock:
            self._written.num_dropped += len(self._records)
            self._records.clear()
