"""Number of CPUs a process may use."""

from __future__ import annotations

import os
from pathlib import Path


def usable_cpus() -> int:
    """Count the CPUs that this process may keep busy: its affinity, and a container's quota."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    count = count or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(count, -(-int(quota) // int(period))))
    except (OSError, ValueError):
        return count
