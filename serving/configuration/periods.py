"""Spans of time in which a rule or an experiment holds."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Annotated

from pydantic import AfterValidator

ALWAYS = (-math.inf, math.inf)
Span = tuple[float, float]
"""Unix seconds: the first is in it, the last is not."""


def _with_offset(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueError("a time needs its offset from UTC, such as 2026-12-01T00:00:00+01:00")
    return moment


Moment = Annotated[datetime, AfterValidator(_with_offset)]


def span_of(begin: datetime | None, end: datetime | None) -> Span:
    """Return a span in unix seconds; without a begin or an end it has none."""
    span = (
        ALWAYS[0] if begin is None else begin.timestamp(),
        ALWAYS[1] if end is None else end.timestamp(),
    )
    if span[0] >= span[1]:
        assert begin is not None
        assert end is not None
        raise ValueError(
            f"until ({end.isoformat()}) must be after from ({begin.isoformat()}); swap them, or "
            "leave one out"
        )
    return span


def overlap(one: Span, other: Span) -> bool:
    """True if there is a moment that is in both."""
    return one[0] < other[1] and other[0] < one[1]


def holds(span: Span, moment: float) -> bool:
    """True if a moment is in a span."""
    return span[0] <= moment < span[1]
