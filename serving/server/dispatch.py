"""Assign jobs to workers, and refuse those that would wait too long.

Jobs wait in the front, in one bounded queue for all workers: a refusal costs no work, a worker that
dies leaves its jobs to the others, and equal requests that wait at the same time are computed once.
A worker has one job, and while others wait a few more, so that it need not wait for the front.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from signal import SIGKILL
from time import monotonic
from typing import Literal, cast

from serving.server.frames import Frame, FrameReader, packed

JobKind = Literal["recommend", "batch", "other"]
Key = tuple[bytes, bytes, int]
"""What equal requests have equal: the body, what else is read of them, writes before it."""
MAX_ATTEMPTS = 2
"""Workers that may die of a job before it is given up."""
IN_HAND, SHORT_IN_HAND = 2, 4
"""Jobs that a worker holds while others wait; the second of lists that take `SHORT_SECONDS`."""
SHORT_SECONDS = 0.001
"""Time of a short list, and for which a worker keeps its reply if more lists wait."""
MAX_BATCHES = 64
RESPAWN_SECONDS = 2.0
"""Time that jobs may wait where there is no worker, since one will soon be back."""
PAUSE_SECONDS = 0.05
"""Before a dead worker's jobs are sent to another one."""
TAKEN_SHARE = 0.8
"""Share of the time that a list may wait for which it is let wait: more would often be in vain."""
SMOOTHING = 0.05
"""Weight of the newest service time in the mean."""


class OverloadedError(Exception):
    """A job would wait, or has waited, longer than it may."""


class WorkerDiedError(Exception):
    """Every worker that took the job died."""


@dataclass(eq=False, slots=True, kw_only=True)
class WorkerJob:
    """A request on its way."""

    number: int
    kind: JobKind
    message: bytes
    reply: asyncio.Future[Frame]
    created: float
    key: Key | None
    num_waiting: int = 1
    """Connections that want the reply; without any the job is dropped."""
    attempts: int = 0
    sent: float = 0.0
    others: list[asyncio.Future[Frame]] = field(default_factory=list)
    """Replies of the connections after the first one, each of which may stop waiting."""

    def join(self) -> asyncio.Future[Frame]:
        """Return the reply for one more connection."""
        self.others.append(asyncio.get_running_loop().create_future())
        return self.others[-1]

    def finish(self, frame: Frame) -> None:
        """Give the reply to all who wait."""
        for one in (self.reply, *self.others):
            if not one.done():
                one.set_result(frame)

    def fail(self, error: Exception) -> None:
        """Tell all who wait that there will be no reply."""
        for one in (self.reply, *self.others):
            if not one.done() and self.num_waiting:
                one.set_exception(error)


class WorkerLink(asyncio.Protocol):
    """The front's end of a worker's socket."""

    def __init__(self, dispatcher: Dispatcher, pid: int) -> None:
        self._dispatcher, self._reader, self.pid = dispatcher, FrameReader(), pid
        self._transport: asyncio.WriteTransport | None = None
        self.jobs: dict[int, WorkerJob] = {}
        self.num_lists = 0
        """Jobs in hand that are not batches."""
        self.retired = False
        self.last_reply = 0.0
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def load(self) -> tuple[int, int]:
        """Lists in hand, then jobs."""
        return self.num_lists, len(self.jobs)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def send(self, job: WorkerJob, now: float) -> None:
        """Hand a job over."""
        assert self._transport is not None
        self.jobs[job.number] = job
        self.num_lists += job.kind != "batch"
        job.sent = now
        self._transport.write(job.message)

    def cancel(self, job: WorkerJob) -> None:
        """Stop a batch without waiting connections."""
        if self.jobs.pop(job.number, None) is not None and self._transport is not None:
            self._transport.write(packed(job.number, {"cancel": True}))
            self.close_if_done()

    def data_received(self, data: bytes) -> None:
        for frame in self._reader.feed(data):
            if (job := self.jobs.pop(frame.job, None)) is not None:
                self.num_lists -= job.kind != "batch"
                self._dispatcher.replied(self, job, frame)
        self.close_if_done()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(None)
        self._dispatcher.lost(self)

    def retire(self) -> None:
        """Take no more jobs, and end after those in hand."""
        self.retired = True
        self.close_if_done()

    def kill(self) -> None:
        """End a worker that does not come back; its jobs go to others."""
        if not self.lost.done():
            with suppress(ProcessLookupError):
                os.kill(self.pid, SIGKILL)

    def close_if_done(self) -> None:
        if self.retired and not self.jobs and self._transport is not None:
            self._transport.close()


