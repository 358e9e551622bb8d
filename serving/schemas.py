"""What a client asks and what it gets, the same over HTTP, in Python and in batch.

A field that is not in these schemas is refused with its name, never ignored: ``query``,
``diversity``, ``cursor`` and ``dry_run`` are not served.
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
    "two_tower", "item_to_item", "content", "sequence", "ensemble", "generative", "popular"
]
Id = Annotated[str, Field(min_length=1, max_length=512)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Filter(_Strict):
    """What an item must be to be shown."""

    categories: list[Id] | None = Field(default=None, min_length=1, max_length=MAX_CATEGORIES)
    """Only items in at least one of these; a category the catalogue lacks holds no item."""


class Context(_Strict):
    """The circumstances of a request."""

    unix_time: int | None = Field(default=None, ge=0, lt=1 << 40)
    """Answer as of this second: the history is what lies strictly before. By default now."""
    domain: Id | None = None
    """Where the list is shown. Its adapter reads the history, if it has one; an unknown domain is
    answered as none."""


class Request(_Strict):
    """One list, please.

    Surface ``home`` takes a user, a session, both (the session continues the user's history) or
    neither (a visitor nobody knows). Surface ``similar`` takes an item.
    """

    surface: Literal["home", "similar"] = "home"
    user_id: Id | None = None
    session: list[Id] | None = Field(default=None, max_length=MAX_SESSION)
    """Item ids, oldest first."""
    item_id: Id | None = None
    context: Context = Context()
    k: int = Field(default=20, ge=1, le=MAX_K)
    filter: Filter = Filter()
    exclude: list[Id] = Field(default_factory=list, max_length=MAX_EXCLUDE)
    """Item ids that must not be shown; unknown ones are not there anyway."""
    explain: bool = False
    """Whether each item comes with a reason."""

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
    """Part of the score that each source added, largest first; null unless asked to explain."""


@dataclass(frozen=True, slots=True)
class ServedBy:
    """What answered; null where the bundle has no such part."""

    bundle: str
    index: str | None
    semantic_ids: str | None = None
    """Version of the items' semantic IDs."""
    profile: Profile = "fast"
    """Which sources answer: ``full`` asks slower ones too, such as the beam."""
    adapter: str | None = None
    """``<domain>/<version>`` of the adapter that read the history; null where the base did."""
    ranker: str | None = None
    """Version of the ranker that ordered the list; null where the blend's order is served."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The list, best first, and how it came about."""

    request_id: str
    items: list[RecommendedItem]
    served_by: ServedBy
    degraded: list[str]
    """What the list lacks against a full answer, each as ``<what>`` or ``<what>: <which>``."""
    fallback: Source | None
    """The source that filled a list for which no other had anything, else null."""
    timings_ms: dict[str, float]
