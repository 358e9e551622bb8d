"""The routes of a server: one table of their paths, schemas, scopes, refusals and examples.

`find` gives the route of a request. The front answers it or passes it to a worker by its ``kind``,
`security` demands its ``scope``, `metrics` counts it by its ``path``, `web/handlers.py` has a
handler under its ``name``, `web/openapi.py` describes it, and the clients call it by its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from pydantic import BaseModel

from recsys.models.names import TWO_TOWER
from serving.online.events import EventsRequest
from serving.replies import (
    Alive,
    BatchReply,
    CatalogueReply,
    Category,
    ErrorReply,
    EventsReply,
    Fault,
    FieldFault,
    ForgottenReply,
    HistoryReply,
    ItemsChanged,
    ItemsReply,
    PastItem,
    Readiness,
    Removed,
    RuleCard,
    SurfaceCard,
    UserCard,
    UsersReply,
)
from serving.schemas import (
    BatchRequest,
    Degraded,
    ExplainParameters,
    Explanation,
    HistoryItem,
    HistoryParameters,
    ItemCard,
    ItemsParameters,
    ItemsRequest,
    RankRequest,
    RecommendedItem,
    Reply,
    Request,
    Scope,
    SearchParameters,
    SearchRequest,
    ServedBy,
    SimilarParameters,
    SlotExplained,
    UsersParameters,
    WhyNot,
)

REPLIES = (
    *(Degraded, RecommendedItem, ServedBy, Reply, BatchReply, ItemCard, ItemsReply, Category),
    *(CatalogueReply, UserCard, UsersReply, PastItem, HistoryReply, Alive, Readiness),
    *(FieldFault, Fault, ErrorReply, EventsReply, ItemsChanged, Removed, ForgottenReply),
    *(SlotExplained, WhyNot, Explanation, RuleCard, SurfaceCard),
)
"""All replies and their parts, as the OpenAPI document describes them."""
TAKES_BODY = (400, 408, 413, 415, 422)
ALWAYS = (401, 403, 429, 431, 503)
ERRORS: Mapping[int, tuple[str, Fault]] = {
    400: ("The body is not JSON.", Fault("bad_json", "the body is not JSON: unexpected end")),
    401: (
        "The server has keys and none of them was sent.",
        Fault("key_missing", "send your key once, as authorization: Bearer <key>"),
    ),
    403: (
        "The key does not open this route.",
        Fault("scope_missing", "key shop has no scope users, which this route needs"),
    ),
    404: (
        "There is no such item or user, or users are not shown.",
        Fault("unknown_item", "item 'zz' is not in the catalogue of bundle 7a038c5f0bbf"),
    ),
    408: ("The body took too long.", Fault("too_slow", "the body did not arrive within 10 s")),
    413: ("The body is too large.", Fault("too_large", "the body may have at most 8388608 bytes")),
    415: (
        "The body is not declared as JSON, or compressed.",
        Fault("not_json", "send the body with content-type application/json (curl: --json)"),
    ),
    422: (
        "A field is not as it is allowed.",
        Fault(
            "invalid_request",
            "k: Input should be less than or equal to 1000",
            [FieldFault("k", "Input should be less than or equal to 1000")],
        ),
    ),
    429: (
        "The key's limit is reached; the header retry-after says how long to wait.",
        Fault("rate_limited", "key shop may send 100 requests a second; wait 1 s"),
    ),
    431: (
        "The headers are too large.",
        Fault("headers_too_large", "the headers may have at most 32768 bytes"),
    ),
    503: (
        "The server is busy, starting or ending; the header retry-after says how long to wait.",
        Fault("overloaded", "the server is busy; try again in 1 s"),
    ),
}
CARD = ItemCard("235", "Mars Attacks! (1996)", ("Action", "Comedy"), "124-48-93")
ITEM = RecommendedItem("235", 0.0722, TWO_TOWER.name, CARD.title, CARD.categories, CARD.semantic_id)
LIST = Reply(
    request_id="019aab51ecf44d7f8f6f8c0f7a1f3c55",
    items=[ITEM],
    served_by=ServedBy("7a038c5f0bbf", "flat-1682x64", "3f9c2ab41d07", "fast"),
    degraded=[Degraded("unknown_item", "zz"), Degraded("short_list", "1 of 5")],
    fallback=None,
    timings_ms={"hydrate": 0.1, "filter": 0.1, "retrieve": 2.1, "rank": 0.9, "total": 3.4},
)
SLOT = SlotExplained(
    slot=1,
    item_id="235",
    score=0.0722,
    source=TWO_TOWER.name,
    title=CARD.title,
    reason="goes with Twister (1996)",
    contributions={TWO_TOWER.name: 1.0},
    sentence="It fits the history as a whole (two_tower, 100% of the score). "
    "Without Twister (1996) it would be in place 31 instead of 1.",
    place=1,
    because=[HistoryItem("118", 31, "Twister (1996)")],
    place_without=31,
)
EXPLANATION = Explanation(
    request_id=LIST.request_id,
    unix_ms=1763843304692,
    bundle="7a038c5f0bbf",
    still_served=True,
    surface="home",
    num_live_events=2,
    items=[SLOT],
    degraded=[],
    why_not=WhyNot("50", "in_history", "the visitor has had it", "Star Wars (1977)"),
)


Kind = Literal["list", "batch", "worker", "write", "file", "health", "metrics"]
"""What answers: a worker makes a list or a batch of lists, or runs the application; the front
writes to the store, sends a file, or reports health or metrics."""


class Route(NamedTuple):
    """One method of one path."""

    name: str
    method: str
    path: str
    summary: str = ""
    reply: type | None = None
    """None for a route that the OpenAPI document leaves out."""
    example: object = None
    """Example of the reply."""
    finds: bool = False
    """Whether it answers 404 if what it names is unknown."""
    parameters: type[BaseModel] | None = None
    path_parameter: tuple[str, str] | None = None
    """Its name and an example."""
    body: type[BaseModel] | None = None
    body_example: object = None
    scope: Scope | None = "read"
    """Scope that a key needs; None for a route that is open to everyone."""
    kind: Kind = "worker"

    @property
    def errors(self) -> tuple[int, ...]:
        """Statuses of its refusals, of `ERRORS`; none of a route that is open to everyone."""
        if self.scope is None:
            return ()
        takes = (
            TAKES_BODY if self.body else (422,) if self.parameters or self.path_parameter else ()
        )
        return (*((404,) if self.finds else ()), *takes, *ALWAYS)

    def value(self, path: str) -> str:
        """Read the path's parameter; empty without one."""
        begin, _, rest = self.path.partition("{")
        return path[len(begin) : len(path) - len(rest.partition("}")[2])] if rest else ""


