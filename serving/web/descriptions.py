"""Describe the catalogue, surfaces and users of a bundle for pages, and the API as OpenAPI.

The document has every route of `serving.routes`, with examples of requests. Schemas are those that
validate (`serving.schemas`) and that are sent (`serving.replies`), so that they cannot tell of
anything else.
"""

from __future__ import annotations

import heapq
import sys
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from typing import Any

import numpy as np
import orjson
from pydantic import ConfigDict, TypeAdapter

from recsys.models.text_search.wishes import value_key
from recsys.reranking.lists import clearest_categories
from serving.bundle.load import Bundle
from serving.configuration.file import ServingConfiguration
from serving.configuration.rules import Rule, holds
from serving.filtering.compile import known_properties
from serving.items import END
from serving.online.store import Visitor
from serving.online.topics import in_time, read_topics
from serving.query import Query, hydrate
from serving.recommend import Recommender
from serving.replies import (
    CatalogueReply,
    Category,
    PastItem,
    Readiness,
    RuleCard,
    SurfaceCard,
    TopicCard,
)
from serving.routes import ERRORS, REPLIES, ROUTES, Route
from serving.schemas import Request
from serving.surfaces import HOME

MAX_CATEGORIES = 500
"""Categories on the page, largest first."""
MAX_NAMED_ITEMS = 5
"""Items of a rule that its description names."""
MAX_PREFIX_USERS = 5_000
"""Users with a prefix, in order of text, among which the shortest ids are listed."""


def describe_catalogue(
    recommender: Recommender, *, shows_users: bool, keeps_events: bool
) -> CatalogueReply:
    """Count items and users, and list categories, properties and surfaces."""
    bundle = recommender.bundle
    return CatalogueReply(
        bundle=bundle.version,
        profile=recommender.profile,
        num_items=bundle.num_item_rows - 1,
        shows_users=shows_users,
        categories=_category_sizes(bundle),
        properties=known_properties(bundle),
        surfaces=_surfaces(recommender.configuration, time.time()),
        keeps_events=keeps_events,
        num_users=bundle.users.num_user_rows - 1 if shows_users else None,
    )


def _surfaces(configuration: ServingConfiguration, now: float) -> list[SurfaceCard]:
    """Describe the surfaces with the rules and the experiment in force at a time."""
    cards = []
    for name, surface in configuration.surfaces.items():
        rules = [
            RuleCard(rule.name, _deed(rule))
            for rule in configuration.rules
            if rule.on(name) and holds(rule.span, now)
        ]
        running = (
            one.name for one in configuration.experiments if one.on(name) and holds(one.span, now)
        )
        cards.append(SurfaceCard(name, surface.kind, rules, next(running, None)))
    return cards


def _deed(rule: Rule) -> str:
    """Describe what a rule does, and to whose lists."""
    named, rest = rule.items[:MAX_NAMED_ITEMS], len(rule.items) - MAX_NAMED_ITEMS
    what = ", ".join(named) + (f" and {rest} more" if rest > 0 else "")
    if rule.where is not None:
        what = f"{what} where {rule.where}".lstrip()
    deeds = {"pin": f"pins {what} to slot {rule.slot}", "hide": f"hides {what}"}
    way = "up" if rule.kind == "boost" else "down"
    deed = deeds.get(rule.kind, f"moves {what} {way} by {rule.places} places")
    visitors = "" if rule.users.visitors == "all" else f" for {rule.users.visitors} visitors"
    domains = "" if rule.users.domains is None else f" in {', '.join(rule.users.domains)}"
    return deed + visitors + domains


def list_history(recommender: Recommender, user_row: int, k: int) -> list[PastItem]:
    """List a user's latest k events, newest first."""
    users = recommender.bundle.users
    rows, times, _ = users.events(user_row)
    found = []
    for place in range(len(rows) - 1, max(len(rows) - 1 - k, -1), -1):
        card = recommender.cards.of(int(rows[place]))
        moment = None if times is None else int(times[place])
        found.append(PastItem(card.item_id, card.title, card.categories, card.semantic_id, moment))
    return found


def list_topics(recommender: Recommender, user_id: str, visitor: Visitor) -> list[TopicCard]:
    """List what a user said, then what the categories of the history say."""
    now, items = time.time(), recommender.steering.items
    said = in_time(read_topics(visitor.topics), now)
    found = [(int(np.count_nonzero(items.mask(one.words))), one) for one in said]
    cards = [
        TopicCard(
            *one.wanted, "said", one.until, number, items.ignored(one.words) or None, one.said_as
        )
        for number, one in found
    ]
    query = hydrate(Request(user_id=user_id), recommender.bundle, HOME, visitor, int(now))
    known = {value_key(one.words) for one in said}
    inferred = _inferred(query, recommender)
    return cards + [card for card in inferred if value_key(card.words) not in known]


