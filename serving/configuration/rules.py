"""Rules of the business: which items are pinned to a slot, moved up or down, or hidden.

``boost`` and ``bury`` move an item by a number of places in the ranked list. Places and not a
factor on the score, because scores of two lists, bundles or rankers mean different things: the same
factor would move an item by one place here and by a hundred there.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from serving.configuration.periods import Names, Period, distinct, share
from serving.filtering.expression import Expression, parse
from serving.surfaces import MAX_K, STRICT, Text

MAX_ITEMS = 10_000
RuleKind = Literal["pin", "boost", "bury", "hide"]


def _parsed(text: str) -> str:
    parse(text)
    return text


Where = Annotated[Text, AfterValidator(_parsed)]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Audience:
    """Requests that a rule is for; a field that is left out matches all."""

    domains: Names | None = None
    """Domains of the request's context."""
    visitors: Literal["all", "known", "anonymous"] = "all"
    """Requests with a user id, without one, or both."""

    def has(self, user_id: str | None, domain: str | None) -> bool:
        """Tell whether a request is for one of them."""
        if self.visitors != "all" and (user_id is None) != (self.visitors == "anonymous"):
            return False
        return self.domains is None or domain in self.domains

    def meets(self, other: Audience) -> bool:
        """Tell whether a request can be for both."""
        if "all" not in (self.visitors, other.visitors) and self.visitors != other.visitors:
            return False
        return share(self.domains, other.domains)


EVERYONE = Audience()


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Rule(Period):
    """One rule; where several would move an item, those of the highest priority do."""

    kind: RuleKind
    items: Annotated[tuple[Text, ...], Field(max_length=MAX_ITEMS), AfterValidator(distinct)] = ()
    """Item ids; of a pin the first of them that may be shown."""
    where: Where | None = None
    """An expression over the items' properties. With ``items``, both must hold. A pin shows the
    best ranked item that it holds for."""
    slot: Annotated[int, Field(ge=1, le=MAX_K)] | None = None
    """Of a pin: its place in the list, from 1."""
    places: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Of a boost or bury: how many places the item is moved."""
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
