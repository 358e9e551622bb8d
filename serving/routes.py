"""The routes of a server: one table of their paths, schemas, scopes, refusals and examples.

`find` gives the route of a request. The front answers it or passes it to a worker by its ``kind``,
`security` demands its ``scope``, `metrics` counts it by its ``path``, `web/handlers.py` has a
handler under its ``name``, `web/descriptions.py` describes it, and the clients call it by its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from typing import Literal, NamedTuple

from pydantic import BaseModel

from serving import explained, replies, schemas
from serving.online.events import EventsRequest
from serving.online.topics import TopicsRequest
from serving.schemas import (
    BatchRequest,
    ExplainParameters,
    HistoryParameters,
    ItemsParameters,
    ItemsRequest,
    RefineRequest,
    Reply,
    Request,
    Scope,
    SearchParameters,
    SearchRequest,
    SimilarParameters,
    TopicParameters,
    UsersParameters,
)

REPLIES: tuple[type, ...] = tuple(
    kind
    for module in (schemas, replies, explained)
    for kind in vars(module).values()
    if isinstance(kind, type) and is_dataclass(kind) and kind.__module__ == module.__name__
    if kind is not schemas.ItemCard
)
"""All replies and their parts; `ItemCard` is the base of some."""
TAKES_BODY = (400, 408, 413, 415, 422)
ALWAYS = (401, 403, 429, 431, 503)
ERRORS: Mapping[int, str] = {
    400: "The body is not JSON.",
    401: "The server has keys and none of them was sent.",
    403: "The key does not open this route.",
    404: "There is no such item or user, or users are not shown.",
    408: "The body took too long.",
    413: "The body is too large.",
    415: "The body is not declared as JSON, or compressed.",
    422: "A field is not as it is allowed.",
    429: "The key's limit is reached; the header retry-after says how long to wait.",
    431: "The headers are too large.",
    503: "The server is busy, starting or ending; the header retry-after says how long to wait.",
}
REQUEST_ID = "019aab51ecf44d7f8f6f8c0f7a1f3c55"
"""Example of the id of a list."""
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
        replies.BatchReply,
        body=BatchRequest,
        body_example={"requests": [{"user_id": "42"}, {"surface": "related", "item_id": "zz"}]},
        kind="batch",
    ),
    Route(
        "search_list",
        "POST",
        "/v1/search",
        "List what a text finds, in the order that suits the visitor.",
        Reply,
        finds=True,
        body=SearchRequest,
        body_example={"query": "star trek", "user_id": "42", "k": 5},
        kind="list",
    ),
    Route(
        "refine",
        "POST",
        "/v1/refine",
        "Change a list by what is said of it, and ask one question.",
        replies.RefineReply,
        finds=True,
        body=RefineRequest,
        body_example={"say": "slow comedies, no horror", "request": {"user_id": "42", "k": 5}},
        kind="list",
    ),
    Route(
        "explain",
        "GET",
        "/v1/explain/{request_id}",
        "Say why a served list is as it is, and why an item is not in it.",
        explained.Explanation,
        finds=True,
        parameters=ExplainParameters,
        path_parameter=("request_id", REQUEST_ID),
    ),
    Route(
        "events",
        "POST",
        "/v1/events",
        "Store events; they count for the next list as soon as this is answered.",
        replies.EventsReply,
        body=EventsRequest,
        body_example={
            "events": [
                {
                    "event_id": "f3f1-1",
                    "user_id": "42",
                    "item_id": "235",
                    "event_type": "click",
                    "request_id": REQUEST_ID,
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
        "Hide and show items, at once and on every surface.",
        replies.ItemsChanged,
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
        replies.ForgottenReply,
        path_parameter=("user_id", "42"),
        scope="admin",
        kind="write",
    ),
    Route(
        "topics",
        "GET",
        "/v1/users/{user_id}/topics",
        "List what a user wants more and less of, as said and as inferred from the history.",
        replies.TopicsReply,
        finds=True,
        path_parameter=("user_id", "42"),
        scope="users",
    ),
    Route(
        "put_topics",
        "PUT",
        "/v1/users/{user_id}/topics",
        "Keep what a user says, for every list from now on.",
        replies.TopicsReply,
        body=TopicsRequest,
        body_example={"wish": "more comedies, less horror this week"},
        path_parameter=("user_id", "42"),
        scope="events",
        kind="write",
    ),
    Route(
        "delete_topics",
        "DELETE",
        "/v1/users/{user_id}/topics",
        "Delete one topic that a user said, or all.",
        replies.TopicsReply,
        parameters=TopicParameters,
        path_parameter=("user_id", "42"),
        scope="events",
        kind="write",
    ),
    Route(
        "similar",
        "GET",
        "/v1/similar/{item_id}",
        "List items like one item.",
        Reply,
        finds=True,
        parameters=SimilarParameters,
        path_parameter=("item_id", "50"),
    ),
    Route(
        "search",
        "GET",
        "/v1/search",
        "Find items by title.",
        replies.ItemsReply,
        parameters=SearchParameters,
    ),
    Route(
        "items",
        "GET",
        "/v1/items",
        "Describe items; those that are not in the catalogue are left out.",
        replies.ItemsReply,
        parameters=ItemsParameters,
    ),
    Route(
        "catalogue",
        "GET",
        "/v1/catalogue",
        "Count items and users, list categories, name the bundle and the profile.",
        replies.CatalogueReply,
    ),
    Route(
        "users",
        "GET",
        "/v1/users",
        "List users by the beginning of their id, or some at random.",
        replies.UsersReply,
        finds=True,
        parameters=UsersParameters,
        scope="users",
    ),
    Route(
        "history",
        "GET",
        "/v1/users/{user_id}/history",
        "List a user's history, newest first.",
        replies.HistoryReply,
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
        replies.Alive,
        scope=None,
        kind="health",
    ),
    Route(
        "ready",
        "GET",
        "/readyz",
        "Report what is served, and whether a newer bundle was refused.",
        replies.Readiness,
        scope=None,
        kind="health",
    ),
    Route("page", "GET", "/", scope=None, kind="file"),
    Route("file", "GET", "/pages/{name}", scope=None, kind="file"),
    Route("schema", "GET", "/openapi.json", scope=None),
    Route("metrics", "GET", "/metrics", scope="metrics", kind="metrics"),
)
PATHS: tuple[str, ...] = tuple(dict.fromkeys(route.path for route in ROUTES))
_PATHS = frozenset(PATHS)
BY_NAME: Mapping[str, Route] = {route.name: route for route in ROUTES}
_ROUTES = {(route.method, route.path): route for route in ROUTES}
_NESTED = sorted(
    ((path, path.partition("{")[0], path.partition("}")[2]) for path in PATHS if "{" in path),
    key=lambda one: -len(one[2]),
)
"""Templates with a parameter: each with its text before and after it, the longest ending first."""


def _templates(path: str) -> Iterator[str]:
    """List the templates that a path has, the closest first."""
    if path in _PATHS:
        yield path
    for template, begin, end in _NESTED:
        # What is before and after may not overlap: /v1/users/topics is a user.
        within = len(path) >= len(begin) + len(end)
        if within and path.startswith(begin) and path.endswith(end):
            yield template


def find_template(path: str) -> str | None:
    """Return the template of a request's path; None if no route has it."""
    return path if path in _PATHS else next(_templates(path), None)


def find(method: str, path: str) -> Route | None:
    """Return the route of a request; None if there is none."""
    method = "GET" if method == "HEAD" else method
    if (route := _ROUTES.get((method, path))) is not None:
        return route
    found = (_ROUTES.get((method, template)) for template in _templates(path))
    return next((route for route in found if route is not None), None)
