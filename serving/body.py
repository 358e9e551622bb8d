"""Read what a client sent, with bounds on size and time, and turn it into a request.

Parsing is orjson's, which refuses NaN, Infinity, numbers out of range, lone surrogates, a byte
order mark and deep nesting. No answer repeats what was sent, so it can always be encoded.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

import orjson
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest

from serving.settings import Settings

MAX_FIELDS_NAMED = 10
Schema = TypeVar("Schema", bound=BaseModel)


class RefusedError(Exception):
    """A request that is answered with a 4xx."""

    def __init__(
        self, status: int, code: str, message: str, fields: list[dict[str, str]] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body: dict[str, object] = {"error": {"code": code, "message": message}}
        if fields:
            self.body = {"error": {"code": code, "message": message, "fields": fields}}


async def read_json(http: HttpRequest, settings: Settings) -> object:
    """Read a JSON body.

    Raises:
        RefusedError: 400, 408, 413 or 415.
    """
    kind = http.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RefusedError(
            415, "not_json", "send the body with content-type application/json (curl: --json)"
        )
    if http.headers.get("content-encoding", "identity").lower() != "identity":
        raise RefusedError(415, "compressed", "send the body without content-encoding")
    try:
        async with asyncio.timeout(settings.body_timeout_seconds):
            body = await _read(http, settings.max_body_bytes)
    except TimeoutError:
        seconds = settings.body_timeout_seconds
        raise RefusedError(
            408, "too_slow", f"the body did not arrive within {seconds:g} s"
        ) from None
    except ClientDisconnect:
        raise RefusedError(400, "gone", "the connection closed before the body was whole") from None
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RefusedError(400, "bad_json", f"the body is not JSON: {error.msg}") from None


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
        return "not a field that this server answers to; /openapi.json lists those it does"
    if error["type"] == "model_type":
        return "must be a JSON object"
    return error["msg"].removeprefix("Value error, ")


def _printable(name: str) -> str:
    """Cut a field's name, which the client may have made up, to something that can be shown."""
    return name.encode("ascii", "backslashreplace").decode()[:80]
