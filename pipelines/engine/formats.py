"""Sizes and times in words, in one way everywhere."""

from __future__ import annotations

from pipelines.engine.memory import GIB

MIB = 1 << 20


def size(num_bytes: float) -> str:
    """Format a number of bytes, such as ``1.2 GiB`` or ``3.4 MiB``."""
    if num_bytes >= 0.1 * GIB:
        return f"{num_bytes / GIB:,.1f} GiB"
    return f"{num_bytes / MIB:,.1f} MiB"


def duration(seconds: float) -> str:
    """Format a time, such as ``1 h 2 min``, ``3 min 4 s`` or ``5.6 s``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes} min" if hours else f"{minutes} min {rest} s"
