"""The reference of the HTTP API, from the OpenAPI document that the server sends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from docs.generators.text import code, entries, prose, table
from serving.web.descriptions import document

HEAD = """# HTTP API

Every operation of a server, from its OpenAPI document (`GET /openapi.json`). The
[guide](../serving.md) explains requests, warnings and errors, and the clients in Python and
TypeScript.

"""


def name_of(schema: dict[str, Any]) -> str:
    """Write a schema's type; a named one links to its section."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        kinds = [name_of(one) for one in schema["anyOf"] if one != {"type": "null"}]
        return " or ".join(kinds)
    if "enum" in schema:
        return " or ".join(code(json.dumps(one)) for one in schema["enum"])
    if "const" in schema:
        return code(json.dumps(schema["const"]))
    if schema.get("type") == "array":
        return f"list of {name_of(schema.get('items', {}))}"
    return str(schema.get("type", "any")) + bounds(schema)


def bounds(schema: dict[str, Any]) -> str:
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    if low is None and high is None:
        return ""
    return f", {'' if low is None else low} to {'' if high is None else high}"


def example(kind: str, content: dict[str, Any]) -> str:
    body = content.get("application/json", {}).get("example")
    return "" if body is None else f"{kind}\n\n```json\n{json.dumps(body, indent=2)}\n```\n"


def operation(verb: str, path: str, spec: dict[str, Any]) -> Iterator[str]:
    yield f"## {verb.upper()} {path}\n"
    yield prose(spec.get("summary", "")) + "\n"
    if "description" in spec:
        yield prose(spec["description"]) + "\n"
    rows = [
        (
            one["name"],
            f"in {one['in']}, {name_of(one['schema'])}",
            "required" if one.get("required") else default(one["schema"]),
            prose(one.get("description", "")),
        )
        for one in spec.get("parameters", [])
    ]
    yield entries(rows)
    content = spec.get("requestBody", {}).get("content", {})
    if content:
        schema = content["application/json"]["schema"]
        yield f"Body: {name_of(schema)}.\n"
        yield example("A request:", content)
    for status, reply in spec["responses"].items():
        if "content" in reply and status.startswith("2"):
            schema = reply["content"].get("application/json", {}).get("schema")
            named = f": {name_of(schema)}" if schema else ""
            yield f"Reply {status}{named}.\n"
    refused = [f"[{status}](#refusals)" for status in spec["responses"] if status >= "300"]
    if refused:
        yield f"Refusals: {', '.join(refused)}.\n"


def http_page() -> str:
    """Write operations, refusals and schemas."""
    spec = document()
    parts = [HEAD]
    for path, verbs in spec["paths"].items():
        for verb, one in verbs.items():
            parts += operation(verb, path, one)
    refusals = spec["components"]["responses"].items()
    parts += [
        "## Refusals\n",
        table(("status", "what"), [(s, prose(r["description"])) for s, r in refusals]),
    ]
    for name, schema in sorted(spec["components"]["schemas"].items()):
        parts += [f"## {name}\n", prose(schema.get("description", "")) + "\n"]
        required = schema.get("required", [])
        rows = [
            (
                field,
                name_of(one),
                "required" if field in required else default(one),
                prose(one.get("description", "")),
            )
            for field, one in schema.get("properties", {}).items()
        ]
        parts.append(entries(rows))
    return "\n".join(parts)


def default(schema: dict[str, Any]) -> str:
    value = schema.get("default")
    return "" if value is None or isinstance(value, dict) else code(json.dumps(value))
