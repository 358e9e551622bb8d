"""Group commit: one thread writes to the online store for all requests of a server.

Events that arrive while a commit runs are in the next one, so that the more there are the more
share a commit. Who sent them hears of it once they are durable. Records of served lists wait for a
tenth of a second and are dropped where the store cannot follow: no list waits for its record.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from logging import ERROR, WARNING
from typing import Any

from serving.log import log
from serving.online.events import Event
from serving.online.store import Forgotten, ItemState, OnlineStore, RequestRecord, StoreError

MAX_WAITING_EVENTS = 20_000
MAX_WAITING_RECORDS = 20_000
MAX_COMMIT = 5_000
"""Events of one commit."""
RECORD_SECONDS = 0.1
REMOVE_SECONDS = 600.0
"""Between removals of what is old."""
DAY_MS = 86_400_000


class WriterBusyError(Exception):
    """More waits to be written than may wait."""


@dataclass
class _Task:
    """Something that waits to be written."""

    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[Any]
    events: Sequence[Event] = ()
    write: Callable[[], Any] | None = None
    """Any other writing; None for events."""

    def resolve(self, result: Any, error: BaseException | None = None) -> None:
        def settle() -> None:
            if self.done.done():
                return
            if error is None:
                self.done.set_result(result)
            else:
                self.done.set_exception(error)

        # A loop that has ended has nobody who waits any more.
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(settle)


@dataclass
class Written:
    """What a writer has done so far."""

    num_events: dict[str, int] = field(default_factory=dict)
    """New events by type."""
    num_duplicates: int = 0
    num_records: int = 0
    num_dropped: int = 0
    """Records that the store could not follow."""
    num_commits: int = 0
    num_failures: int = 0
    commit_seconds: float = 0.0


class EventWriter:
    """Writes in a thread of its own; called from event loops."""

    def __init__(
        self, store: OnlineStore, *, event_days: float = 365.0, log_days: float = 7.0
    ) -> None:
        """Start the thread.

        Args:
            event_days: How long events are kept.
            log_days: How long served lists are kept.
        """
        self.written = Written()
        self._store, self._days = store, (event_days, log_days)
        self._tasks: deque[_Task] = deque()
        self._records: deque[RequestRecord] = deque()
        self._num_waiting = 0
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="event-writer", daemon=True)
        self._thread.start()

    async def add(self, events: Sequence[Event]) -> list[bool]:
        """Store events.

        Returns:
            For each whether it was new; all of them are durable.

        Raises:
            WriterBusyError: Too many wait; nothing was stored.
            StoreError: They could not be stored.
        """
        if self._num_waiting + len(events) > MAX_WAITING_EVENTS:
            raise WriterBusyError
        new: list[bool] = await self._submitted(events=events)
        return new

    async def change_items(self, changes: Mapping[str, ItemState | None]) -> int:
        """Hide, show and describe items; returns the version of items.

        Raises:
            StoreError: It could not be stored.
        """
        version: int = await self._submitted(write=lambda: self._store.change_items(changes))
        return version

    async def forget(self, user_id: str, now_ms: int) -> Forgotten:
        """Forget a user, after all events that have arrived before.

        Raises:
            StoreError: It could not be stored.
        """

        def write() -> Forgotten:
            self._write_records()
            return self._store.forget(user_id, now_ms)

        removed: Forgotten = await self._submitted(write=write)
        return removed

    def log(self, record: RequestRecord) -> None:
        """Keep a record, soon; the oldest are dropped where too many wait."""
        with self._changed:
            if len(self._records) >= MAX_WAITING_RECORDS:
                self._records.popleft()
                self.written.num_dropped += 1
            self._records.append(record)

    def close(self) -> None:
        """Write what waits, and end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout=30)
        self._store.close()

    def _submitted(self, **what: Any) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        task = _Task(loop, loop.create_future(), **what)
        with self._changed:
            if self._closing:
                raise WriterBusyError
            self._num_waiting += len(task.events)
            self._tasks.append(task)
            self._changed.notify()
        return task.done

    def _run(self) -> None:
        next_records, next_removal = time.monotonic(), time.monotonic()
        while True:
            with self._changed:
                if not self._tasks and not self._closing:
                    self._changed.wait(max(0.001, next_records - time.monotonic()))
                tasks, closing = self._taken(), self._closing
            self._write_tasks(tasks)
            now = time.monotonic()
            if now >= next_records or closing:
                self._write_records()
                next_records = now + RECORD_SECONDS
            if now >= next_removal and not closing:
                self._remove_old()
                next_removal = now + REMOVE_SECONDS
            if closing and not self._tasks:
                return

    def _taken(self) -> list[_Task]:
        """Take what fits into one commit: events together, anything else by itself."""
        tasks: list[_Task] = []
        size = 0
        while self._tasks and size < MAX_COMMIT:
            alone = self._tasks[0].write is not None
            if alone and tasks:
                break
            tasks.append(self._tasks.popleft())
            size += len(tasks[-1].events)
            if alone:
                break
        self._num_waiting -= size
        return tasks

    def _write_tasks(self, tasks: list[_Task]) -> None:
        if not tasks:
            return
        began = time.perf_counter()
        try:
            if tasks[0].write is not None:
                results: list[Any] = [tasks[0].write()]
            else:
                results = self._add(tasks)
        except Exception as error:
            # Nothing of it is acknowledged; whatever it was, the next commit is tried.
            self._failed(error)
            failure = error if isinstance(error, StoreError) else StoreError(repr(error))
            for task in tasks:
                task.resolve(None, failure)
            return
        self.written.num_commits += 1
        self.written.commit_seconds += time.perf_counter() - began
        for task, result in zip(tasks, results, strict=True):
            task.resolve(result)

    def _add(self, tasks: Sequence[_Task]) -> list[list[bool]]:
        new = self._store.add_events([event for task in tasks for event in task.events])
        results, first = [], 0
        for task in tasks:
            own = new[first : first + len(task.events)]
            first += len(own)
            results.append(own)
            for event, is_new in zip(task.events, own, strict=True):
                counted = self.written.num_events
                if is_new:
                    counted[event.event_type] = counted.get(event.event_type, 0) + 1
                else:
                    self.written.num_duplicates += 1
        return results

    def _write_records(self) -> None:
        with self._changed:
            records, self._records = list(self._records), deque()
        if not records:
            return
        try:
            self._store.add_requests(records)
            self.written.num_records += len(records)
        except Exception as error:
            self.written.num_dropped += len(records)
            self._failed(error)

    def _remove_old(self) -> None:
        now_ms = int(1_000 * time.time())
        event_days, log_days = self._days
        try:
            self._store.remove_old(
                now_ms - int(event_days * DAY_MS), now_ms - int(log_days * DAY_MS)
            )
        except Exception as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        """Count a failure; the log has the first, then every 2nd, 4th, 8th."""
        self.written.num_failures += 1
        times = self.written.num_failures
        if times & (times - 1) == 0:
            level = WARNING if isinstance(error, StoreError) else ERROR
            log("store_write_failed", {"times": times, "error": str(error)}, level=level)
