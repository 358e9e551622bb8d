"""A worker: one process that answers the jobs of one socket with one recommender, one at a time.

Between two lists of a batch the worker answers the jobs that have arrived, so that no request waits
for a batch.
"""

from __future__ import annotations

import gc
import select
import socket
from collections import deque
from collections.abc import Generator
from logging import ERROR
from time import perf_counter
from typing import Any

import torch

from serving.log import log
from serving.online.opening import store_opener
from serving.recommend import Recommender
from serving.schemas import Request
from serving.server.dispatch import SHORT_SECONDS
from serving.server.frames import Frame, FrameReader, packed
from serving.settings import Settings
from serving.web.handlers import Handlers
from serving.web.http import HttpAnswer, failed

READ_BYTES = 1 << 18


def prepare() -> None:
    """Import and build what the first request would wait for."""
    Request.model_validate({"user_id": "1"})


def run_worker(jobs: socket.socket, recommender: Recommender, settings: Settings) -> None:
    """Answer jobs until the front closes the socket."""
    # Requests are small: more threads of one model call only wait for each other.
    torch.set_num_threads(1)
    recommender.connect(store_opener(settings), keeps_lists=settings.log_lists)
    # Garbage of a request is freed at once; cycles are rare, and looking for them costs.
    gc.set_threshold(20_000, 20, 50)
    with torch.inference_mode():
        Worker(jobs, Handlers(recommender)).run()


class Worker:
    """Takes jobs in their order; a batch continues while nothing else waits."""

    def __init__(self, jobs: socket.socket, handlers: Handlers) -> None:
        self._socket, self._handlers = jobs, handlers
        self._reader = FrameReader(shares=True)
        # Kept: to ask for as much at each read would cost more than reading.
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._waiting: deque[Frame] = deque()
        self._replies: list[bytes] = []
        """Messages that are not sent yet: each message wakes the front."""
        self._held_since = 0.0
        self._batches: dict[int, Generator[None, None, HttpAnswer]] = {}

    def run(self) -> None:
        """Work until the other end is closed."""
        while self._waiting or self._receive(wait=not self._batches):
            if self._waiting:
                self._start(self._waiting.popleft())
                if not self._waiting or self._waiting[0].head["kind"] != "list":
                    self._send()
            elif self._batches:
                self._go_on()

    def _receive(self, *, wait: bool) -> bool:
        """Read jobs that have arrived; False once there will be none."""
        if not wait and not select.select([self._socket], [], [], 0)[0]:
            return True
        if not (size := self._socket.recv_into(self._buffer)):
            return False
        for frame in self._reader.feed(bytes(self._buffer[:size])):
            if frame.head.get("cancel"):
                self._batches.pop(frame.job, None)
            else:
                self._waiting.append(frame)
        return True

    def _start(self, frame: Frame) -> None:
        if frame.head["kind"] == "batch":
            self._batches[frame.job] = self._handlers.batch(frame.head, frame.body)
            return
        begin = perf_counter()
        try:
            answer = self._handlers.answer(frame.head, frame.body)
        except Exception:
            answer = _failed()
        now = perf_counter()
        self._held_since = self._held_since if self._replies else now
        self._reply(frame.job, answer)
        if now - min(begin, self._held_since) > SHORT_SECONDS:
            self._send()

    def _go_on(self) -> None:
        """Make the next list of the oldest batch."""
        job, batch = next(iter(self._batches.items()))
        try:
            next(batch)
            return
        except StopIteration as done:
            answer = done.value
        except Exception:
            answer = _failed()
        del self._batches[job]
        self._reply(job, answer)
        self._send()

    def _reply(self, job: int, answer: HttpAnswer) -> None:
        head: dict[str, Any] = {"status": answer.status, "fields": answer.fields}
        if answer.records:
            head["records"] = [len(record) for record in answer.records]
        self._replies.append(packed(job, head, answer.body, b"".join(answer.records)))

    def _send(self) -> None:
        if self._replies:
            self._socket.sendall(b"".join(self._replies))
            self._replies.clear()


def _failed() -> HttpAnswer:
    log("request_failed", {}, level=ERROR, failed=True)
    return failed().answer()
