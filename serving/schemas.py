"""Requests and replies, the same over HTTP, in Python and in batch.

A field that is not in these schemas is refused by its name, never ignored. A reply's fields that
are None are left out of its JSON (`to_json`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Annotated, Any, Literal

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import ValidationError

from recsys.data.filters import MAX_TEXT, parse
from serving.bundle.manifest import Profile
from serving.surfaces import Source as Source

MAX_K = 1_000
MAX_SESSION = 10_000
MAX_EXCLUDE = 10_000
MAX_CANDIDATES = 1_000
MAX_CURSOR = 64 << 10
MAX_QUERY = 200
MAX_CATEGORIES = 100
MAX_BATCH = 1_000
MAX_BATCH_ITEMS = 20_000
"""Items that all lists of a batch together may have places for: what a reply costs."""
MAX_ITEMS = 1_000
"""Items that one request may change."""
MAX_EXPLAINED = 100
"""Longest list that is explained."""

DegradedCode = Literal[
    "unknown_user",
    "empty_history",
    "unknown_item",
    "unknown_items",
    "unknown_category",
    "unknown_categories",
    "stale_data",
    "nothing_eligible",
    "seen_items_shown",
    "short_list",
    "late_source",
    "failed_source",
    "late_stage",
    "failed_stage",
    "failed_store",
    "corrected_query",
    "no_word_found",
    "many_refusals",
    "unknown_wish",
    "unread_wish",
]
WhyNotCode = Literal[
    "unknown_item",
    "shown",
    "hidden",
    "excluded",
    "on_an_earlier_page",
    "not_a_candidate",
    "in_history",
    "not_found",
    "not_on_surface",
    "filtered",
    "no_source",
    "outranked",
    "rearranged",
]
Scope = Literal["read", "events", "users", "metrics", "admin"]
"""Permission of a key."""
Id = Annotated[str, Field(min_length=1, max_length=512)]
SurfaceName = Annotated[str, Field(min_length=1, max_length=512)]


Direction = Literal["more", "less", "never"]
MAX_WISH_BYTES = 1_024


def _is_short(wish: str) -> str:
    if (size := len(wish.encode())) > MAX_WISH_BYTES:
        raise ValueError(f"a wish has at most {MAX_WISH_BYTES} bytes, got {size}; say it shorter")
    return wish


Wish = Annotated[str, Field(min_length=1), AfterValidator(_is_short)]


class Strict(BaseModel):
    """A part of a body; a field that it does not have is refused."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True
    )


