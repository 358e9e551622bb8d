"""The process that writes served lists: its commits take no time from the front or from workers.

The front sends records as bytes, unread, in messages of

    4 bytes length | a record; of length 0 it is a flush

and is sent counts: after each commit, and once all before a flush is written or dropped. Where the
front is gone the process writes what it has, and ends.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from logging import ERROR, WARNING
from typing import NamedTuple

from serving.log import is_logged, log
from serving.online.records import record_of
from serving.online.store import OnlineStore, RequestRecord, StoreError

LENGTH = struct.Struct("<I")
FLUSH = LENGTH.pack(0)
COUNTS = struct.Struct("<QQQ")
"""Bytes of `LogCounts`."""
READ_BYTES = 1 << 20
RETRY_SECONDS = 0.5
"""Between attempts to write what a store refused."""
NICENESS = 5
"""Lists go before their records where both want a core."""


MAX_WAITING_RECORDS = 10_000
MAX_RECORDS = 1_000
"""Records of one commit."""


@dataclass
class WriterCounts:
    """Counts of a writer so far."""

    num_events: dict[str, int] = field(default_factory=dict)
    """New events by type."""
    num_duplicates: int = 0
    """Events that were there already, or were forgotten on their way."""
    num_records: int = 0
    num_dropped: int = 0
    """Records that the store could not follow."""
    num_failures: int = 0

    def failed(self, error: Exception) -> None:
        """Count a failure; the log has the first, then every 2nd, 4th, 8th."""
        self.num_failures += 1
        times = self.num_failures
        if is_logged(times):
            level = WARNING if isinstance(error, StoreError) else ERROR
            log("store_write_failed", {"times": times, "error": str(error)}, level=level)


class RecordQueue:
    """Records that wait for the store; the oldest are dropped if too many wait."""

    def __init__(self, store: OnlineStore, written: WriterCounts) -> None:
        self._store, self._written = store, written
        self._records: deque[RequestRecord] = deque()

    def __len__(self) -> int:
        """Number of waiting records."""
        return len(self._records)

    def add(self, record: RequestRecord) -> None:
        """Keep a record, soon; the oldest are dropped where too many wait."""
        if len(self._records) >= MAX_WAITING_RECORDS:
            self._records.popleft()
            self._written.num_dropped += 1
        self._records.append(record)

    def write(self) -> None:
        """Write the waiting records; they stay if the store fails."""
        while self._records:
            count = min(MAX_RECORDS, len(self._records))
            records = [self._records.popleft() for _ in range(count)]
            try:
                self._store.add_requests(records)
            except StoreError as error:
                self._written.failed(error)
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
        """Count the waiting records as dropped."""
        self._written.num_dropped += len(self._records)
        self._records.clear()


class LogCounts(NamedTuple):
    """Counts of the process so far."""

    num_kept: int = 0
    num_dropped: int = 0
    num_flushes: int = 0


def run_request_log(source: socket.socket, store: OnlineStore) -> None:
    """Write the records of a socket until its other end is closed."""
    os.nice(NICENESS)
    RequestLogWriter(source, store).run()
    store.close()


class RequestLogWriter:
    """Reads and writes in turn: what arrives during a commit is in the next."""

    def __init__(self, source: socket.socket, store: OnlineStore) -> None:
        self._socket, self._bytes = source, bytearray()
        self._written = WriterCounts()
        self._queue = RecordQueue(store, self._written)
        self._num_flushes = self._num_flushed = 0

    def run(self) -> None:
        """Work until the front closes its end."""
        is_open = True
        while is_open:
            wait = RETRY_SECONDS if len(self._queue) else None
            if select.select([self._socket], [], [], wait)[0]:
                data = self._socket.recv(READ_BYTES)
                is_open = bool(data)
                self._take(data)
            self._queue.write()
            self._report()
        self._queue.drop()
        self._report()

    def _take(self, data: bytes) -> None:
        self._bytes += data
        for message in self._messages():
            if not message:
                self._num_flushes += 1
                continue
            try:
                self._queue.add(record_of(message))
            except (ValueError, LookupError) as error:
                self._written.num_dropped += 1
                self._written.failed(error)

    def _messages(self) -> Iterator[bytes]:
        begin, size = 0, len(self._bytes)
        while size - begin >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._bytes, begin)
            end = begin + LENGTH.size + length
            if end > size:
                break
            yield bytes(self._bytes[begin + LENGTH.size : end])
            begin = end
        del self._bytes[:begin]

    def _report(self) -> None:
        """Send counts; a flush is done once nothing waits."""
        if not len(self._queue):
            self._num_flushed = self._num_flushes
        counts = (self._written.num_records, self._written.num_dropped, self._num_flushed)
        # Without a front, no process counts.
        with suppress(OSError):
            self._socket.sendall(COUNTS.pack(*counts))
