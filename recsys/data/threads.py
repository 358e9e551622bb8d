"""Parts of one computation side by side, with the bits that they have one after the other."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

Part = TypeVar("Part")
Made = TypeVar("Made")
MAX_THREADS = 4


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute in one thread: steps on small tensors take a multiple in several on busy cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def side_by_side(make: Callable[[Part], Made], parts: Iterable[Part]) -> list[Made]:
    """Make something of each part, in order, without gradients.

    In threads of its own where torch uses one, as in a server that loads a bundle: if torch
    may use more, its threads do the work. A part is computed by one thread in either case.
    """
    waiting = list(parts)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    number = min(MAX_THREADS, cores, len(waiting))
    if torch.get_num_threads() > 1 or number < 2:
        with torch.no_grad():
            return [make(part) for part in waiting]

    def alone(part: Part) -> Made:
        # Both are a thread's own.
        torch.set_num_threads(1)
        with torch.no_grad():
            return make(part)

    with ThreadPoolExecutor(number) as threads:
        return list(threads.map(alone, waiting))