def _inferred(query: Query, recommender: Recommender) -> Iterator[TopicCard]:
    """Find categories that the history has far more of than the catalogue, the clearest first."""
    catalogue = recommender.bundle.catalogue
    rows, offsets = np.unique(query.seen), catalogue.category_offsets
    own = [catalogue.category_values[offsets[row] : offsets[row + 1]] for row in rows]
    every = np.bincount(catalogue.category_values, minlength=catalogue.num_category_rows)
    for row, share in clearest_categories(own, every, catalogue.num_item_rows - 1):
        name, strength = catalogue.category_names[row], round(min(1.0, share), 2)
        yield TopicCard(name, "more", strength, "inferred", None, int(every[row]))


def _category_sizes(bundle: Bundle) -> list[Category]:
    """List the largest categories by name, with their numbers of items."""
    catalogue = bundle.catalogue
    counts = np.bincount(catalogue.category_values, minlength=catalogue.num_category_rows)
    counts[0] = 0
    largest = np.argsort(-counts, kind="stable")[:MAX_CATEGORIES].tolist()
    found = {catalogue.category_names[row]: int(counts[row]) for row in largest if counts[row]}
    return [Category(name, found[name]) for name in sorted(found, key=str.casefold)]


class UserIndex:
    """User ids in order of their folded text."""

    def __init__(self, user_ids: Iterable[str]) -> None:
        self._ids = sorted((user_id.casefold(), user_id) for user_id in islice(user_ids, 1, None))

    def beginning_with(self, prefix: str, k: int) -> list[str]:
        """List k user ids with a prefix, short ones first; case does not matter."""
        folded = prefix.casefold()
        first = bisect_left(self._ids, (folded,))
        last = bisect_left(self._ids, (folded + END,))
        near = self._ids[first : min(last, first + MAX_PREFIX_USERS)]
        shortest = heapq.nsmallest(k, near, key=lambda pair: (len(pair[0]), pair))
        return [user_id for _, user_id in shortest]


Document = dict[str, Any]
SCHEMAS = "#/components/schemas/"


@cache
def document() -> Document:
    """Write the whole document, OpenAPI 3.1."""
    paths: Document = {}
    for route in ROUTES:
        if route.reply is not None:
            paths.setdefault(route.path, {})[route.method.lower()] = _described(route, route.reply)
    error = {"$ref": f"{SCHEMAS}ErrorReply"}
    responses = {str(status): _response(what, error) for status, what in ERRORS.items()}
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


def _described(route: Route, reply: type) -> Document:
    described: Document = {
        "operationId": route.name,
        "summary": route.summary,
        "parameters": _parameters(route),
        "responses": {
            "200": _response("Served.", _ref(reply)),
            **{
                str(status): {"$ref": f"#/components/responses/{status}"}
                for status in sorted(route.errors)
            },
        },
    }
    if route.body is not None:
        content = {"schema": _ref(route.body), "example": route.body_example}
        described["requestBody"] = {"required": True, "content": {"application/json": content}}
    if route.reply is Readiness:
        described["responses"]["503"] = _response("Not ready.", _ref(Readiness))
    if not route.errors:
        described["security"] = []
    return described


def _response(what: str, schema: Document) -> Document:
    return {"description": what, "content": {"application/json": {"schema": schema}}}


def _parameters(route: Route) -> list[Document]:
    found: list[Document] = []
    if route.path_parameter is not None:
        name, example = route.path_parameter
        schema = {"type": "string", "minLength": 1}
        found.append(
            {"name": name, "in": "path", "required": True, "schema": schema, "example": example}
        )
    if route.parameters is not None:
        fields = route.parameters.model_json_schema()
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
        kind.__pydantic_config__ = ConfigDict(  # type: ignore[attr-defined]
            use_attribute_docstrings=True
        )
    kinds = (*{route.body for route in ROUTES if route.body is not None}, *REPLIES)
    _, definitions = TypeAdapter.json_schemas(
        [(kind.__name__, "validation", TypeAdapter(kind)) for kind in kinds],
        ref_template=SCHEMAS + "{model}",
    )
    schemas: Document = definitions["$defs"]
    for kind in REPLIES:
        _as_sent(schemas[kind.__name__])
    return schemas


def _as_sent(schema: Document) -> None:
    """Describe a dataclass as `to_json` writes it: fields that are None are left out."""
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
