"""Work on several parts at once and hand the results back in order.

Polars and numpy release the interpreter while they compute, so threads are enough.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Part = TypeVar("Part")
Result = TypeVar("Result")


def end_with_the_parent() -> None:
    """Ask the kernel to end this process when its parent is killed."""
    if sys.platform == "linux":
        set_death_signal = 1
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)


def num_cores() -> int:
    """Count the cores that this process may use, at most 8."""
    return min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 4)


def in_order(function: Callable[[Part], Result], parts: Iterable[Part]) -> Iterator[Result]:
    """Apply a function to parts in threads; at most one part per core is in memory at a time."""
    window = num_cores()
    with ThreadPoolExecutor(window) as pool:
        pending: deque[Future[Result]] = deque()
        for part in parts:
            if len(pending) == window:
                yield pending.popleft().result()
            pending.append(pool.submit(function, part))
        while pending:
            yield pending.popleft().result()
