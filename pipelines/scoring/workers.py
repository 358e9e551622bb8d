"""Processes that share one loaded bundle; each makes one part at a time.

They are forked from the process that loaded it, so that memory is shared, and run one thread each.
A worker that is killed is replaced; its part is made again, once.
"""

from __future__ import annotations

import gc
import os
import selectors
import socket
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch

from pipelines.scoring.job import Job
from pipelines.scoring.parts import Part, find_part, make_part
from serving.recommend import Recommender
from serving.server.zygote import receive_message, send_message

MAX_TRIES = 2


class Task(NamedTuple):
    """What all workers share."""

    recommender: Recommender
    job: Job
    keys: Sequence[str]
    out: Path


class _Worker(NamedTuple):
    pid: int
    orders: socket.socket


class Workers:
    """Hands out parts and collects what was made of them."""

    def __init__(
        self, task: Task, driver: socket.socket, report: Callable[[dict[str, Any]], object]
    ) -> None:
        """Take what to do, who started it, and what hears of every list and part."""
        self._task, self._driver, self._report = task, driver, report
        self._waiting: deque[int] = deque()
        self._busy: dict[int, int] = {}
        """Part by the worker's pid."""
        self._tries: Counter[int] = Counter()
        self._workers: dict[int, _Worker] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(driver, selectors.EVENT_READ, None)
        self.parts: dict[int, Part] = {}

    def run(self, parts: Iterable[int], num_workers: int) -> dict[int, Part]:
        """Make all parts that are not there."""
        self._waiting.extend(parts)
        gc.collect()
        gc.freeze()
        for _ in range(min(num_workers, len(self._waiting))):
            self._start()
        while self._busy:
            for key, _ in self._selector.select():
                if key.data is None:
                    raise BrokenPipeError("the process that started this one is gone")
                self._hear(self._workers[key.data])
        for worker in self._workers.values():
            worker.orders.close()
            os.waitpid(worker.pid, 0)
        return self.parts

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            _be_worker(self._task, theirs, parent, [self._driver, ours, *self._orders()])
        theirs.close()
        self._workers[pid] = _Worker(pid, ours)
        self._selector.register(ours, selectors.EVENT_READ, pid)
        self._order(self._workers[pid])

    def _orders(self) -> list[socket.socket]:
        return [worker.orders for worker in self._workers.values()]

    def _order(self, worker: _Worker) -> None:
        """Give a worker its next part, if there is one."""
        self._busy.pop(worker.pid, None)
        if self._waiting:
            self._busy[worker.pid] = self._waiting.popleft()
            send_message(worker.orders, {"part": self._busy[worker.pid]})

    def _hear(self, worker: _Worker) -> None:
        try:
            received = receive_message(worker.orders)
        except ConnectionResetError:
            received = None
        if received is None:
            self._died(worker)
            return
        message = received[0]
        if "part" in message:
            part = Part(**message["part"])
            self.parts[part.number] = part
            self._order(worker)
        self._report(message)

    def _died(self, worker: _Worker) -> None:
        """Let another worker make the part of one that is gone."""
        self._selector.unregister(worker.orders)
        worker.orders.close()
        del self._workers[worker.pid]
        _, status = os.waitpid(worker.pid, 0)
        part = self._busy.pop(worker.pid, None)
        if part is None:
            return
        self._tries[part] += 1
        code = os.waitstatus_to_exitcode(status)
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        if self._tries[part] >= MAX_TRIES:
            raise ValueError(
                f"worker processes ended by {how} twice while they made part {part} of "
                f"{self._task.out}; signal 9 often means too little memory: lower --workers. Run "
                "the same command again for the parts that are missing"
            )
        self._report({"lost": part, "how": how})
        self._waiting.append(part)
        self._start()


def _be_worker(
    task: Task, orders: socket.socket, parent: int, others: Sequence[socket.socket]
) -> None:
    """Make parts until there are no more; what follows the fork is never reached."""
    code = 1
    try:
        for one in others:
            one.close()
        torch.set_num_threads(1)
        # Lists grow while a part is made, and hold no cycles.
        gc.set_threshold(20_000, 20, 50)
        _work(task, orders, parent)
        code = 0
    except (BrokenPipeError, ConnectionResetError):
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(code)


def _work(task: Task, orders: socket.socket, parent: int) -> None:
    def progressed(lists: int) -> None:
        if os.getppid() != parent:
            raise BrokenPipeError
        send_message(orders, {"lists": lists})

    while (received := receive_message(orders)) is not None:
        number = received[0]["part"]
        keys = task.job.keys_of(number, task.keys)
        part = find_part(task.out, task.job, number)
        if part is None:
            part = make_part(task.recommender, task.job, number, keys, task.out, progressed)
        else:
            progressed(len(keys))
        send_message(orders, {"part": asdict(part)})
