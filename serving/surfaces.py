"""Surfaces: where a list is shown, as configuration.

Built in are ``home``, ``related``, ``cart``, ``session`` and ``search``;
serving/configuration reads others, and changes of these, from a file.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic.dataclasses import dataclass

from recsys.data.filters import parse
from recsys.models.names import (
    CONTENT,
    EASE,
    ITEM_TO_ITEM,
    MODELS,
    NAME,
    NEXT_BASKET,
    POPULARITY,
    SEQUENCE,
    TWO_TOWER,
)
from recsys.retrieval.blend.config import FILL

MAX_SEEN_SHARE = 0.5
"""Maximum share of seen items in ``home`` if lists may repeat the history."""
MAX_K = 1_000
MAX_CANDIDATES = 10_000
MAX_DURATION = timedelta(days=366)
SEARCH = "search"
"""The source of search results, by titles."""

STRICT = ConfigDict(
    extra="forbid", strict=True, allow_inf_nan=False, validate_by_name=True, validate_by_alias=True
)

Kind = Literal["home", "related", "cart", "session", "search"]
"""What a request must bring: a user, a session, both or neither (``home``), one item (``related``),
the items of a cart (``cart``), the items of a session (``session``), a text (``search``)."""
SOURCES = (
    TWO_TOWER.name,
    *(one.name for one in MODELS if one not in (TWO_TOWER, POPULARITY)),
    POPULARITY.name,
    SEARCH,
)
"""Sources that a surface can weigh, next to the models of other packages that a bundle has."""
RULES = "rules"
"""The source of an item that a rule lists and no model did: it has no list of its own."""
Source = Annotated[str, WithJsonSchema({"examples": [*SOURCES, RULES], "type": "string"})]
"""Source of an item in a list: one of these, or a model of another package."""


def _source(name: str) -> str:
    if not re.fullmatch(NAME, name):
        raise ValueError(f"unknown source; {suggest(name, SOURCES)}")
    return name


def suggest(name: str, known: Sequence[str]) -> str:
    """Offer the nearest of the known names, or all of them."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"


Weights = Mapping[Annotated[str, AfterValidator(_source)], Annotated[float, Field(ge=0)]]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1, le=MAX_K)]
Text = Annotated[str, Field(min_length=1, max_length=512)]


def _parsed(text: str) -> str:
    parse(text)
    return text


Where = Annotated[Text, AfterValidator(_parsed)]
"""An expression over the items' properties."""

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_DURATION = re.compile(r"(\d{1,9})([smhd])")


def read_duration(text: object) -> object:
    """Read ``90s``, ``30m``, ``6h`` or ``7d``; anything but a text stays as it is.

    Raises:
        ValueError: Says how a duration is written.
    """
    if not isinstance(text, str):
        return text
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError("a duration is a whole number and a unit: 90s, 30m, 6h or 7d")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