ROUTES: tuple[Route, ...] = (
    Route(
        "recommend",
        "POST",
        "/v1/recommend",
        "Make one list.",
        Reply,
        LIST,
        finds=True,
        body=Request,
        body_example={
            "user_id": "42",
            "session": ["50", "zz"],
            "filter": {"where": "release_year >= 1990 and category in ['Action', 'Comedy']"},
            "k": 5,
        },
        kind="list",
    ),
    Route(
        "recommend_batch",
        "POST",
        "/v1/recommend:batch",
        "Make several lists, all from one bundle.",
        BatchReply,
        BatchReply([LIST, ErrorReply(ERRORS[404][1])]),
        body=BatchRequest,
        body_example={"requests": [{"user_id": "42"}, {"surface": "similar", "item_id": "zz"}]},
        kind="batch",
    ),
    Route(
        "rank",
        "POST",
        "/v1/rank",
        "Order items that the client has chosen.",
        Reply,
        LIST,
        finds=True,
        body=RankRequest,
        body_example={"user_id": "42", "items": ["50", "235", "181"]},
        kind="list",
    ),
    Route(
        "search_list",
        "POST",
        "/v1/search",
        "List what a text finds, in the order that suits the visitor.",
        Reply,
        LIST,
        finds=True,
        body=SearchRequest,
        body_example={"query": "star trek", "user_id": "42", "k": 5},
        kind="list",
    ),
    Route(
        "explain",
        "GET",
        "/v1/explain/{request_id}",
        "Say why a served list is as it is, and why an item is not in it.",
        Explanation,
        EXPLANATION,
        finds=True,
        parameters=ExplainParameters,
        path_parameter=("request_id", LIST.request_id),
    ),
    Route(
        "events",
        "POST",
        "/v1/events",
        "Store events; they count for the next list as soon as this is answered.",
        EventsReply,
        EventsReply(1, 0),
        body=EventsRequest,
        body_example={
            "events": [
                {
                    "event_id": "f3f1-1",
                    "user_id": "42",
                    "item_id": "235",
                    "event_type": "click",
                    "request_id": LIST.request_id,
                    "slot": 1,
                }
            ]
        },
        scope="events",
        kind="write",
    ),
    Route(
        "change_items",
        "POST",
        "/v1/items",
        "Hide, show and describe items, at once and on every surface.",
        ItemsChanged,
        ItemsChanged(7),
        body=ItemsRequest,
        body_example={"items": [{"item_id": "235", "hidden": True}]},
        scope="admin",
        kind="write",
    ),
    Route(
        "forget",
        "DELETE",
        "/v1/users/{user_id}",
        "Remove a user's events and served lists, and use no history of theirs any more.",
        ForgottenReply,
        ForgottenReply(Removed(12, 3)),
        path_parameter=("user_id", "42"),
        scope="admin",
        kind="write",
    ),
    Route(
        "similar",
        "GET",
        "/v1/similar/{item_id}",
        "List items like one item.",
        Reply,
        LIST,
        finds=True,
        parameters=SimilarParameters,
        path_parameter=("item_id", "50"),
    ),
    Route(
        "search",
        "GET",
        "/v1/search",
        "Find items by title.",
        ItemsReply,
        ItemsReply("7a038c5f0bbf", [CARD]),
        parameters=SearchParameters,
    ),
    Route(
        "items",
        "GET",
        "/v1/items",
        "Describe items; those that are not in the catalogue are left out.",
        ItemsReply,
        ItemsReply("7a038c5f0bbf", [CARD]),
        parameters=ItemsParameters,
    ),
    Route(
        "catalogue",
        "GET",
        "/v1/catalogue",
        "Count items and users, list categories, name the bundle and the profile.",
        CatalogueReply,
        CatalogueReply(
            *("7a038c5f0bbf", "fast", 1682, True, [Category("Action", 251)]),
            properties={"category": "list", "item_id": "text", "release_year": "number"},
            surfaces=[SurfaceCard("home", "home", [RuleCard("advent", "pins 242 to slot 1")])],
            keeps_events=True,
            num_users=943,
        ),
    ),
    Route(
        "users",
        "GET",
        "/v1/users",
        "List users by the beginning of their id, or some at random.",
        UsersReply,
        UsersReply("7a038c5f0bbf", [UserCard("42", 183)]),
        finds=True,
        parameters=UsersParameters,
        scope="users",
    ),
    Route(
        "history",
        "GET",
        "/v1/users/{user_id}/history",
        "List a user's history, newest first.",
        HistoryReply,
        HistoryReply(
            "7a038c5f0bbf",
            "42",
            183,
            [PastItem("235", CARD.title, CARD.categories, CARD.semantic_id, 881107258)],
        ),
        finds=True,
        parameters=HistoryParameters,
        path_parameter=("user_id", "42"),
        scope="users",
    ),
    Route(
        "alive",
        "GET",
        "/healthz",
        "Report that the process is alive.",
        Alive,
        Alive("alive"),
        scope=None,
        kind="health",
    ),
    Route(
        "ready",
        "GET",
        "/readyz",
        "Report what is served, and whether a newer bundle was refused.",
        Readiness,
        Readiness("ready", "7a038c5f0bbf", "9b1c", "fast", 1682),
        scope=None,
        kind="health",
    ),
    Route("page", "GET", "/", scope=None, kind="file"),
    Route("file", "GET", "/pages/{name}", scope=None, kind="file"),
    Route("schema", "GET", "/openapi.json", scope=None),
    Route("metrics", "GET", "/metrics", scope="metrics", kind="metrics"),
)
PATHS: tuple[str, ...] = tuple(dict.fromkeys(route.path for route in ROUTES))
BY_NAME: Mapping[str, Route] = {route.name: route for route in ROUTES}
_ROUTES = {(route.method, route.path): route for route in ROUTES}
_NESTED = sorted(
    ((path, path.partition("{")[0], path.partition("}")[2]) for path in PATHS if "{" in path),
    key=lambda one: -len(one[2]),
)
"""Templates with a parameter: each with its text before and after it, the longest ending first."""


def _templates(path: str) -> Iterator[str]:
    """List the templates that a path has, the closest first."""
    if path in PATHS:
        yield path
    for template, begin, end in _NESTED:
        if path.startswith(begin) and path.endswith(end):
            yield template


def find_template(path: str) -> str | None:
    """Return the template of a request's path; None if no route has it."""
    return next(_templates(path), None)


def find(method: str, path: str) -> Route | None:
    """Return the route of a request; None if there is none."""
    method = "GET" if method == "HEAD" else method
    if (route := _ROUTES.get((method, path))) is not None:
        return route
    found = (_ROUTES.get((method, template)) for template in _templates(path))
    return next((route for route in found if route is not None), None)
