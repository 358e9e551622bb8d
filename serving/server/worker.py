"""A worker: one process that answers the jobs of one socket with one recommender, one at a time.

A job is a request in JSON (``recommend``), several (``batch``) or any other route (``http``).
Between two lists of a batch the worker answers whatever else has arrived, so that nobody waits for
a batch.
"""

from __future__ import annotations

import asyncio
import gc
import select
import socket
from collections import deque
from collections.abc import Generator
from logging import ERROR
from typing import Any

import orjson
import torch
from fastapi import FastAPI

from serving.log import LOG_FIELDS, log
from serving.online.of_settings import store_opener
from serving.recommend import Recommender
from serving.schemas import Request, error_body
from serving.server.frames import Frame, FrameReader, packed
from serving.settings import Settings
from serving.web.answer import answer_batch, answer_body
from serving.web.http import RECORDS, Answer

READ_BYTES = 1 << 18


def prepare() -> None:
    """Import and build what the first request would wait for."""
    Request.model_validate({"user_id": "1"})


def run_worker(
    jobs: socket.socket, recommender: Recommender, app: FastAPI, settings: Settings
) -> None:
    """Answer jobs until the front closes the socket."""
    torch.set_num_threads(settings.torch_threads)
    recommender.connect(store_opener(settings), keeps_lists=settings.log_lists)
    # What a request leaves behind is freed at once; cycles are rare, and looking for them costs.
    gc.set_threshold(20_000, 20, 50)
    Worker(jobs, recommender, app).run()


class Worker:
    """Takes jobs in their order; a batch goes on while nothing else waits."""

    def __init__(self, jobs: socket.socket, recommender: Recommender, app: FastAPI) -> None:
        self._socket, self._recommender, self._app = jobs, recommender, app
        self._loop = asyncio.new_event_loop()
        self._reader = FrameReader()
        self._waiting: deque[Frame] = deque()
        self._batches: dict[int, Generator[None, None, Answer]] = {}

    def run(self) -> None:
        """Work until the other end is closed."""
        while self._receive(wait=not self._waiting and not self._batches):
            if self._waiting:
                self._start(self._waiting.popleft())
            elif self._batches:
                self._go_on()

    def _receive(self, *, wait: bool) -> bool:
        """Read jobs that have arrived; False once there will be none."""
        if not wait and not select.select([self._socket], [], [], 0)[0]:
            return True
        if not (data := self._socket.recv(READ_BYTES)):
            return False
        for frame in self._reader.feed(data):
            if frame.head.get("cancel"):
                self._batches.pop(frame.job, None)
            else:
                self._waiting.append(frame)
        return True

    def _start(self, frame: Frame) -> None:
        kind = frame.head["kind"]
        if kind == "batch":
            self._batches[frame.job] = answer_batch(self._recommender, frame.head, frame.body)
            return
        try:
            if kind == "recommend":
                answer = answer_body(self._recommender, frame.head, frame.body)
            else:
                answer = self._loop.run_until_complete(_through(self._app, frame))
        except Exception:
            answer = _failed()
        self._reply(frame.job, answer)

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

    def _reply(self, job: int, answer: Answer) -> None:
        head = {"status": answer.status, "fields": answer.fields, "headers": answer.headers}
        if answer.records:
            head["records"] = [len(record) for record in answer.records]
        self._socket.sendall(packed(job, head, b"".join((answer.body, *answer.records))))


def _failed() -> Answer:
    log("request_failed", {}, level=ERROR, failed=True)
    body = error_body("internal", "the request failed; see the server's log")
    return Answer(500, orjson.dumps(body), {})


async def _through(app: FastAPI, frame: Frame) -> Answer:
    """Run a request through the application."""
    head = frame.head
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": head["method"],
        "scheme": "http",
        "path": head["path"],
        "raw_path": head["path"].encode(),
        "query_string": head["query"].encode("latin-1"),
        "root_path": "",
        "headers": [
            (name.encode("latin-1"), value.encode("latin-1")) for name, value in head["headers"]
        ],
        "client": None,
        "server": None,
        "state": {"shown": head["shown"]},
        LOG_FIELDS: {},
        RECORDS: [],
    }
    parts: list[bytes] = []
    status, headers = 500, []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": frame.body, "more_body": False}

    async def send(message: Any) -> None:
        nonlocal status, headers
        if message["type"] == "http.response.start":
            status = message["status"]
            headers = [(name.decode(), value.decode()) for name, value in message["headers"]]
        else:
            parts.append(message.get("body", b""))

    await app(scope, receive, send)
    fields = {**scope[LOG_FIELDS], "path": getattr(scope.get("route"), "path", "other")}
    return Answer(status, b"".join(parts), fields, headers, tuple(scope[RECORDS]))
