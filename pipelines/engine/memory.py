"""The memory of this machine, or of the container that a process runs in."""

from __future__ import annotations

import ctypes
import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

GIB = 1 << 30
RETURN_SECONDS = 5.0
"""Between two returns of freed memory to the system; one takes milliseconds."""
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Parameters of the C library's ``mallopt``."""
KEPT, KEPT_BLOCK = 1 << 30, 32 << 20
"""Bytes that it may keep, and the largest block, between two returns."""


def read_number(path: str) -> int | None:
    """Read a number of the kernel's; None where there is no file or no limit ("max")."""
    try:
        return int(Path(path).read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None


@contextmanager
def returning_memory(every_seconds: float = RETURN_SECONDS) -> Iterator[None]:
    """Keep freed memory for a few seconds, and return it to the system; once more at the end.

    By default each tensor of a catalogue is mapped again, page by page, a sixth of a training step
    on a CPU. Blocks of changing sizes fit none that is kept: a training held 2.1 GB after two
    minutes of which it used 0.2. Without ``malloc_trim`` they stay.
    """
    library = ctypes.CDLL(None)
    trim, tune = getattr(library, "malloc_trim", None), getattr(library, "mallopt", None)
    if trim is None or tune is None:
        yield
        return
    tune(MMAP_THRESHOLD, KEPT_BLOCK)
    tune(TRIM_THRESHOLD, KEPT)
    done = threading.Event()

    def return_now_and_then() -> None:
        while not done.wait(every_seconds):
            trim(0)

    thread = threading.Thread(target=return_now_and_then, daemon=True)
    thread.start()
    # The collection at the end reads only objects made inside: reading all of them takes 0.3 s.
    gc.freeze()
    try:
        yield
    finally:
        done.set()
        thread.join()
        gc.collect()
        gc.unfreeze()
        trim(0)


def free_memory() -> int:
    """Count the bytes that this process may still take: the machine's, or a container's rest."""
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    try:
        with Path("/proc/meminfo").open(encoding="ascii") as file:
            found = (line.split() for line in file)
            free = next(int(line[1]) << 10 for line in found if line[0] == "MemAvailable:")
    except (OSError, StopIteration):
        pass
    limit = read_number("/sys/fs/cgroup/memory.max")
    used = read_number("/sys/fs/cgroup/memory.current")
    return free if limit is None or used is None else max(0, min(free, limit - used))
