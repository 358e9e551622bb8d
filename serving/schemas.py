"""Requests and replies, the same over HTTP, in Python and in batch.

A field that is not in these schemas is refused by its name, never ignored: ``query``,
``diversity``, ``cursor`` and ``dry_run`` are not supported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from serving.bundle.manifest import Profile

MAX_K = 1_000
MAX_SESSION = 10_000
MAX_EXCLUDE = 10_000
MAX_CATEGORIES = 100
MAX_BATCH = 1_000

Source = Literal[
    "two_tower",
    "item_to_item",
    "ease",
    "item_knn",
    "repeats",
    "next_basket",
    "content",
    "sequence",
    "ensemble",
    "generative",
    "popular",
]
Id = Annotated[str, Field(min_length=1, max_length=512)]


class _Strict(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True
    )


class Parameters(BaseModel):
    """Query parameters of an address; texts become numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Filter(_Strict):
    """Which items may be recommended."""

    categories: list[Id] | None = Field(default=None, min_length=1, max_length=MAX_CATEGORIES)
    """Only items in at least one of these categories; an unknown category has no items."""


class Context(_Strict):
    """Context of a request."""

    unix_time: int | None = Field(default=None, ge=0, lt=1 << 40)
    """Time of the request in unix seconds, by default now; only events strictly before it count."""
    domain: Id | None = None
    """Domain where the list is shown. Its adapter is used if there is one; an unknown domain is
    served by the base model."""


class Request(_Strict):
    """A request for one list.

    Surface ``home`` takes a user, a session, both (the session continues the user's history) or
    neither (an anonymous visitor). Surface ``similar`` takes an item.
    """

    surface: Literal["home", "similar"] = "home"
    user_id: Id | None = None
    session: list[Id] | None = Field(default=None, max_length=MAX_SESSION)
    """Item ids of the visit, oldest first."""
    item_id: Id | None = None
    context: Context = Context()
    k: int = Field(default=20, ge=1, le=MAX_K)
    filter: Filter = Filter()
    exclude: list[Id] = Field(default_factory=list, max_length=MAX_EXCLUDE)
    """Item ids that must not be shown; unknown ids are ignored."""
    explain: bool = False
    """Whether each item comes with a reason and the contributions of its sources."""

    @model_validator(mode="after")
    def _fits_surface(self) -> Request:
        if self.surface == "similar":
            if self.item_id is None:
                raise ValueError("surface 'similar' needs item_id")
            if self.user_id is not None or self.session is not None:
                raise ValueError("surface 'similar' takes item_id, not user_id or session")
        elif self.item_id is not None:
            raise ValueError("item_id belongs to surface 'similar'; here put it into session")
        return self


class BatchRequest(_Strict):
    """Several requests, answered in order by one bundle."""

    requests: list[Request] = Field(min_length=1, max_length=MAX_BATCH)


class SimilarParameters(Parameters):
    """Of ``/v1/similar/{item_id}``."""

    k: int = Field(default=20, ge=1, le=MAX_K)


@dataclass(frozen=True, slots=True)
class RecommendedItem:
    """One item of a list."""

    item_id: str
    score: float
    source: Source
    """The source that contributed most to the score."""
    reason: str | None = None
    semantic_id: str | None = None
    """Codes, coarse to fine, as ``12-250-3``; null without."""
    contributions: dict[str, float] | None = None
    """Share of the score by source, largest first; null unless ``explain`` is set."""


@dataclass(frozen=True, slots=True)
class ServedBy:
    """Versions of the parts that made a list; null where the bundle has no such part."""

    bundle: str
    index: str | None
    semantic_ids: str | None = None
    """Version of the items' semantic IDs."""
    profile: Profile = "fast"
    """Which sources are queried: ``full`` adds slower ones, such as beam search."""
    adapter: str | None = None
    """``<domain>/<version>`` of the adapter that was used; null where the base model was."""
    ranker: str | None = None
    """Version of the ranker that ordered the list; null where the blend's order is served."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The list, best first, and how it was made."""

    request_id: str
    items: list[RecommendedItem]
    served_by: ServedBy
    degraded: list[str]
    """What was missing or late, each as ``<what>`` or ``<what>: <which>``; empty if nothing."""
    fallback: Source | None
    """The source of the whole list where no other found an item, else null."""
    timings_ms: dict[str, float]
    """Milliseconds by stage, and ``total``."""
