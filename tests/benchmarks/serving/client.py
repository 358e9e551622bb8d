"""A light HTTP/1.1 client for load: a protocol on uvloop, one request in flight a connection."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

WARM_SHARE = 0.1
"""Of a closed loop's time that is not counted."""
LENGTH = b"content-length: "
WARM_SECONDS = 1.0
"""Of an open loop that are not counted: it opens its connections."""


@dataclass
class Outcome:
    """What a loop got: milliseconds of each request by status, 0 where the connection broke."""

    seconds: float
    by_status: dict[int, list[float]] = field(default_factory=dict)

    def add(self, status: int, ms: float) -> None:
        self.by_status.setdefault(status, []).append(ms)

    @property
    def rate(self) -> float:
        """Good replies a second."""
        return len(self.by_status.get(200, [])) / self.seconds

    def percentile(self, share: float, status: int = 200) -> float:
        found = self.by_status.get(status, [])
        return float(np.percentile(found, share)) if found else float("nan")

    @property
    def counts(self) -> Counter[int]:
        return Counter({status: len(found) for status, found in self.by_status.items()})


class Connection(asyncio.Protocol):
    """Sends a request and tells the status of its reply."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._done: Callable[[int], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def request(self, message: bytes, done: Callable[[int], None]) -> None:
        self._done = done
        self.transport.write(message)

    def data_received(self, data: bytes) -> None:
        if self._bytes:
            self._bytes += data
            data = bytes(self._bytes)
        end = data.find(b"\r\n\r\n")
        head = data[:end].lower()
        begin = head.find(LENGTH) + len(LENGTH)
        if end < 0 or len(data) < end + 4 + int(head[begin:].split(b"\r\n", 1)[0]):
            self._bytes = self._bytes or bytearray(data)
            return
        self._bytes.clear()
        if b"connection: close" in head:
            self.transport.close()
        self._finish(int(head[9:12]))

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish(0)

    def _finish(self, status: int) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(status)


async def connected(port: int) -> Connection:
    _, connection = await asyncio.get_running_loop().create_connection(
        Connection, "127.0.0.1", port
    )
    return connection


def messages(bodies: Sequence[bytes], path: str = "/v1/recommend") -> list[bytes]:
    """Write requests as bytes."""
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    return [f"{head}content-length: {len(body)}\r\n\r\n".encode() + body for body in bodies]


async def closed_loop(
    port: int, requests: Sequence[bytes], connections: int, seconds: float
) -> Outcome:
    """Each connection sends its next request as soon as it has a reply."""
    counted = seconds * (1 - WARM_SHARE)
    outcome, begin = Outcome(counted), time.perf_counter()
    end = begin + seconds

    async def client(number: int) -> None:
        connection, place = await connected(port), number
        while (sent := time.perf_counter()) < end:
            reply = asyncio.get_running_loop().create_future()
            connection.request(requests[place % len(requests)], reply.set_result)
            status = await reply
            now = time.perf_counter()
            if end - counted <= now < end:
                outcome.add(status, 1_000 * (now - sent))
            if connection.transport.is_closing():
                connection = await connected(port)
            place += connections

    await asyncio.gather(*(client(number) for number in range(connections)))
    return outcome


class Arrivals:
    """Sends requests at their times, on a connection that is idle or a new one."""

    def __init__(self, port: int, outcome: Outcome, waiting: int) -> None:
        self._port, self._outcome, self._waiting = port, outcome, waiting
        self._idle: list[Connection] = []
        self._opening: set[asyncio.Task[None]] = set()
        self.zero = time.perf_counter() + 0.05
        self.done = asyncio.Event()

    def send(self, planned: float, message: bytes) -> None:
        # A server closes connections that have not sent anything for long.
        while self._idle and self._idle[-1].transport.is_closing():
            self._idle.pop()
        if self._idle:
            connection = self._idle.pop()
            connection.request(message, partial(self._finish, planned, connection))
        else:
            # A task costs more than a request: only a new connection has one.
            self._opening.add(task := asyncio.create_task(self._open_for(planned, message)))
            task.add_done_callback(self._opening.discard)

    async def _open_for(self, planned: float, message: bytes) -> None:
        try:
            connection = await connected(self._port)
        except OSError:
            self._finish(planned, None, 0)
        else:
            connection.request(message, partial(self._finish, planned, connection))

    def _finish(self, planned: float, connection: Connection | None, status: int) -> None:
        if planned > WARM_SECONDS:
            self._outcome.add(status, 1_000 * (time.perf_counter() - self.zero - planned))
        if connection is not None and not connection.transport.is_closing():
            self._idle.append(connection)
        self._waiting -= 1
        if not self._waiting:
            self.done.set()


async def open_loop(port: int, requests: Sequence[bytes], rate: float, seconds: float) -> Outcome:
    """Requests start at random times of a mean rate, replied to or not; latency is from then."""
    rng = np.random.default_rng(1)
    starts = np.cumsum(rng.exponential(1 / rate, int(rate * seconds))).tolist()
    outcome = Outcome(starts[-1] - WARM_SECONDS)
    arrivals = Arrivals(port, outcome, len(starts))
    for number, planned in enumerate(starts):
        if (wait := arrivals.zero + planned - time.perf_counter()) > 0.0005:
            await asyncio.sleep(wait)
        arrivals.send(planned, requests[number % len(requests)])
    await arrivals.done.wait()
    return outcome
