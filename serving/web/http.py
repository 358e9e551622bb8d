"""The HTTP edge: JSON bodies and query parameters in, JSON and refusals out.

orjson parses, and refuses NaN, Infinity, numbers out of range, lone surrogates, a byte order mark
and deep nesting. No response repeats what was sent, so it can always be encoded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import orjson
from fastapi import FastAPI
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from serving.routes import BY_NAME
from serving.schemas import error_body, to_json
from serving.settings import Settings

MAX_FIELDS_NAMED = 10
RECORDS = "recsys.records"
"""Where a request's scope holds the records of the lists that its handler made."""
Schema = TypeVar("Schema", bound=BaseModel)
Handler = TypeVar("Handler", bound=Callable[..., Any])


class Answer(NamedTuple):
    """A status, the bytes of a body, and fields of the request's log line."""

    status: int
    body: bytes
    fields: dict[str, Any]
    headers: list[tuple[str, str]] | None = None
    """None are those of JSON."""
    records: tuple[bytes, ...] = ()
    """Of the lists that were made, for the request log."""


class JsonResponse(Response):
    """JSON, as `to_json` writes it; no cache keeps it, since bundles are swapped."""

    media_type = "application/json"

    def init_headers(self, headers: Any = None) -> None:
        super().init_headers(headers)
        self.headers["cache-control"] = "no-store"
        self.headers["x-content-type-options"] = "nosniff"

    def render(self, content: object) -> bytes:
        return content if isinstance(content, bytes) else to_json(content)


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
        """Refuse a request.

        Args:
            headers: More headers of the reply.
            reason: How metrics count it; None for one that they do not count.
        """
        super().__init__(message)
        self.status, self.headers, self.reason = status, list(headers), reason
        self.body: dict[str, object] = error_body(code, message)
        if fields:
            self.body = {"error": {"code": code, "message": message, "fields": fields}}


def at(app: FastAPI, name: str) -> Callable[[Handler], Handler]:
    """Register the handler of a route; of GET it answers HEAD too."""
    route = BY_NAME[name]
    # The router matches decoded paths, and ids may have a slash.
    path = route.path.replace("{item_id}", "{item_id:path}").replace("{user_id}", "{user_id:path}")
    return app.api_route(path, methods=["GET", "HEAD"] if route.method == "GET" else [route.method])


async def read_body(http: HttpRequest, settings: Settings) -> tuple[dict[str, Any], bytes]:
    """Read a body, and what `answer_body` has to know about it.

    Raises:
        RefusedError: 400, 408, 413 or 415.
    """
    kind = http.headers.get("content-type", "")
    encoding = http.headers.get("content-encoding", "identity")
    _check_kind(kind, encoding)
    head = {"type": kind, "encoding": encoding, "shown": shows_users(http, settings)}
    try:
        async with asyncio.timeout(settings.body_timeout_seconds):
            return head, await _read(http, settings.max_body_bytes)
    except TimeoutError:
        seconds = settings.body_timeout_seconds
        raise RefusedError(
            408, "too_slow", f"the body did not arrive within {seconds:g} s"
        ) from None
    except ClientDisconnect:
        raise RefusedError(
            400, "gone", "the connection closed before the whole body arrived"
        ) from None


def parsed_json(kind: str, encoding: str, body: bytes) -> object:
    """Parse a body by the headers that came with it.

    Raises:
        RefusedError: 400 or 415.
    """
    _check_kind(kind, encoding)
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RefusedError(400, "bad_json", f"the body is not JSON: {error.msg}") from None


def _check_kind(kind: str, encoding: str) -> None:
    if kind.partition(";")[0].strip().lower() != "application/json":
        raise RefusedError(
            415, "not_json", "send the body with content-type application/json (curl: --json)"
        )
    if encoding.lower() != "identity":
        raise RefusedError(415, "compressed", "send the body without content-encoding")


async def _read(http: HttpRequest, limit: int) -> bytes:
    too_large = RefusedError(413, "too_large", f"the body may have at most {limit} bytes")
    declared = http.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > limit:
        raise too_large
    parts, size = [], 0
    async for chunk in http.stream():
        size += len(chunk)
        if size > limit:
            raise too_large
        parts.append(chunk)
    return b"".join(parts)


def read_parameters(schema: type[Schema], http: HttpRequest) -> Schema:
    """Read the parameters of a request's address; a required one may be repeated.

    Raises:
        RefusedError: 422, as of ``validated``.
    """
    lists = {name for name, field in schema.model_fields.items() if field.is_required()}
    given = http.query_params
    values = {name: given.getlist(name) if name in lists else given[name] for name in given}
    return validated(schema, values)


def validated(schema: type[Schema], value: object) -> Schema:
    """Check a parsed body against a schema.

    Raises:
        RefusedError: 422, naming each wrong field and what is allowed.
    """
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        raise _refusal_of(error) from None


def _refusal_of(error: ValidationError) -> RefusedError:
    """Turn a failed validation into a 422 that names fields but not their values."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    fields = [
        {"field": _printable(".".join(map(str, one["loc"])) or "body"), "message": _message(one)}
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


def _printable(name: str) -> str:
    """Cut a field's name, which the client may have made up, to something printable."""
    return name.encode("ascii", "backslashreplace").decode()[:80]


def shows_users(http: HttpRequest, settings: Settings) -> bool:
    """Whether this request may list users and read histories.

    The server has decided that (`Access.authorize`) and put it into the request's state; an
    application that runs alone asks its settings.
    """
    return bool(http.scope.get("state", {}).get("shown", settings.expose_users))
