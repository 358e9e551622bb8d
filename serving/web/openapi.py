"""The OpenAPI document: every operation with its reply and every refusal, each with an example.

Schemas come from what is validated (`serving.schemas`, `serving.web.parameters`) and from what is
sent (the dataclasses of replies), so that they cannot tell of anything else.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

import orjson
from pydantic import BaseModel, ConfigDict, TypeAdapter

from recsys.models.names import TWO_TOWER
from serving.online.events import EventsRequest
from serving.schemas import (
    BatchRequest,
    Degraded,
    Explanation,
    HistoryItem,
    ItemCard,
    RankRequest,
    RecommendedItem,
    Reply,
    Request,
    SearchRequest,
    ServedBy,
    SimilarParameters,
    SlotExplained,
    WhyNot,
    to_json,
)
from serving.web.online import ItemsRequest
from serving.web.parameters import (
    ExplainParameters,
    HistoryParameters,
    ItemsParameters,
    SearchParameters,
    UsersParameters,
)
from serving.web.replies import (
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

Document = dict[str, Any]
REPLIES = (
    *(Degraded, RecommendedItem, ServedBy, Reply, BatchReply, ItemCard, ItemsReply, Category),
    *(CatalogueReply, UserCard, UsersReply, PastItem, HistoryReply, Alive, Readiness),
    *(FieldFault, Fault, ErrorReply, EventsReply, ItemsChanged, Removed, ForgottenReply),
    *(SlotExplained, WhyNot, Explanation, RuleCard, SurfaceCard),
)
SCHEMAS = "#/components/schemas/"
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
    408: (
        "The body took too long.",
        Fault("too_slow", "the body did not arrive within 10 s"),
    ),
    413: (
        "The body is too large.",
        Fault("too_large", "the body may have at most 8388608 bytes"),
    ),
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
ITEM = RecommendedItem(
    "235", 0.0722, TWO_TOWER.source, CARD.title, CARD.categories, CARD.semantic_id
)
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
    source=TWO_TOWER.source,
    title=CARD.title,
    reason="goes with Twister (1996)",
    contributions={TWO_TOWER.source: 1.0},
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


class Operation(NamedTuple):
    """One method of one path."""

    id: str
    summary: str
    reply: type
    example: object
    """Of the reply."""
    errors: Sequence[int] = ()
    parameters: type[BaseModel] | None = None
    path_parameter: tuple[str, str] | None = None
    """Its name and an example."""
    body: type[BaseModel] | None = None
    body_example: object = None


OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("post", "/v1/recommend"): Operation(
        "recommend",
        "Make one list.",
        Reply,
        LIST,
        (404, *TAKES_BODY, *ALWAYS),
        body=Request,
        body_example={
            "user_id": "42",
            "session": ["50", "zz"],
            "filter": {"where": "release_year >= 1990 and category in ['Action', 'Comedy']"},
            "k": 5,
        },
    ),
    ("post", "/v1/recommend:batch"): Operation(
        "recommend_batch",
        "Make several lists, all from one bundle.",
        BatchReply,
        BatchReply([LIST, ErrorReply(ERRORS[404][1])]),
        (*TAKES_BODY, *ALWAYS),
        body=BatchRequest,
        body_example={"requests": [{"user_id": "42"}, {"surface": "similar", "item_id": "zz"}]},
    ),
    ("post", "/v1/rank"): Operation(
        "rank",
        "Order items that the client has chosen.",
        Reply,
        LIST,
        (404, *TAKES_BODY, *ALWAYS),
        body=RankRequest,
        body_example={"user_id": "42", "items": ["50", "235", "181"]},
    ),
    ("post", "/v1/search"): Operation(
        "search_list",
        "List what a text finds, in the order that suits the visitor.",
        Reply,
        LIST,
        (404, *TAKES_BODY, *ALWAYS),
        body=SearchRequest,
        body_example={"query": "star trek", "user_id": "42", "k": 5},
    ),
    ("get", "/v1/explain/{request_id}"): Operation(
        "explain",
        "Say why a served list is as it is, and why an item is not in it.",
        Explanation,
        EXPLANATION,
        (404, 422, *ALWAYS),
        ExplainParameters,
        ("request_id", LIST.request_id),
    ),
    ("post", "/v1/events"): Operation(
        "events",
        "Store events; they count for the next list as soon as this is answered.",
        EventsReply,
        EventsReply(1, 0),
        (*TAKES_BODY, *ALWAYS),
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
    ),
    ("post", "/v1/items"): Operation(
        "change_items",
        "Hide, show and describe items, at once and on every surface.",
        ItemsChanged,
        ItemsChanged(7),
        (*TAKES_BODY, *ALWAYS),
        body=ItemsRequest,
        body_example={"items": [{"item_id": "235", "hidden": True}]},
    ),
    ("delete", "/v1/users/{user_id}"): Operation(
        "forget",
        "Remove a user's events and served lists, and use no history of theirs any more.",
        ForgottenReply,
        ForgottenReply(Removed(12, 3)),
        (422, *ALWAYS),
        path_parameter=("user_id", "42"),
    ),
    ("get", "/v1/similar/{item_id}"): Operation(
        "similar",
        "List items like one item.",
        Reply,
        LIST,
        (404, 422, *ALWAYS),
        SimilarParameters,
        ("item_id", "50"),
    ),
    ("get", "/v1/search"): Operation(
        "search",
        "Find items by title.",
        ItemsReply,
        ItemsReply("7a038c5f0bbf", [CARD]),
        (422, *ALWAYS),
        SearchParameters,
    ),
    ("get", "/v1/items"): Operation(
        "items",
        "Describe items; those that are not in the catalogue are left out.",
        ItemsReply,
        ItemsReply("7a038c5f0bbf", [CARD]),
        (422, *ALWAYS),
        ItemsParameters,
    ),
    ("get", "/v1/catalogue"): Operation(
        "catalogue",
        "Count items and users, list categories, name the bundle and the profile.",
        CatalogueReply,
        CatalogueReply(
            *("7a038c5f0bbf", "fast", 1682, True, [Category("Action", 251)]),
            properties={"category": "list", "item_id": "text", "release_year": "number"},
            surfaces=[SurfaceCard("home", "home", [RuleCard("advent", "pins 242 to slot 1")])],
            keeps_events=True,
            num_users=943,
        ),
        ALWAYS,
    ),
    ("get", "/v1/users"): Operation(
        "users",
        "List users by the beginning of their id, or some at random.",
        UsersReply,
        UsersReply("7a038c5f0bbf", [UserCard("42", 183)]),
        (404, 422, *ALWAYS),
        UsersParameters,
    ),
    ("get", "/v1/users/{user_id}/history"): Operation(
        "history",
        "List a user's history, newest first.",
        HistoryReply,
        HistoryReply(
            "7a038c5f0bbf",
            "42",
            183,
            [PastItem("235", CARD.title, CARD.categories, CARD.semantic_id, 881107258)],
        ),
        (404, 422, *ALWAYS),
        HistoryParameters,
        ("user_id", "42"),
    ),
    ("get", "/healthz"): Operation(
        "alive", "Report that the process is alive.", Alive, Alive("alive")
    ),
    ("get", "/readyz"): Operation(
        "ready",
        "Report what is served, and whether a newer bundle was refused.",
        Readiness,
        Readiness("ready", "7a038c5f0bbf", "9b1c", "fast", 1682),
    ),
}


@cache
def document() -> Document:
    """Write the whole document, OpenAPI 3.1."""
    paths: Document = {}
    for (method, path), operation in OPERATIONS.items():
        paths.setdefault(path, {})[method] = _described(operation)
    error = {"$ref": f"{SCHEMAS}ErrorReply"}
    responses = {
        str(status): _response(what, error, ErrorReply(fault))
        for status, (what, fault) in ERRORS.items()
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "recsys",
            "version": _version(),
            "description": "Recommendations from one released bundle; see docs/serving.md.",
        },
        "paths": paths,
        "components": {
            "schemas": _schemas(),
            "responses": responses,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        # Servers without keys want none.
        "security": [{"key": []}, {}],
    }


def _described(operation: Operation) -> Document:
    described: Document = {
        "operationId": operation.id,
        "summary": operation.summary,
        "parameters": _parameters(operation),
        "responses": {
            "200": _response("Served.", _ref(operation.reply), operation.example),
            **{
                str(status): {"$ref": f"#/components/responses/{status}"}
                for status in sorted(operation.errors)
            },
        },
    }
    if operation.body is not None:
        content = {"schema": _ref(operation.body), "example": operation.body_example}
        described["requestBody"] = {"required": True, "content": {"application/json": content}}
    if operation.reply is Readiness:
        waiting = Readiness("no_worker")
        described["responses"]["503"] = _response("Not ready.", _ref(Readiness), waiting)
    if not operation.errors:
        described["security"] = []
    return described


def _response(what: str, schema: Document, example: object) -> Document:
    content = {"schema": schema, "example": orjson.loads(to_json(example))}
    return {"description": what, "content": {"application/json": content}}


def _parameters(operation: Operation) -> list[Document]:
    found: list[Document] = []
    if operation.path_parameter is not None:
        name, example = operation.path_parameter
        schema = {"type": "string", "minLength": 1}
        found.append(
            {"name": name, "in": "path", "required": True, "schema": schema, "example": example}
        )
    if operation.parameters is not None:
        fields = operation.parameters.model_json_schema()
        required = fields.get("required", [])
        for name, schema in fields["properties"].items():
            what = schema.pop("description", "")
            one = {"name": name, "in": "query", "required": name in required, "schema": schema}
            found.append({**one, "description": what} if what else one)
    return found


def _ref(kind: type) -> Document:
    return {"$ref": SCHEMAS + kind.__name__}


def _schemas() -> Document:
    """Describe all bodies and replies."""
    for kind in REPLIES:
        # Descriptions of fields are their docstrings.
        kind.__pydantic_config__ = ConfigDict(  # type: ignore[union-attr]
            use_attribute_docstrings=True
        )
    kinds = (
        Request,
        RankRequest,
        SearchRequest,
        BatchRequest,
        EventsRequest,
        ItemsRequest,
        *REPLIES,
    )
    _, definitions = TypeAdapter.json_schemas(
        [(kind.__name__, "validation", TypeAdapter(kind)) for kind in kinds],
        ref_template=SCHEMAS + "{model}",
    )
    schemas: Document = definitions["$defs"]
    for kind in REPLIES:
        _as_sent(schemas[kind.__name__])
    return schemas


def _as_sent(schema: Document) -> None:
    """Describe a dataclass as `to_json` writes it: what is None is left out, all else is there."""
    absent = []
    for name, field in schema["properties"].items():
        field.pop("default", None)
        kinds = field.get("anyOf", [])
        if {"type": "null"} in kinds:
            absent.append(name)
            rest = [one for one in kinds if one != {"type": "null"}]
            field.pop("anyOf")
            field.update(rest[0] if len(rest) == 1 else {"anyOf": rest})
    schema["required"] = [name for name in schema["properties"] if name not in absent]


def _version() -> str:
    try:
        return version("recsys-platform")
    except PackageNotFoundError:
        return "unknown"


if __name__ == "__main__":
    sys.stdout.buffer.write(orjson.dumps(document(), option=orjson.OPT_INDENT_2))
