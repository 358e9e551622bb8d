"""Replies of the routes that make no list, and errors; fields that are None are left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from serving.bundle.manifest import Profile, PropertyKind
from serving.schemas import Degraded, Direction, ItemCard, Reply, Request
from serving.surfaces import Kind

ErrorCode = Literal[
    "bad_http",
    "bad_json",
    "compressed",
    "draining",
    "gone",
    "headers_too_large",
    "internal",
    "invalid_filter",
    "invalid_request",
    "key_missing",
    "key_unknown",
    "method_not_allowed",
    "no_keys",
    "no_such_file",
    "no_such_route",
    "no_store",
    "no_worker",
    "not_json",
    "overloaded",
    "rate_limited",
    "scope_missing",
    "store_busy",
    "store_failed",
    "too_large",
    "too_many_connections",
    "too_slow",
    "unknown_item",
    "unknown_property",
    "unknown_request",
    "unknown_user",
    "users_not_shown",
]


@dataclass(frozen=True, slots=True)
class FieldFault:
    """Fault of one field of a request."""

    field: str
    """Its name, nested ones as ``requests.1.k``."""
    message: str


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a request was not served."""

    code: ErrorCode
    message: str
    """The problem, the allowed values and the remedy; for people, not for programs."""
    fields: list[FieldFault] | None = None
    """The first ten wrong fields of a body or an address."""


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """Reply to every request that is refused."""

    error: Fault


@dataclass(frozen=True, slots=True)
class BatchReply:
    """The lists of a batch, in the order of its requests."""

    replies: list[Reply | ErrorReply]
    """An error where the item of surface ``related``, or a property of the filter, is unknown."""


@dataclass(frozen=True, slots=True)
class DescribedItem(ItemCard):
    """One item and its properties."""

    properties: dict[str, float | str | bool | list[str]] | None = None
    """Columns of the catalogue and what enrichment found; absent if the item has none."""


@dataclass(frozen=True, slots=True)
class ItemsReply:
    """Items, described."""

    bundle: str
    items: list[DescribedItem]
    corrected: str | None = None
    """The words that were searched for instead; absent where those that were sent are found."""


@dataclass(frozen=True, slots=True)
class Category:
    """A category with its number of items."""

    name: str
    num_items: int


@dataclass(frozen=True, slots=True)
class RuleCard:
    """A rule that holds now."""

    name: str
    does: str
    """In words."""


@dataclass(frozen=True, slots=True)
class SurfaceCard:
    """A surface, with what holds on it now."""

    name: str
    kind: Kind
    """Fields that a request to it needs."""
    rules: list[RuleCard]
    experiment: str | None = None
    """The one that runs; absent without."""


@dataclass(frozen=True, slots=True)
class CatalogueReply:
    """The served bundle."""

    bundle: str
    profile: Profile
    num_items: int
    shows_users: bool
    """Whether this caller may list users and read histories."""
    categories: list[Category]
    """The 500 largest, by name."""
    properties: dict[str, PropertyKind]
    """Property that ``filter.where`` may name, with its kind."""
    surfaces: list[SurfaceCard]
    keeps_events: bool
    """Whether there is an online store, so that lists follow events."""
    num_users: int | None = None
    """Absent for a caller who may not list users."""


@dataclass(frozen=True, slots=True)
class UserCard:
    """One user in a list of users."""

    user_id: str
    num_events: int


@dataclass(frozen=True, slots=True)
class UsersReply:
    """Users of the bundle."""

    bundle: str
    users: list[UserCard]


@dataclass(frozen=True, slots=True)
class PastItem(ItemCard):
    """One event of a user's history."""

    unix_time: int | None = None
    """Absent where the data has only an order."""


@dataclass(frozen=True, slots=True)
class HistoryReply:
    """A user's history as the bundle has it."""

    bundle: str
    user_id: str
    num_events: int
    items: list[PastItem]
    """Newest first."""


@dataclass(frozen=True, slots=True)
class TopicCard:
    """Something that a user wants more or less of."""

    words: str
    direction: Direction
    strength: float
    source: Literal["said", "inferred"]
    """``inferred``: a category that the user's history has more of than the catalogue; models
    follow the history by themselves, so it moves nothing until it is said."""
    until: float | None = None
    """Unix second at which it ends; absent if it holds for good."""
    num_items: int | None = None
    """Items of the catalogue that match; absent in the reply to a change."""
    ignored: list[str] | None = None
    """Words that match nothing, so that the others count; absent if there are none."""
    said_as: str | None = None
    """The wish that a language model read it in; absent if rules read it."""


@dataclass(frozen=True, slots=True)
class TopicsReply:
    """The topics of a user, those that were said first."""

    topics: list[TopicCard]
    degraded: list[Degraded] | None = None
    """Why no language model read a wish that rules leave unread in part; absent if one did, if
    rules read all of it, or if the server has none."""


@dataclass(frozen=True, slots=True)
class ClarifyingQuestion:
    """A question that tells the next items apart best."""

    text: str
    answers: tuple[str, str]
    """Text to say next, for each answer."""


@dataclass(frozen=True, slots=True)
class RefineReply:
    """A list, the request of the next turn, and a question."""

    list: Reply
    request: Request
    """Request of the next turn; it leaves out the items of this list."""
    question: ClarifyingQuestion | None = None
    """Absent if nothing splits the next items."""


@dataclass(frozen=True, slots=True)
class Alive:
    """That the process is alive."""

    status: Literal["alive"]


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether requests are answered, and from what; more fields may follow."""

    status: Literal["ready", "draining", "no_worker"]
    bundle: str | None = None
    digest: str | None = None
    """Digest of everything in the bundle."""
    profile: Profile | None = None
    num_items: int | None = None


@dataclass(frozen=True, slots=True)
class EventsReply:
    """Events that are durable now."""

    accepted: int
    """Those that were new."""
    duplicates: int
    """Those whose id was known; they are stored once."""


@dataclass(frozen=True, slots=True)
class ItemsChanged:
    """Changes that are durable now, and seen by every list that is made after this reply."""

    items_version: int


@dataclass(frozen=True, slots=True)
class Removed:
    """Counts of what was removed of a user."""

    events: int
    lists: int


@dataclass(frozen=True, slots=True)
class ForgottenReply:
    """A user who is forgotten; events that arrive later are those of a new user."""

    removed: Removed