@dataclass(kw_only=True)
class Dispatcher:
    """The queue, and the workers of the generation that serves."""

    queue_seconds: float
    """Time that a job may wait for a worker."""
    max_queue: int
    workers: set[WorkerLink] = field(default_factory=set)
    queue: deque[WorkerJob] = field(default_factory=deque)
    service_seconds: float = 0.002
    """Mean time of a list, as measured."""
    num_deduplicated: int = 0
    bodies: Counter[bytes] = field(default_factory=Counter)
    """Bodies of the requests that an equal one may join."""
    _flights: dict[Key, WorkerJob] = field(default_factory=dict)
    _batches: deque[WorkerJob] = field(default_factory=deque)
    _numbers: count[int] = field(default_factory=lambda: count(1))
    _expiry: asyncio.TimerHandle | None = None

    def submit(
        self, kind: JobKind, head: bytes, body: bytes, *, key: Key | None = None
    ) -> WorkerJob:
        """Send a job to a worker, or queue it.

        Args:
            head: What `Handlers` read of the request besides its body, as JSON.
            key: Jobs of equal keys that wait at the same time are computed once.

        Raises:
            OverloadedError: It would wait too long.
        """
        if key is not None and (flying := self._flights.get(key)) is not None:
            flying.num_waiting += 1
            self.num_deduplicated += 1
            return flying
        now = monotonic()
        number = next(self._numbers)
        job = WorkerJob(
            number=number,
            kind=kind,
            message=packed(number, head, body),
            reply=asyncio.get_running_loop().create_future(),
            created=now,
            key=key,
        )
        if kind == "batch":
            if len(self._batches) >= MAX_BATCHES:
                raise OverloadedError
            self._batches.append(job)
            self._feed_batches(now)
        else:
            self._submit_list(job, now)
        if key is not None:
            self._flights[key] = job
            self.bodies[key[0]] += 1
        return job

    def _submit_list(self, job: WorkerJob, now: float) -> None:
        if not self.queue and (worker := self._least_busy(1)) is not None:
            worker.send(job, now)
            return
        if self.is_full:
            raise OverloadedError
        self.queue.append(job)
        self._feed(now)
        self._expire_later()

    @property
    def is_full(self) -> bool:
        """True if a list that comes now would wait too long."""
        waits = len(self.queue) * self.service_seconds / max(1, len(self.workers))
        return waits > TAKEN_SHARE * self._patience or len(self.queue) >= self.max_queue

    @property
    def _patience(self) -> float:
        """Time that a job may wait now."""
        return self.queue_seconds if self.workers else max(self.queue_seconds, RESPAWN_SECONDS)

    def abandon(self, job: WorkerJob) -> None:
        """Note that a connection does not want its reply any more."""
        job.num_waiting -= 1
        if job.num_waiting:
            return
        self._land(job)
        for worker in self.workers:
            if job.kind == "batch" and job.number in worker.jobs:
                worker.cancel(job)
        self._feed_batches(monotonic())

    def replied(self, worker: WorkerLink, job: WorkerJob, frame: Frame) -> None:
        """Deliver a reply, and send the worker its next job."""
        now = monotonic()
        if job.kind == "recommend":
            spent = now - max(job.sent, worker.last_reply)
            self.service_seconds += SMOOTHING * (spent - self.service_seconds)
        worker.last_reply = now
        self._land(job)
        job.finish(frame)
        if self.queue:
            self._feed(now)
        if self._batches:
            self._feed_batches(now)

    def lost(self, worker: WorkerLink) -> None:
        """Move a dead worker's jobs to the others."""
        self.workers.discard(worker)
        for job in reversed(worker.jobs.values()):
            job.attempts, job.created = job.attempts + 1, monotonic()
            if job.attempts >= MAX_ATTEMPTS:
                self._land(job)
                job.fail(WorkerDiedError())
            elif job.kind == "batch":
                self._batches.appendleft(job)
            else:
                self.queue.appendleft(job)
        worker.jobs.clear()
        # Where several die at once, the others' ends are heard of before a job is sent again.
        asyncio.get_running_loop().call_later(PAUSE_SECONDS, self.fill)
        self._expire_later()

    def use(self, workers: set[WorkerLink]) -> None:
        """Serve by these workers; those before finish what they have in hand."""
        before, self.workers = self.workers, workers
        for worker in before - workers:
            worker.retire()
        self.fill()

    def fill(self) -> None:
        """Send waiting jobs to workers that are free."""
        self._feed(monotonic())
        self._feed_batches(monotonic())

    def oldest_in_hand(self) -> tuple[WorkerLink, float] | None:
        """Find the worker that has been busy with one list for the longest, and since when."""
        busy = [
            (max(job.sent, worker.last_reply), worker)
            for worker in self.workers
            for job in worker.jobs.values()
            if job.kind != "batch"
        ]
        if not busy:
            return None
        since, worker = min(busy, key=lambda pair: pair[0])
        return worker, since

    def _least_busy(self, limit: int) -> WorkerLink | None:
        """Find a worker with fewer lists in hand than a limit."""
        best: WorkerLink | None = None
        for worker in self.workers:
            if worker.num_lists < limit and (best is None or worker.load < best.load):
                best = worker
        return best

    def _feed(self, now: float) -> None:
        in_hand = SHORT_IN_HAND if self.service_seconds < SHORT_SECONDS else IN_HAND
        while self.queue and (worker := self._least_busy(in_hand)) is not None:
            job = self.queue.popleft()
            if job.num_waiting:
                worker.send(job, now)

    def _feed_batches(self, now: float) -> None:
        """Send each worker at most one batch."""
        while self._batches:
            free = [one for one in self.workers if len(one.jobs) == one.num_lists]
            if not free:
                return
            job = self._batches.popleft()
            if job.num_waiting:
                min(free, key=lambda worker: worker.num_lists).send(job, now)

    def _land(self, job: WorkerJob) -> None:
        if job.key is not None and self._flights.get(job.key) is job:
            del self._flights[job.key]
            self.bodies[job.key[0]] -= 1
            if not self.bodies[job.key[0]]:
                del self.bodies[job.key[0]]

    def _expire_later(self) -> None:
        """Look at the queue again when its first job has waited for too long."""
        if self._expiry is None and self.queue:
            wait = max(0.0, self.queue[0].created + self._patience - monotonic())
            self._expiry = asyncio.get_running_loop().call_later(wait, self._expire)

    def _expire(self) -> None:
        self._expiry = None
        latest = monotonic() - self._patience
        while self.queue and self.queue[0].created <= latest:
            job = self.queue.popleft()
            self._land(job)
            job.fail(OverloadedError())
        self._expire_later()
