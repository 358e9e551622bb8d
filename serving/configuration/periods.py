"""The surfaces and the time for which a rule or an experiment holds."""

from __future__ import annotations

import math
from datetime import datetime
from functools import cached_property
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from serving.surfaces import STRICT, Text

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


def distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    """Check that no name is repeated."""
    twice = [name for place, name in enumerate(names) if name in names[:place]]
    if twice:
        raise ValueError(f"{twice[0]!r} stands there twice; remove one")
    return names


def share(some: tuple[str, ...] | None, others: tuple[str, ...] | None) -> bool:
    """True if a name is in both; None has every name."""
    return some is None or others is None or not set(some).isdisjoint(others)


Names = Annotated[tuple[Text, ...], Field(min_length=1, max_length=1_000), AfterValidator(distinct)]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Period:
    """What has a name, and holds on some surfaces for some time."""

    name: Text
    surfaces: Names | None = None
    """None is all of them."""
    since: Annotated[Moment | None, Field(alias="from")] = None
    """When it begins; ``from`` in a file."""
    until: Moment | None = None
    """When it has ended."""

    def __post_init__(self) -> None:
        span_of(self.since, self.until)

    @cached_property
    def span(self) -> Span:
        """The time for which it holds."""
        return span_of(self.since, self.until)

    def on(self, surface: str) -> bool:
        """True if it is for a surface."""
        return self.surfaces is None or surface in self.surfaces

    def meets(self, other: Period) -> bool:
        """True if both hold on one surface at one time."""
        return share(self.surfaces, other.surfaces) and overlap(self.span, other.span)
