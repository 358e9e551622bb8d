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
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from serving.online.record_queue import RecordQueue, Written
from serving.online.records import record_of
from serving.online.store import OnlineStore

LENGTH = struct.Struct("<I")
FLUSH = LENGTH.pack(0)
COUNTS = struct.Struct("<QQQ")
"""Of `Counts`."""
READ_BYTES = 1 << 20
RETRY_SECONDS = 0.5
"""Between attempts to write what a store refused."""
NICENESS = 5
"""Lists go before their records where both want a core."""


class Counts(NamedTuple):
    """What the process has done so far."""

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
        self._written = Written()
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
        # Where the front is gone nobody counts.
        with suppress(OSError):
            self._socket.sendall(COUNTS.pack(*counts))
