"""Group commit: one thread writes to the online store for all requests of a server.

Events that arrive while a commit runs are in the next one, so that the more there are the more
share a commit. While several senders send at once commits begin some milliseconds apart: on a fast
disk each would otherwise hold one event, and cost what one of twenty does. Senders hear of it once
they are durable.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

from serving.online.events import Event
from serving.online.request_log import WriterCounts
from serving.online.store import Forgotten, OnlineStore, StoreError

MAX_WAITING_EVENTS = 20_000
MAX_COMMIT = 5_000
"""Events of one commit, rounded up to whole requests."""
GATHER_SECONDS = 0.004
"""From the begin of a commit to that of the next, while several senders send at once."""
CROWDED_SECONDS = 0.1
"""For how long several count as sending at once after events had to wait for a commit."""
REMOVE_SECONDS = 600.0
"""Between removals of old events and lists."""
CLOSE_SECONDS = 30.0
DAY_MS = 86_400_000


class WriterBusyError(Exception):
    """More waits to be written than may wait, or the server is ending; nothing was stored."""


@dataclass(slots=True)
class _Task:
    """Something that waits to be written."""

    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[Any]
    events: Sequence[Event] = ()
    write: Callable[[], Any] | None = None
    """Any other writing; None for events."""
    result: Any = None
    error: StoreError | None = None

    def settle(self) -> None:
        """Settle the future, in its loop."""
        if self.done.done():
            return
        if self.error is None:
            self.done.set_result(self.result)
        else:
            self.done.set_exception(self.error)


class EventWriter:
    """Writes in a thread of its own; called from event loops."""

    def __init__(
        self, store: OnlineStore, *, event_days: float = 365.0, log_days: float = 7.0
    ) -> None:
        """Start the threads that write and that remove old events and lists.

        Args:
            event_days: How long events are kept.
            log_days: How long served lists are kept.
        """
        self.written = WriterCounts()
        self.store, self._days = store, (event_days, log_days)
        self._tasks: deque[_Task] = deque()
        self.num_waiting = 0
        """Events that wait for their commit to begin."""
        self._changed = threading.Condition()
        self._closing = False
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, name="event-writer", daemon=True),
            threading.Thread(target=self._remove_old, name="event-remover", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    async def add(self, events: Sequence[Event]) -> list[bool]:
        """Store events.

        Returns:
            For each whether it was new; all of them are durable.

        Raises:
            WriterBusyError: Too many wait; nothing was stored.
            StoreError: They could not be stored.
        """
        if self.num_waiting + len(events) > MAX_WAITING_EVENTS:
            raise WriterBusyError(
                f"{self.num_waiting} events wait to be stored, and at most {MAX_WAITING_EVENTS} "
                "may; send them again later, with the same ids"
            )
        new: list[bool] = await self._submitted(events=events)
        return new

    async def change_items(self, changes: Mapping[str, bool]) -> int:
        """Hide and show items; returns the version of items.

        Raises:
            StoreError: It could not be stored.
        """
        version: int = await self._submitted(write=lambda: self.store.change_items(changes))
        return version

    async def change_topics(self, user_id: str, change: Callable[[str], str]) -> str:
        """Replace a user's topics by what ``change`` makes of them; returns these.

        Raises:
            StoreError: It could not be stored.
        """

        def write() -> str:
            changed = change(self.store.visitor(user_id, 0).topics)
            self.store.put_topics(user_id, changed)
            return changed

        topics: str = await self._submitted(write=write)
        return topics

    async def forget(self, user_id: str, now_ms: int) -> Forgotten:
        """Forget a user, after all events that have arrived before.

        Raises:
            StoreError: It could not be stored.
        """
        removed: Forgotten = await self._submitted(write=lambda: self.store.forget(user_id, now_ms))
        return removed

    def close(self) -> None:
        """Write what waits, end the threads and close the store."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._ended.set()
        for thread in self._threads:
            thread.join(timeout=CLOSE_SECONDS)
        self.store.close()

    def _submitted(self, **what: Any) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        task = _Task(loop, loop.create_future(), **what)
        with self._changed:
            if self._closing:
                raise WriterBusyError("the server is ending; send it again to the next one")
            self.num_waiting += len(task.events)
            self._tasks.append(task)
            self._changed.notify()
        return task.done

    def _run(self) -> None:
        crowded_until = 0.0
        while True:
            with self._changed:
                if not self._tasks and not self._closing:
                    self._changed.wait()
                tasks, closing = self._taken(), self._closing
            began = time.monotonic()
            self._write(tasks)
            if tasks and not closing:
                done = time.monotonic()
                # A sender that waits for each of its events has none waiting here.
                if self._tasks:
                    crowded_until = done + CROWDED_SECONDS
                if done < crowded_until:
                    time.sleep(max(0.0, began + GATHER_SECONDS - done))
            if closing and not self._tasks:
                break

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
        self.num_waiting -= size
        return tasks

    def _write(self, tasks: list[_Task]) -> None:
        if not tasks:
            return
        try:
            if tasks[0].write is not None:
                tasks[0].result = tasks[0].write()
            else:
                self._add(tasks)
        except Exception as error:
            # Nothing of it is acknowledged; whatever it was, the next commit is tried.
            self.written.failed(error)
            for task in tasks:
                task.error = error if isinstance(error, StoreError) else StoreError(repr(error))
        loops = {task.loop for task in tasks}
        for loop in loops:
            mine = tasks if len(loops) == 1 else [task for task in tasks if task.loop is loop]
            # A loop that has ended has no waiting caller.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(_settle, mine)

    def _add(self, tasks: Sequence[_Task]) -> None:
        events = [event for task in tasks for event in task.events]
        is_new = self.store.add_events(events)
        counted = self.written.num_events
        for event, new in zip(events, is_new, strict=True):
            if new:
                counted[event.event_type] = counted.get(event.event_type, 0) + 1
            else:
                self.written.num_duplicates += 1
        rest = iter(is_new)
        for task in tasks:
            task.result = list(islice(rest, len(task.events)))

    def _remove_old(self) -> None:
        while True:
            now_ms = int(1_000 * time.time())
            before_ms = (now_ms - int(days * DAY_MS) for days in self._days)
            try:
                self.store.remove_old(*before_ms)
            except Exception as error:
                self.written.failed(error)
            if self._ended.wait(REMOVE_SECONDS):
                return


def _settle(tasks: Sequence[_Task]) -> None:
    for task in tasks:
        task.settle()