class Parameters(BaseModel):
    """Query parameters of an address; texts become numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Filter(Strict):
    """Which items may be recommended."""

    categories: list[Id] | None = Field(default=None, min_length=1, max_length=MAX_CATEGORIES)
    """Only items in at least one of these categories. It always holds: an unknown category has no
    items, and a list that is short or empty for it says so."""
    where: str | None = Field(default=None, min_length=1, max_length=MAX_TEXT)
    """Only items for which this is true, such as ``price < 50 and brand in ['a', 'b']``;
    docs/filters.md has the language. It always applies, and missing values never pass."""

    @field_validator("where")
    @classmethod
    def _can_be_parsed(cls, where: str | None) -> str | None:
        if where is not None:
            parse(where)
        return where


class Context(Strict):
    """Context of a request."""

    unix_time: int | None = Field(default=None, ge=0, lt=1 << 40)
    """Time of the request in unix seconds, by default now; only events strictly before it count."""
    domain: Id | None = None
    """Domain where the list is shown. Its adapter is used if there is one; an unknown domain is
    served by the base model."""


class Request(Strict):
    """A request for one list.

    Surface ``home`` takes a user, a session, both (the session continues the user's history) or
    neither (an anonymous visitor); ``related`` takes an item, ``cart`` and
    ``session`` the items of one as ``session``, ``search`` a text as ``query``. A deployment may
    have more surfaces.
    """

    surface: SurfaceName = "home"
    user_id: Id | None = None
    session: list[Id] | None = Field(default=None, max_length=MAX_SESSION)
    """Item ids of the visit, oldest first."""
    item_id: Id | None = None
    query: Annotated[str, Field(min_length=1, max_length=MAX_QUERY)] | None = None
    """Query: words of titles, or their beginnings."""
    context: Context = Context()
    k: int = Field(default=20, ge=1, le=MAX_K)
    filter: Filter = Filter()
    exclude: list[Id] = Field(default_factory=list, max_length=MAX_EXCLUDE)
    """Item ids that must not be shown; unknown ids are ignored."""
    diversity: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    """How unlike each other the items are, from 0 to 1; by default as the surface says."""
    explain: bool = False
    """Whether each item comes with a reason and the contributions of its sources; k may then be at
    most 100."""
    dry_run: bool = False
    """Whether the list leaves no trace: it is not logged and does not count as shown."""
    steer: Wish | None = None
    """Plain words that steer this list, such as ``more comedies, less horror``; the topics that
    are kept of the user do too."""
    cursor: str | None = Field(default=None, max_length=MAX_CURSOR)
    """``start`` for the first page of a list, then what the page before gave; pages never repeat an
    item. Without it a reply has no cursor."""
    candidates: list[Id] | None = Field(default=None, min_length=1, max_length=MAX_CANDIDATES)
    """Only these are listed, in the order that suits the visitor, items of the history too."""

    @model_validator(mode="after")
    def _can_be_explained(self) -> Request:
        if self.explain and self.k > MAX_EXPLAINED:
            raise ValueError(
                f"explain takes k of at most {MAX_EXPLAINED}, got {self.k}; lower one of them"
            )
        return self


def read_request(**fields: object) -> Request:
    """Build a request from its fields; a ValueError names each wrong one."""
    try:
        return Request.model_validate(fields)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        lines = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in faults]
        raise ValueError("; ".join(line.removeprefix(": ") for line in lines)) from None


class SearchRequest(Request):
    """A request for what a text finds, in the order that suits the visitor where one is known."""

    surface: SurfaceName = "search"
    query: Annotated[str, Field(min_length=1, max_length=MAX_QUERY)]
    """Query: words of an item or their beginnings, with or without typos."""


class RefineRequest(Strict):
    """A wish, or a correction of the list before."""

    say: Wish
    """Plain words, such as ``older, no drama``, or an answer of the reply before."""
    request: Request = Request()
    """``request`` of the reply before; for a first wish, who it is for and how many items."""


class BatchRequest(Strict):
    """Several requests, answered in order by one bundle; their k may add up to 20,000."""

    requests: list[Request] = Field(min_length=1, max_length=MAX_BATCH)

    @model_validator(mode="after")
    def _fits_reply(self) -> BatchRequest:
        total = sum(request.k for request in self.requests)
        if total > MAX_BATCH_ITEMS:
            raise ValueError(
                f"k of all requests adds up to {total}; a batch may have {MAX_BATCH_ITEMS} in all, "
                "send more batches or shorter lists"
            )
        return self


class SimilarParameters(Parameters):
    """Query parameters of ``/v1/similar/{item_id}``."""

    k: int = Field(default=20, ge=1, le=MAX_K)


class ItemChange(Strict):
    """Changes of one item, at once and on every surface."""

    item_id: Id
    hidden: bool = False
    """Whether no list may show it."""
    reset: bool = False
    """Whether it is as it was released again; no other field may then be given."""


class ItemsRequest(Strict):
    """Changes of items; all of them are made, or none."""

    items: Annotated[list[ItemChange], Field(min_length=1, max_length=MAX_ITEMS)]


class SearchParameters(Parameters):
    """Query parameters of ``/v1/search``."""

    q: str = Field(default="", max_length=200)
    """Words of a title, or their beginnings; empty lists the most popular items."""
    k: int = Field(default=10, ge=1, le=50)


class ItemsParameters(Parameters):
    """Query parameters of ``/v1/items``."""

    id: list[Id] = Field(min_length=1, max_length=100)
    """Repeat it for more than one item."""


class UsersParameters(Parameters):
    """Query parameters of ``/v1/users``."""

    prefix: str = Field(default="", max_length=512)
    k: int = Field(default=10, ge=1, le=50)
    random: bool = False
    """Whether to draw users at random; ``prefix`` is then ignored."""


class HistoryParameters(Parameters):
    """Query parameters of ``/v1/users/{user_id}/history``."""

    k: int = Field(default=50, ge=1, le=500)


class TopicParameters(Parameters):
    """Query parameters of DELETE ``/v1/users/{user_id}/topics``."""

    words: str | None = None
    """Words of the topic to delete; without them all are deleted."""


class ExplainParameters(Parameters):
    """Query parameters of ``/v1/explain/{request_id}``."""

    item_id: Id | None = None
    """An item that may be missing from the list; the reply then says why."""


@dataclass(frozen=True, slots=True)
class Degraded:
    """One thing that was missing, late or left out; docs/serving.md lists the codes."""

    code: DegradedCode
    detail: str | None = None
    """Which item, category, source or stage, or how many; absent where the code says it all."""

    def __str__(self) -> str:
        return self.code if self.detail is None else f"{self.code}: {self.detail}"


@dataclass(frozen=True, slots=True)
class ItemCard:
    """One item; fields that are None are left out of JSON."""

    item_id: str
    title: str | None
    """Cut to 500 characters."""
    categories: tuple[str, ...] | None
    """At most 50."""
    semantic_id: str | None
    """Codes, coarse to fine, as ``12-250-3``."""


@dataclass(init=False)
class RecommendedItem:
    """One item of a list; it holds no field that is None, so `reply_json` writes it as it is."""

    item_id: str
    score: float
    """By which the item was ranked. It never rises along a list, unless rules, diversity or
    exploration have rearranged that; what a wish moved has the score of its new place. Scores of
    two lists cannot be compared: each is a sum of parts that depend on the user, the candidates
    and the bundle, and is no probability."""
    source: Source
    """The source that contributed most to the score."""
    title: str | None = None
    """Title on a page, cut to 500 characters; absent if the catalogue has none."""
    categories: tuple[str, ...] | None = None
    """At most 50; absent where the item has none."""
    semantic_id: str | None = None
    """Codes, coarse to fine, as ``12-250-3``; absent without."""
    reason: str | None = None
    """A few words on why it is listed; absent unless ``explain`` is set."""
    contributions: dict[str, float] | None = None
    """Share of the score by source, largest first; absent unless ``explain`` is set."""

    def __init__(
        self,
        card: ItemCard,
        score: float,
        source: Source,
        reason: str | None = None,
        contributions: dict[str, float] | None = None,
    ) -> None:
        self.item_id, self.score, self.source = card.item_id, score, source
        if card.title is not None:
            self.title = card.title
        if card.categories is not None:
            self.categories = card.categories
        if card.semantic_id is not None:
            self.semantic_id = card.semantic_id
        if reason is not None:
            self.reason = reason
        if contributions is not None:
            self.contributions = contributions


@dataclass(frozen=True, slots=True)
class ServedBy:
    """Versions of the parts that made a list; absent where the bundle has no such part."""

    bundle: str
    index: str | None = None
    semantic_ids: str | None = None
    """Version of the items' semantic IDs."""
    profile: Profile = "fast"
    """Which sources are queried: ``full`` adds slower ones, such as beam search."""
    adapter: str | None = None
    """``<domain>/<version>`` of the adapter that was used; absent where the base model was."""
    ranker: str | None = None
    """Version of the ranker that ordered the list; absent where the blend's order is served."""


@dataclass(frozen=True, slots=True)
class Assigned:
    """The arm of an experiment that a list is of."""

    name: str
    arm: str


@dataclass(frozen=True, slots=True)
class Steered:
    """A wish of the visitor that changed a list."""

    words: str
    direction: Direction
    strength: float
    """How far it moves items: at 1 their places are divided, or multiplied, by 8."""
    num_items: int
    """Items of the list that it moved; with ``never``, items of the catalogue that it left out."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The list, best first, and how it was made."""

    request_id: str
    items: list[RecommendedItem]
    """Fewer than ``k`` where there are no more; ``degraded`` then says so once."""
    served_by: ServedBy
    degraded: list[Degraded]
    """Warnings: missing, late or left-out parts; empty if none."""
    timings_ms: dict[str, float]
    """Milliseconds by stage, and ``total``."""
    fallback: Source | None = None
    """The source of the whole list where no other found an item, else absent."""
    experiment: Assigned | None = None
    """Absent where the surface has none, or the request no user."""
    steered: list[Steered] | None = None
    """Wishes that changed the list; absent if none did."""
    cursor: str | None = None
    """Cursor of the next page; absent if the request had none or this page is the last."""


def error_body(code: str, message: str) -> dict[str, object]:
    """Describe an error as every response with one does."""
    return {"error": {"code": code, "message": message}}


def to_json(content: object) -> bytes:
    """Encode a reply, or anything made of dataclasses; their fields that are None are left out."""
    return orjson.dumps(content, default=_present, option=orjson.OPT_PASSTHROUGH_DATACLASS)


def reply_json(reply: Reply, items: bytes) -> bytes:
    """Encode a list as `to_json` does, given its items' JSON."""
    written = {
        "items": orjson.Fragment(items),
        "served_by": _part_json(reply.served_by),
        "degraded": [_part_json(note) for note in reply.degraded],
    }
    return to_json(_present(reply) | written)


@lru_cache(maxsize=1_024)
def _part_json(part: ServedBy | Degraded) -> orjson.Fragment:
    return orjson.Fragment(to_json(part))


_FIELD_NAMES: dict[type, tuple[str, ...]] = {}


def _present(value: Any) -> dict[str, object]:
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_unset=True)
    kind = type(value)
    if kind not in _FIELD_NAMES:
        _FIELD_NAMES[kind] = tuple(field.name for field in fields(kind))
    names = _FIELD_NAMES[kind]
    return {name: found for name in names if (found := getattr(value, name)) is not None}
