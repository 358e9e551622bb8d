"""The HTTP edge: what a request sends, checked by the table of routes, and what it gets.

orjson parses, and refuses NaN, Infinity, numbers out of range, lone surrogates, a byte order mark
and deep nesting. No response repeats its request, so it can always be encoded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl

import orjson
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from serving.routes import BY_NAME, ROUTES, Route, find_template
from serving.schemas import error_body
from serving.security import USERS_NOT_SHOWN
from serving.settings import Settings

NO_STORE = "this server has no online store; start it with --store sqlite:FOLDER or a Redis URL"
MAX_FIELDS_NAMED = 10
Schema = TypeVar("Schema", bound=BaseModel)
Head = Mapping[str, Any]
"""Parts of a request but its body: ``route`` and its ``kind``, ``value`` of the path's parameter,
``query``, the body's ``type`` and ``encoding``, and ``shown``, whether the caller may see users."""
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]

JSON: Headers = (
    (b"content-type", b"application/json"),
    # Bundles are swapped.
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
)


class HttpAnswer(NamedTuple):
    """A status, the bytes of a body, and fields of the request's log line."""

    status: int
    body: bytes
    fields: dict[str, Any]
    headers: Headers = JSON
    records: tuple[bytes, ...] = ()
    """Records of the lists that were made, for the request log."""


class RefusedError(Exception):
    """A request that gets an error: ``{"error": {code, message, fields?}}``."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        fields: list[dict[str, str]] | None = None,
        *,
        headers: Iterable[tuple[bytes, bytes]] = (),
        reason: str | None = None,
    ) -> None:
        """Refuse a request; metrics count it by ``reason``, without one they do not."""
        super().__init__(message)
        self.status, self.headers, self.reason = status, list(headers), reason
        self.body: dict[str, object] = error_body(code, message)
        if fields:
            self.body = {"error": {"code": code, "message": message, "fields": fields}}

    def answer(self) -> HttpAnswer:
        return HttpAnswer(self.status, orjson.dumps(self.body), {}, (*JSON, *self.headers))


def failed() -> RefusedError:
    """Build the refusal of a request that failed for a reason of the server's."""
    return RefusedError(500, "internal", "the request failed; see the server's log")


def unrouted(method: str, path: str) -> RefusedError:
    """Build the refusal of a request without a route."""
    template = find_template(path)
    allowed = [route.method for route in ROUTES if route.path == template]
    if not allowed:
        return RefusedError(404, "no_such_route", "Not Found; GET / lists the routes")
    allowed += ["HEAD"] if "GET" in allowed else []
    allow = (b"allow", ", ".join(sorted(allowed)).encode())
    message = "Method Not Allowed; GET / lists the routes"
    return RefusedError(405, "method_not_allowed", message, headers=(allow,))


@lru_cache(maxsize=64)
def request_head(
    name: str, path: str, query: bytes, kind: bytes, encoding: bytes, *, shown: bool
) -> tuple[Head, bytes]:
    """Collect what handlers read of a request to a route besides its body, and write it as JSON."""
    route = BY_NAME[name]
    head = {
        "type": kind.decode("latin-1"),
        "encoding": encoding.decode("latin-1"),
        "shown": shown,
        "route": name,
        "kind": route.kind,
        "value": route.value(path),
        "query": query.decode("latin-1"),
    }
    return head, orjson.dumps(head)


async def read_body(
    headers: Mapping[bytes, bytes], receive: Receive, settings: Settings, *, is_here: bool = False
) -> bytes:
    """Read a body within the limits of size and time; one that ``is_here`` needs no timer.

    Raises:
        RefusedError: 408 or 413.
        ConnectionResetError: The client is gone.
    """
    limit, seconds = settings.max_body_bytes, settings.body_timeout_seconds
    declared = headers.get(b"content-length", b"0")
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(limit)
    if is_here:
        # Most bodies; a timer for each would cost more than reading it.
        return await _whole(receive, limit)
    try:
        async with asyncio.timeout(seconds):
            return await _whole(receive, limit)
    except TimeoutError:
        message = f"the body did not arrive within {seconds:g} s"
        raise RefusedError(408, "too_slow", message, reason="deadline") from None


async def _whole(receive: Receive, limit: int) -> bytes:
    parts, size, more = [], 0, True
    while more:
        received = await receive()
        if received["type"] == "http.disconnect":
            raise ConnectionResetError
        part, more = received.get("body", b""), received.get("more_body", False)
        if (size := size + len(part)) > limit:
            raise _too_large(limit)
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(limit: int) -> RefusedError:
    return RefusedError(413, "too_large", f"the body may have at most {limit} bytes", reason="body")


def read_input(route: Route, head: Head, body: bytes) -> Any:
    """Read what a request sends by the schema of its route; None if it takes nothing.

    Raises:
        RefusedError: 400, 404, 415 or 422.
    """
    if route.scope == "users" and not head["shown"]:
        raise RefusedError(404, "users_not_shown", USERS_NOT_SHOWN)
    if route.body is not None:
        return validated(route.body, parsed_json(head["type"], head["encoding"], body))
    if route.parameters is None:
        return None
    # A required parameter may be repeated.
    lists = {name for name, field in route.parameters.model_fields.items() if field.is_required()}
    values: dict[str, Any] = {}
    for name, value in parse_qsl(head["query"], keep_blank_values=True):
        values[name] = [*values.get(name, ()), value] if name in lists else value
    return validated(route.parameters, values)


def parsed_json(kind: str, encoding: str, body: bytes) -> object:
    """Parse a body by the headers that came with it.

    Raises:
        RefusedError: 400 or 415.
    """
    if kind.partition(";")[0].strip().lower() != "application/json":
        raise RefusedError(
            415, "not_json", "send the body with content-type application/json (curl: --json)"
        )
    if encoding.lower() != "identity":
        raise RefusedError(415, "compressed", "send the body without content-encoding")
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RefusedError(400, "bad_json", f"the body is not JSON: {error.msg}") from None


def validated(schema: type[Schema], value: object) -> Schema:
    """Check a value against a schema.

    Raises:
        RefusedError: 422, naming each wrong field and its bounds.
    """
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        raise _invalid(error) from None


def _invalid(error: ValidationError) -> RefusedError:
    """Turn a failed validation into a 422 that names fields but not their values."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    fields = [
        {"field": printable(".".join(map(str, one["loc"])) or "body"), "message": _message(one)}
        for one in found[:MAX_FIELDS_NAMED]
    ]
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    message = f"{fields[0]['field']}: {fields[0]['message']}{more}"
    return RefusedError(422, "invalid_request", message, fields)


def _message(error: ErrorDetails) -> str:
    if error["type"] == "extra_forbidden":
        return "not a field of this request; /openapi.json lists its fields"
    if error["type"] == "model_type":
        return "must be a JSON object"
    return error["msg"].removeprefix("Value error, ")


def printable(name: str) -> str:
    """Cut a field's name, which the client may have made up, to something printable."""
    return name.encode("ascii", "backslashreplace").decode()[:80]
