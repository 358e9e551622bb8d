"""Bounds of a section's numbers, refused with the name, the bound and the value."""

from __future__ import annotations

import math
import re

INTERVAL = re.compile(r"([\[(])([^,]+), ([^\])]+)([\])])")


def check_bounds(section: object, prefix: str = "", **bounds: str) -> None:
    """Refuse a number of a section outside its bound.

    Args:
        prefix: What stands before the name in a message.
        bounds: By name: ``>= 1``, ``> 0`` or an interval such as ``(0, 1]``. None is not checked.
    """
    for name, bound in bounds.items():
        value = getattr(section, name)
        if value is not None and not _holds(value, bound):
            among = "in " if INTERVAL.fullmatch(bound) else ""
            raise ValueError(f"{prefix}{name} must be {among}{bound}, got {value}")


def _holds(value: float, bound: str) -> bool:
    if found := INTERVAL.fullmatch(bound):
        left, low, high, right = found.groups()
        above = value >= float(low) if left == "[" else value > float(low)
        return above and (value <= float(high) if right == "]" else value < float(high))
    sign, _, least = bound.partition(" ")
    return math.isfinite(value) and (
        value >= float(least) if sign == ">=" else value > float(least)
    )
