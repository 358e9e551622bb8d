"""The OpenAPI document: every route of `serving.routes`, with examples of requests.

Schemas are those that validate (`serving.schemas`) and that are sent (`serving.replies`),
so that they cannot tell of anything else.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import orjson
from pydantic import ConfigDict, TypeAdapter

from serving.replies import Readiness
from serving.routes import ERRORS, REPLIES, ROUTES, Route

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
        kind.__pydantic_config__ = ConfigDict(  # type: ignore[union-attr]
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
