"""The memory of this machine, or of the container that a process runs in."""

from __future__ import annotations

import ctypes
import gc
import os
from contextlib import suppress
from pathlib import Path

GIB = 1 << 30


def read_number(path: str) -> int | None:
    """Read a number of the kernel's; None where there is no file or no limit ("max")."""
    try:
        return int(Path(path).read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None


def return_memory() -> None:
    """Return what was freed to the system, so that a stage does not start at the last one's peak.

    The C library keeps freed blocks below 32 MiB; on systems without ``malloc_trim`` they stay.
    """
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


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
