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


def read_number(path: str) -> int | None:
    """Read a number of the kernel's; None where there is no file or no limit ("max")."""
    try:
        return int(Path(path).read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None


@contextmanager
def returning_memory(every_seconds: float = RETURN_SECONDS) -> Iterator[None]:
    """Return freed memory to the system now and then, and once more at the end.

    The C library keeps freed blocks below 32 MiB, and those of changing sizes fit none of them: a
    training held 2.1 GB after two minutes of which it used 0.2. Without ``malloc_trim`` they stay.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        yield
        return
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