Duration = Annotated[
    timedelta, BeforeValidator(read_duration), Field(gt=timedelta(0), le=MAX_DURATION)
]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Diversity:
    """How unlike each other the items of a list are made."""

    method: Literal["mmr", "none"] = "mmr"
    strength: Share = 0.3
    """0 keeps the order by score, 1 looks at nothing but differences."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Exploration:
    """How lists try what the models are not sure of."""

    method: Literal["epsilon", "plackett_luce"]
    epsilon: Annotated[float, Field(gt=0, le=1)] | None = None
    """Parameter of ``epsilon``: chance that a place is given to any of the candidates (0.05)."""
    temperature: Annotated[float, Field(gt=0, le=1_000)] | None = None
    """Parameter of ``plackett_luce``: divides the scores, so more is closer to chance (0.5)."""

    def __post_init__(self) -> None:
        own, default = _EXPLORING[self.method]
        for name, _ in _EXPLORING.values():
            if name != own and getattr(self, name) is not None:
                raise ValueError(f"{name} is not for method {self.method!r}, which takes {own}")
        if getattr(self, own) is None:
            object.__setattr__(self, own, default)


_EXPLORING = {"epsilon": ("epsilon", 0.05), "plackett_luce": ("temperature", 0.5)}


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Surface:
    """How the lists of one surface are made."""

    name: Text
    kind: Kind = "home"
    """Fields that a request must have."""
    weights: Annotated[Weights, Field(alias="sources")]
    """Sources by name with their weight in the fusion; ``sources`` in a file."""
    exclude_seen: bool | None = None
    """Whether items of the history are left out, as the item of ``related`` always is; None does
    as the bundle was evaluated."""
    num_candidates: Annotated[int, Field(ge=1, le=MAX_CANDIDATES)] = 200
    """Items requested from each source; a longer list requests as many as it has places."""
    max_history: Annotated[int, Field(ge=1, le=10_000)] = 200
    """Latest events that models read."""
    learned: bool = False
    """Whether the bundle's learned blend, where there is one, takes the place of the weights; of
    kind ``search`` whether it orders what the text found."""
    max_seen_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the places of a list that items of the history may take, while there are others."""
    domain: Literal["restrict", "context"] = "context"
    """Whether a request's domain restricts the candidates to its items, or is context alone."""
    diversity: Diversity = Diversity(method="none")
    caps: Mapping[Text, Count] = Field(default_factory=dict)
    """Most items of a list with the same value of a property: ``category``, ``brand``."""
    not_shown_within: Duration | None = None
    """Items that the user was shown within this time are left out."""
    exploration: Exploration | None = None
    filter: Where | None = None
    """An expression that holds for every item of every list."""
    min_k: Count = 1
    k: Count = 20
    """Length of a list whose request does not say."""
    max_k: Count = MAX_K

    def __post_init__(self) -> None:
        if not any(weight > 0 for weight in self.weights.values()):
            raise ValueError(
                f"surface {self.name!r} needs sources with weights >= 0 and one above, got "
                f"{dict(self.weights)}"
            )
        if (self.kind == "search") != (SEARCH in self.weights):
            raise ValueError(
                f"surface {self.name!r} is of kind {self.kind!r} and has sources "
                f"{', '.join(self.weights)}; surfaces of kind 'search' need the source 'search', "
                "and no others may have it"
            )
        if not self.min_k <= self.k <= self.max_k:
            raise ValueError(
                f"surface {self.name!r} needs min_k <= k <= max_k, got {self.min_k}, {self.k}, "
                f"{self.max_k}"
            )

    def as_evaluated(self, exclude_history: bool) -> Surface:
        """Resolve the bundle's defaults: whether ``home`` excludes the history."""
        if self.exclude_seen is not None:
            return self
        share = self.max_seen_share if exclude_history else min(MAX_SEEN_SHARE, self.max_seen_share)
        return replace(self, exclude_seen=exclude_history, max_seen_share=share)


# Without a learned blend content speaks only for items appended since the release: as released,
# lists are as evaluated.
HOME = Surface(
    name="home",
    kind="home",
    # The order decides between equal scores.
    weights={
        **{one: 1.0 for one in SOURCES if one not in (CONTENT.name, POPULARITY.name, SEARCH)},
        CONTENT.name: 1.0,
        POPULARITY.name: FILL,
    },
    learned=True,
)
# Content at 0.75: at 1 the next item of a user is found less often.
OF_ITEMS = {CONTENT.name: 0.75, POPULARITY.name: FILL}
RELATED = Surface(
    name="related",
    kind="related",
    weights={ITEM_TO_ITEM.name: 1.0, TWO_TOWER.name: 1.0, **OF_ITEMS},
    exclude_seen=False,
)
CART = Surface(
    name="cart",
    kind="cart",
    weights={**{one.name: 1.0 for one in (ITEM_TO_ITEM, EASE, NEXT_BASKET, SEQUENCE)}, **OF_ITEMS},
    exclude_seen=True,
)
SESSION = replace(HOME, name="session", kind="session")
# What is found is ordered by the text first; the learned blend of a known user settles the rest.
SEARCHED = Surface(
    name="search", kind="search", weights={SEARCH: 1.0}, exclude_seen=False, learned=True
)
BUILT_IN: Mapping[str, Surface] = {
    surface.name: surface for surface in (HOME, RELATED, CART, SESSION, SEARCHED)
}
KINDS: tuple[Kind, ...] = get_args(Kind)


def find_surfaces(
    exclude_history: bool, surfaces: Mapping[str, Surface] = BUILT_IN
) -> dict[str, Surface]:
    """Return the surfaces by name, as a bundle was evaluated."""
    return {name: surface.as_evaluated(exclude_history) for name, surface in surfaces.items()}
