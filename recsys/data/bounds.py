"""Checks of settings, each refused in one form: the name, the allowed values, the value."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

INTERVAL = re.compile(r"([\[(])([^,]+), ([^\])]+)([\])])")


def check_bounds(section: object, prefix: str = "", **bounds: str) -> None:
    """Refuse a number of a section outside its bound, and several numbers of which one is, or none.

    Args:
        prefix: What stands before the name in a message.
        bounds: By name: ``>= 1``, ``> 0``, ``> 0 or inf`` or an interval such as ``(0, 1]``. None
            is not checked.
    """
    for name, bound in bounds.items():
        value = getattr(section, name)
        numbers = value if isinstance(value, (tuple, list)) else (value,)
        if value is not None and not (numbers and all(is_within(one, bound) for one in numbers)):
            among = "in " if INTERVAL.fullmatch(bound) else ""
            finite = "" if all(map(math.isfinite, numbers)) else " and finite"
            raise ValueError(f"{prefix}{name} must be {among}{bound}{finite}, got {value}")


def is_within(value: float, bound: str) -> bool:
    """Return True if a number is finite and within a bound, written as for `check_bounds`."""
    if found := INTERVAL.fullmatch(bound):
        left, low, high, right = found.groups()
        above = value >= float(low) if left == "[" else value > float(low)
        return above and (value <= float(high) if right == "]" else value < float(high))
    sign, least, *or_inf = bound.split(" ")
    return (bool(or_inf) or math.isfinite(value)) and (
        value >= float(least) if sign == ">=" else value > float(least)
    )


def check_choices(section: object, **choices: Sequence[str]) -> None:
    """Refuse a text of a section that is none of its choices."""
    for name, allowed in choices.items():
        if (value := getattr(section, name)) not in allowed:
            raise ValueError(f"{name} is one of {', '.join(allowed)}, got {value!r}")
