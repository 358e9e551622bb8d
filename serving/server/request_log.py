"""The front's end of the request log: records of served lists on their way to their writer.

They are collected for a twentieth of a second and sent as they are to the process that writes them
(serving/online/request_log.py). Where it cannot follow, or is gone for long, the newest are dropped
and counted: no list waits for its record.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from logging import ERROR, WARNING
from typing import cast

from serving.log import is_logged, log
from serving.online.request_log import COUNTS, FLUSH, LENGTH, LogCounts

COLLECT_SECONDS = 0.05
MAX_WAITING_BYTES = 16 << 20
"""Some 10,000 records of lists of 20."""
PAUSE_SECONDS = 1.0
"""Before a process that ended is replaced, where it lived shorter."""
FLUSH_SECONDS = 5.0
CLOSE_SECONDS = 30.0
Fork = Callable[[int], Awaitable[None]]
"""Starts the process with a descriptor of its end of a socket; where it fails the end is closed."""


class RequestLog(asyncio.Protocol):
    """Sends records to a process, and replaces it when it ends; called from one event loop."""

    def __init__(self, fork: Fork, count: Callable[[int, int], None]) -> None:
        """Send nothing before `run`.

        Args:
            count: Called with numbers of records that were kept, and that were dropped.
        """
        self._fork, self._count = fork, count
        self._parts: list[bytes] = []
        self._num_bytes = self._num_records = 0
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.WriteTransport | None = None
        self._lost: asyncio.Future[None] | None = None
        self._received = bytearray()
        self._closing = False
        self._num_overflows = 0
        self._unsent_flushes: list[asyncio.Future[None]] = []
        self._sent_flushes: deque[asyncio.Future[None]] = deque()
        # Of the process at hand.
        self._num_sent, self._counts = 0, LogCounts()

    def log(self, documents: bytes, lengths: list[int]) -> None:
        """Keep records, soon.

        Args:
            documents: Records in a row.
            lengths: Of each, in bytes.
        """
        waiting = self._num_bytes
        if self._transport is not None:
            waiting += self._transport.get_write_buffer_size()
        if waiting > MAX_WAITING_BYTES:
            self._num_overflows += 1
            if is_logged(self._num_overflows):
                log("lists_not_kept", {"times": self._num_overflows}, level=WARNING)
            self._count(0, len(lengths))
            return
        begin = 0
        for length in lengths:
            self._parts += (LENGTH.pack(length), documents[begin : begin + length])
            begin += length
        self._num_bytes += len(documents)
        self._num_records += len(lengths)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(COLLECT_SECONDS, self._send)

    async def flushed(self) -> bool:
        """Wait until no record so far will be written any more; False where it takes too long."""
        done = asyncio.get_running_loop().create_future()
        self._parts.append(FLUSH)
        self._unsent_flushes.append(done)
        self._send()
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_SECONDS):
                await done
                return True
        return False

    async def run(self) -> None:
        """Start the process, and another one whenever it ends."""
        while not self._closing:
            begin, failure = time.monotonic(), "it ended"
            try:
                await self._run_once()
            except (ValueError, OSError) as error:
                failure = str(error)
            if not self._closing:
                log("request_log_ended", {"error": failure}, level=ERROR)
                await asyncio.sleep(max(0.0, PAUSE_SECONDS - (time.monotonic() - begin)))

    async def _run_once(self) -> None:
        """Start the process, and wait until it ends."""
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                await self._fork(theirs.fileno())
            self._lost = loop.create_future()
            await loop.create_unix_connection(lambda: self, sock=ours)
        except BaseException:
            ours.close()
            raise
        # Not the future itself, which would be cancelled with the task.
        await asyncio.wait([self._lost])

    async def close(self) -> None:
        """Send what waits and let the process end, once it has written it."""
        self._closing = True
        if self._transport is None or self._lost is None:
            self._count(0, self._num_records)
            return
        self._send()
        self._transport.write_eof()
        await asyncio.wait([self._lost], timeout=CLOSE_SECONDS)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        self._num_sent, self._counts = 0, LogCounts()
        self._received.clear()
        self._send()

    def data_received(self, data: bytes) -> None:
        self._received += data
        whole = len(self._received) - len(self._received) % COUNTS.size
        if not whole:
            return
        before = self._counts
        self._counts = now = LogCounts(*COUNTS.unpack_from(self._received, whole - COUNTS.size))
        del self._received[:whole]
        self._count(now.num_kept - before.num_kept, now.num_dropped - before.num_dropped)
        self._finish(now.num_flushes - before.num_flushes)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        # What it had and did not report is lost with it.
        self._count(0, self._num_sent - self._counts.num_kept - self._counts.num_dropped)
        self._finish(len(self._sent_flushes))
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(None)

    def _send(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is None or not self._parts:
            return
        self._transport.write(b"".join(self._parts))
        self._num_sent += self._num_records
        self._sent_flushes += self._unsent_flushes
        self._parts, self._unsent_flushes = [], []
        self._num_bytes = self._num_records = 0

    def _finish(self, num_flushes: int) -> None:
        for _ in range(num_flushes):
            done = self._sent_flushes.popleft()
            if not done.done():
                done.set_result(None)
