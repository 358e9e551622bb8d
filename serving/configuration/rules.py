"""Rules and experiments: what holds on which surfaces, for which requests and for how long.

A rule pins items to a slot, moves them up or down, or hides them. ``boost`` and ``bury`` move an
item by a number of places in the ranked list. Places and not a factor on the score, because scores
of two lists, bundles or rankers mean different things: the same factor would move an item by one
place here and by a hundred there. An experiment has arms that change a surface for a share of its
users.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import datetime
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from recsys.data.filters import Expression, parse
from serving.surfaces import (
    MAX_K,
    STRICT,
    Count,
    Diversity,
    Exploration,
    Surface,
    Text,
    Weights,
    Where,
)

ALWAYS = (-math.inf, math.inf)
Span = tuple[float, float]
"""Unix seconds: the first is in it, the last is not."""
MAX_ITEMS = 10_000


def _with_offset(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueError("a time needs its offset from UTC, such as 2026-12-01T00:00:00+01:00")
    return moment


Moment = Annotated[datetime, AfterValidator(_with_offset)]


def read_span(begin: datetime | None, end: datetime | None) -> Span:
    """Return a span in unix seconds; without a begin or an end it has none."""
    first = ALWAYS[0] if begin is None else begin.timestamp()
    last = ALWAYS[1] if end is None else end.timestamp()
    if begin is not None and end is not None and first >= last:
        raise ValueError(
            f"until ({end.isoformat()}) must be after from ({begin.isoformat()}); swap them, or "
            "leave one out"
        )
    return first, last


def overlap(one: Span, other: Span) -> bool:
    """True if there is a moment that is in both."""
    return one[0] < other[1] and other[0] < one[1]


def holds(span: Span, moment: float) -> bool:
    """True if a moment is in a span."""
    return span[0] <= moment < span[1]


def _distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    twice = [name for place, name in enumerate(names) if name in names[:place]]
    if twice:
        raise ValueError(f"{twice[0]!r} stands there twice; remove one")
    return names


def _share(some: tuple[str, ...] | None, others: tuple[str, ...] | None) -> bool:
    """True if a name is in both; None has every name."""
    return some is None or others is None or not set(some).isdisjoint(others)


Names = Annotated[
    tuple[Text, ...], Field(min_length=1, max_length=1_000), AfterValidator(_distinct)
]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Period:
    """A named rule or experiment, in force on some surfaces for some time."""

    name: Text
    surfaces: Names | None = None
    """None is all of them."""
    since: Annotated[Moment | None, Field(alias="from")] = None
    """When it begins; ``from`` in a file."""
    until: Moment | None = None
    """When it has ended."""

    def __post_init__(self) -> None:
        read_span(self.since, self.until)

    @cached_property
    def span(self) -> Span:
        """The time for which it holds."""
        return read_span(self.since, self.until)

    def on(self, surface: str) -> bool:
        """True if it is for a surface."""
        return self.surfaces is None or surface in self.surfaces

    def meets(self, other: Period) -> bool:
        """True if both hold on one surface at one time."""
        return _share(self.surfaces, other.surfaces) and overlap(self.span, other.span)


RuleKind = Literal["pin", "boost", "bury", "hide"]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Audience:
    """Requests that a rule is for; a field that is left out matches all."""

    domains: Names | None = None
    """Domains of the request's context."""
    visitors: Literal["all", "known", "anonymous"] = "all"
    """Requests with a user id, without one, or both."""

    def has(self, user_id: str | None, domain: str | None) -> bool:
        """Return whether a request is for one of them."""
        if self.visitors != "all" and (user_id is None) != (self.visitors == "anonymous"):
            return False
        return self.domains is None or domain in self.domains

    def meets(self, other: Audience) -> bool:
        """Return whether a request can be for both."""
        if "all" not in (self.visitors, other.visitors) and self.visitors != other.visitors:
            return False
        return _share(self.domains, other.domains)


EVERYONE = Audience()


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Rule(Period):
    """One rule; where several would move an item, those of the highest priority do."""

    kind: RuleKind
    items: Annotated[tuple[Text, ...], Field(max_length=MAX_ITEMS), AfterValidator(_distinct)] = ()
    """Item ids; of a pin the first of them that may be shown."""
    where: Where | None = None
    """An expression over the items' properties. With ``items``, both must hold. A pin shows the
    best ranked item that it holds for."""
    slot: Annotated[int, Field(ge=1, le=MAX_K)] | None = None
    """Rank of a pinned item, from 1."""
    places: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Number of ranks that a boost or bury moves the item."""
    users: Audience = EVERYONE
    priority: Annotated[int, Field(ge=-1_000, le=1_000)] = 0

    def __post_init__(self) -> None:
        if not self.items and self.where is None:
            raise ValueError(f"a rule that {_DOES[self.kind]} needs items, where, or both")
        for field, kinds in (("slot", ("pin",)), ("places", ("boost", "bury"))):
            given = getattr(self, field) is not None
            if given and self.kind not in kinds:
                raise ValueError(f"{field} is for {' and '.join(kinds)}, not for {self.kind!r}")
            if not given and self.kind in kinds:
                raise ValueError(f"a rule that {_DOES[self.kind]} needs {field}, such as 1")
        super().__post_init__()

    @cached_property
    def expression(self) -> Expression | None:
        """Its ``where``, parsed."""
        return None if self.where is None else parse(self.where)

    def meets(self, other: Period) -> bool:
        """True if both hold for some request to some surface."""
        same = super().meets(other)
        return same and (not isinstance(other, Rule) or self.users.meets(other.users))


_DOES = {"pin": "pins", "boost": "boosts", "bury": "buries", "hide": "hides"}


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Overrides:
    """Settings of a surface that an arm changes; the others stay."""

    weights: Annotated[Weights | None, Field(alias="sources")] = None
    diversity: Diversity | None = None
    caps: Mapping[Text, Count] | None = None
    exploration: Exploration | None = None

    def of(self, surface: Surface) -> Surface:
        """Change a surface.

        Raises:
            ValueError: The surface cannot be so.
        """
        changes = {field.name: getattr(self, field.name) for field in fields(self)}
        given: dict[str, Any] = {name: one for name, one in changes.items() if one is not None}
        if "weights" in given:
            # A learned blend has weights of its own.
            given["learned"] = False
        return replace(surface, **given)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Arm:
    """One of the alternatives."""

    name: Text
    weight: Annotated[float, Field(gt=0, le=1_000_000)] = 1.0
    """Share of the users, divided by the sum of all arms' weights."""
    overrides: Overrides = Overrides()
    bundle: Text | None = None
    """Version of the bundle that makes its lists; None for the released one."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Experiment(Period):
    """Arms on some surfaces. A user stays in one arm; requests without a user id are in none."""

    arms: Annotated[tuple[Arm, ...], Field(min_length=2, max_length=20)]
    salt: Text | None = None
    """Another salt shuffles the users again; by default the name."""

    def __post_init__(self) -> None:
        names = [arm.name for arm in self.arms]
        twice = [name for place, name in enumerate(names) if name in names[:place]]
        if twice:
            raise ValueError(f"two arms are called {twice[0]!r}; give each a name of its own")
        super().__post_init__()
